package sockmeter

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// A kernel is the counting program, attached.
type kernel struct {
	cells []cell
	ports *[65536]uint16

	mapped [][]byte
	coll   *ebpf.Collection
	link   link.Link
	iter   *link.Iter // nil where sockets cannot be adopted
	noIter error      // why
}

// openKernel loads the program and attaches it to the cgroup, by default the
// root. Nothing is counted until the port table has entries.
func openKernel(cgroup string, netns uint64) (*kernel, error) {
	if cgroup == "" {
		var err error
		if cgroup, err = cgroupRoot(); err != nil {
			return nil, err
		}
	}
	k := new(kernel)
	if err := k.open(cgroup, netns); err != nil {
		k.close()
		k.unmap()
		// The library blames a limit that has not been there since Linux 5.11.
		if errors.Is(err, unix.EPERM) {
			err = unix.EPERM
		}
		return nil, fmt.Errorf("sockmeter: BPF program (needs CAP_BPF, CAP_NET_ADMIN and Linux 5.15): %w", err)
	}
	return k, nil
}

func (k *kernel) open(cgroup string, netns uint64) error {
	// Before Linux 5.11 maps counted as locked memory; an error then shows itself
	// when they are made.
	_ = rlimit.RemoveMemlock()
	if err := k.load(netns); err != nil {
		return err
	}
	cells, err := k.mmap("counters")
	if err != nil {
		return err
	}
	ports, err := k.mmap("ports")
	if err != nil {
		return err
	}
	k.cells = unsafe.Slice((*cell)(unsafe.Pointer(unsafe.SliceData(cells))), len(cells)/int(unsafe.Sizeof(cell{})))
	k.ports = (*[65536]uint16)(unsafe.Pointer(unsafe.SliceData(ports)))
	k.link, err = link.AttachCgroup(link.CgroupOptions{
		Path: cgroup, Attach: ebpf.AttachCGroupSockOps, Program: k.coll.Programs["sock_event"],
	})
	if err != nil {
		return fmt.Errorf("attach to %s: %w", cgroup, err)
	}
	if adopt := k.coll.Programs["adopt"]; adopt != nil {
		k.iter, k.noIter = link.AttachIter(link.IterOptions{Program: adopt})
	}
	return nil
}

// load loads the programs; the iterator, which asks more of the kernel, is left
// out where it does not load.
func (k *kernel) load(netns uint64) error {
	spec, err := loadSockmeter()
	if err != nil {
		return err
	}
	if err := spec.Variables["netns_cookie"].Set(netns); err != nil {
		return err
	}
	if k.coll, err = ebpf.NewCollection(spec); err == nil {
		return nil
	}
	k.noIter = err
	delete(spec.Programs, "adopt")
	k.coll, err = ebpf.NewCollection(spec)
	return err
}

// mmap maps the memory of an array.
func (k *kernel) mmap(name string) ([]byte, error) {
	m := k.coll.Maps[name]
	// Values are multiples of 8 bytes, so the kernel leaves no gaps between them.
	size := int(m.ValueSize() * m.MaxEntries())
	b, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", name, os.NewSyscallError("mmap", err))
	}
	k.mapped = append(k.mapped, b)
	return b, nil
}

// adopt lets the iterator visit the sockets of the calling thread's network
// namespace, which must be the given one.
func (k *kernel) adopt(netns uint64) error {
	if k.iter == nil {
		return fmt.Errorf("sockmeter: socket iterator (needs Linux 6.12 with BTF): %w", k.noIter)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := inNetns(netns); err != nil {
		return err
	}
	r, err := k.iter.Open()
	if err != nil {
		return fmt.Errorf("sockmeter: socket iterator: %w", err)
	}
	defer r.Close()
	// The iterator prints nothing: reading to the end makes it run.
	_, err = io.Copy(io.Discard, r)
	return err
}

// inNetns returns an error unless the thread is in the network namespace.
func inNetns(want uint64) error {
	d, err := openDiag()
	if err != nil {
		return err
	}
	defer d.close()
	got, err := d.netns()
	if err == nil && got != want {
		err = errors.New("sockmeter: called outside the meter's network namespace")
	}
	return err
}

// close detaches the program. The counters stay mapped.
func (k *kernel) close() error {
	var errs []error
	if k.iter != nil {
		errs = append(errs, k.iter.Close())
	}
	if k.link != nil {
		errs = append(errs, k.link.Close())
	}
	if k.coll != nil {
		k.coll.Close()
	}
	return errors.Join(errs...)
}

// unmap gives the memory back.
func (k *kernel) unmap() {
	for _, b := range k.mapped {
		_ = unix.Munmap(b)
	}
	k.mapped = nil
}
