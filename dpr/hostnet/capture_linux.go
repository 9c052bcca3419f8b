package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
)

// The object files are the same whatever machine they are made on: debug
// information is stripped and the headers are the kernel's exported ones.
//
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package hostnet -target bpfel,bpfeb -tags linux -cc clang -strip llvm-strip -cflags "-O2 -Wall -Werror" capture bpf/capture.c -- -Ibpf

// capture is the BPF program bpf/capture.c with its maps and attachments.
type capture struct {
	objects   captureObjects
	endpoints map[endpoint]bool
	name      string // of the tc filter, where there is one
	noTCX     bool
}

// loadProgram loads the program, for capture into the TUN of at most so many SYNs a
// second; without a limit if synRate is negative.
func loadProgram(tun netlink.Link, synRate int) (*capture, error) {
	// Before Linux 5.11 maps count as locked memory. That the limit stays shows itself
	// when they are made; on later kernels it does not matter.
	_ = rlimit.RemoveMemlock()
	spec, err := loadCapture()
	if err != nil {
		return nil, fmt.Errorf("capture program: %w", err)
	}
	c := &capture{endpoints: map[endpoint]bool{}, name: "carom_capture_" + tun.Attrs().Name}
	spec.Maps[captureMapServices].MaxEntries = maxEndpoints
	if err := spec.Variables[captureVarTunIfindex].Set(uint32(tun.Attrs().Index)); err != nil {
		return nil, fmt.Errorf("capture program: %w", err)
	}
	if err := spec.Variables[captureVarProbePort].Set(uint16(dpr.ProbePort)); err != nil {
		return nil, fmt.Errorf("capture program: %w", err)
	}
	if err := limitSYNs(spec, synRate); err != nil {
		return nil, fmt.Errorf("capture program: %w", err)
	}
	if err := spec.LoadAndAssign(&c.objects, nil); err != nil {
		// The library blames a limit that has not been there since Linux 5.11.
		if errors.Is(err, unix.EPERM) {
			err = unix.EPERM
		}
		return nil, fmt.Errorf("load the capture program (needs CAP_BPF and CAP_NET_ADMIN, before Linux 5.11 also CAP_SYS_RESOURCE): %w", err)
	}
	return c, nil
}

// limitSYNs sets the size of the program's bucket of tokens for SYNs.
func limitSYNs(spec *ebpf.CollectionSpec, rate int) error {
	if rate < 0 {
		return nil
	}
	return errors.Join(
		spec.Variables[captureVarSynInterval].Set(uint64(time.Second)/uint64(rate)),
		spec.Variables[captureVarSynBurst].Set(uint64(synBurst)),
	)
}

// setEndpoints makes the program's map equal to want. What is in both stays.
func (c *capture) setEndpoints(want map[endpoint]bool) error {
	for e := range c.endpoints {
		if !want[e] {
			if err := c.objects.Services.Delete(e.key()); err != nil {
				return fmt.Errorf("capture: remove %v: %w", e, err)
			}
			delete(c.endpoints, e)
		}
	}
	for e := range want {
		if !c.endpoints[e] {
			if err := c.objects.Services.Put(e.key(), uint8(1)); err != nil {
				return fmt.Errorf("capture: add %v: %w", e, err)
			}
			c.endpoints[e] = true
		}
	}
	return nil
}

// key returns the endpoint as the program has it: in network byte order, IPv4
// mapped into IPv6.
func (e endpoint) key() captureEndpoint {
	k := captureEndpoint{Protocol: e.protocol}
	if e.fragment {
		k.Fragment = 1
	}
	k.Port = binary.NativeEndian.Uint16([]byte{byte(e.port >> 8), byte(e.port)})
	a := e.addr.As16()
	for i := range k.Addr {
		k.Addr[i] = binary.NativeEndian.Uint32(a[i*4:])
	}
	return k
}

func (c *capture) stats() (Stats, error) {
	var s Stats
	for i, field := range []*uint64{&s.NotService, &s.LocalSocket, &s.CapturedSYN, &s.CapturedOther, &s.FailOpen, &s.LimitedSYN, &s.Tagged} {
		var perCPU []uint64
		if err := c.objects.Outcomes.Lookup(uint32(i), &perCPU); err != nil {
			return Stats{}, fmt.Errorf("hostnet: counters: %w", err)
		}
		for _, n := range perCPU {
			*field += n
		}
	}
	return s, nil
}

// attach attaches the program to what arrives on an interface, until detach. A TCX link
// goes when this process does.
func (c *capture) attach(nl *netlink.Handle, nic netlink.Link) (detach func() error, err error) {
	if !c.noTCX {
		l, err := link.AttachTCX(link.TCXOptions{
			Interface: nic.Attrs().Index, Program: c.objects.Capture, Attach: ebpf.AttachTCXIngress,
			Anchor: link.Head(), // before those that end the list, such as a CNI's
		})
		if err == nil {
			return l.Close, nil
		}
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return nil, fmt.Errorf("attach to %s: %w", nic.Attrs().Name, err)
		}
	}
	f, err := addFilter(nl, nic, c.objects.Capture.FD(), c.name)
	if err != nil {
		return nil, fmt.Errorf("attach to %s: %w", nic.Attrs().Name, err)
	}
	return func() error { return f.remove(nl) }, nil
}

// A tcFilter is the attachment for kernels before 6.6. It outlives this process;
// the missing heartbeat then makes the program harmless.
type tcFilter struct {
	filter *netlink.BpfFilter
	qdisc  netlink.Qdisc // nil if it was there before
}

// addFilter attaches the program as a filter of the interface's clsact qdisc, and
// removes one of that name that a killed process has left.
func addFilter(nl *netlink.Handle, nic netlink.Link, fd int, name string) (tcFilter, error) {
	var f tcFilter
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: nic.Attrs().Index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
	switch err := nl.QdiscAdd(qdisc); {
	case err == nil:
		f.qdisc = qdisc
	case !errors.Is(err, unix.EEXIST):
		return f, fmt.Errorf("clsact: %w", err)
	}
	if err := removeFilters(nl, nic, name); err != nil {
		return f, errors.Join(err, f.remove(nl))
	}
	f.filter = &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: nic.Attrs().Index,
			Parent:    netlink.HANDLE_MIN_INGRESS,
			Handle:    1,
			Protocol:  unix.ETH_P_ALL,
			Priority:  filterPriority,
		},
		Fd: fd, Name: name, DirectAction: true,
	}
	if err := nl.FilterAdd(f.filter); err != nil {
		f.filter = nil
		return f, errors.Join(fmt.Errorf("filter: %w", err), f.remove(nl))
	}
	return f, nil
}

// removeFilters removes the filters of that name.
func removeFilters(nl *netlink.Handle, nic netlink.Link, name string) error {
	filters, err := listed(func() ([]netlink.Filter, error) { return nl.FilterList(nic, netlink.HANDLE_MIN_INGRESS) })
	if err != nil {
		return fmt.Errorf("list filters: %w", err)
	}
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Name == name {
			if err := nl.FilterDel(f); err != nil {
				return fmt.Errorf("remove old filter: %w", err)
			}
		}
	}
	return nil
}

// filterPriority orders the filter among others on the qdisc: early, but not first.
const filterPriority = 100

func (f tcFilter) remove(nl *netlink.Handle) error {
	var errs []error
	if f.filter != nil {
		errs = append(errs, ignore(nl.FilterDel(f.filter), unix.ENODEV, unix.ENOENT))
	}
	if f.qdisc != nil {
		errs = append(errs, ignore(nl.QdiscDel(f.qdisc), unix.ENODEV, unix.ENOENT))
	}
	return errors.Join(errs...)
}

// heart writes the time into memory that the program reads.
type heart struct {
	at     *uint64
	origin uint64 // the kernel's monotonic clock, in nanoseconds, at start
	start  time.Time
}

func (h *heart) open(m *ebpf.Map) error {
	page, err := unix.Mmap(m.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the heartbeat: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return errors.Join(fmt.Errorf("monotonic clock: %w", err), unix.Munmap(page))
	}
	h.start, h.origin = time.Now(), uint64(now.Nano())
	h.at = (*uint64)(unsafe.Pointer(&page[0]))
	// A router may still beat while Close runs, so the memory goes only when
	// nobody can any more.
	runtime.AddCleanup(h, func(page []byte) { _ = unix.Munmap(page) }, page)
	return nil
}

// beat uses Go's clock, which is the kernel's monotonic one and needs no system call.
func (h *heart) beat() {
	if h.at == nil {
		return // nobody would hear it
	}
	atomic.StoreUint64(h.at, h.origin+uint64(time.Since(h.start)))
}

// addrOf returns the address of a netlink message, IPv4 as such.
func addrOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}
