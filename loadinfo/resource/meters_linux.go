package resource

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// root is the file system that meters read.
func root() fs.FS { return hostFiles{} }

// hostFiles are those of this host. They are read without the runtime's poller, which
// would wake a second thread for each file of /proc.
type hostFiles struct{}

func (hostFiles) Open(name string) (fs.File, error)     { return os.Open("/" + name) }
func (hostFiles) Stat(name string) (fs.FileInfo, error) { return os.Stat("/" + name) }

func (hostFiles) ReadFile(name string) ([]byte, error) {
	fd, err := unix.Open("/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/" + name, Err: err}
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 4<<10)
	for {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, &fs.PathError{Op: "read", Path: "/" + name, Err: err}
		case n == 0:
			return b, nil
		}
		b = slices.Grow(b[:len(b)+n], 1)
	}
}

// CPUs returns a meter of the processors in use, in CPUs: those of the host, or those
// that the control group of this process may use, whichever are nearer to their end.
func CPUs() Meter { return &cpus{root: root()} }

// UsedMemory returns a meter of memory in bytes, of the host or of the control group
// of this process, whichever is nearer to its end. What the kernel can take back, such
// as cached files, is not used.
func UsedMemory() Meter { return memory{root()} }

// BusyDisk returns a meter of the time in which a block device such as sda is busy, in
// seconds per second; "" means the busiest of all disks.
func BusyDisk(device string) Meter { return &disk{root: root(), device: device} }

// NetworkRate returns a meter of a network interface, in bytes per second of the
// direction that carries more; "" means the one that the IPv4 default route leads
// to. bytesPerSecond is its capacity; 0 means what the interface says, which virtual
// ones do not.
func NetworkRate(ifname string, bytesPerSecond float64) Meter {
	return &network{root: root(), ifname: ifname, capacity: bytesPerSecond}
}

// AcceptQueue returns a meter of the connections that wait to be accepted on a TCP
// port of this network namespace. The capacity is net.core.somaxconn for each
// listening socket, which is what package net asks for.
func AcceptQueue(port uint16) Meter { return acceptQueue{root(), port} }

// rate turns a counter into a rate.
type rate struct {
	was  float64
	at   time.Time
	some bool
}

// per returns the increase per second since the last call.
func (r *rate) per(count float64, now time.Time) (float64, error) {
	was, at, some := r.was, r.at, r.some
	r.was, r.at, r.some = count, now, true
	passed := now.Sub(at).Seconds()
	switch {
	case !some:
		return 0, errFirst
	case passed <= 0:
		return 0, fmt.Errorf("resource: no time has passed since the last sample")
	case count < was:
		return 0, fmt.Errorf("resource: a counter of the kernel went back from %v to %v", was, count)
	}
	return (count - was) / passed, nil
}

// nearer returns the use with the larger share; a limit that there is not has a
// capacity of 0.
func nearer(a, b Use) Use {
	if b.Capacity > 0 && b.Used*a.Capacity > a.Used*b.Capacity {
		return b
	}
	return a
}

type cpus struct {
	root        fs.FS
	busy, group rate
	idle        rate
}

func (m *cpus) Measure(now time.Time) (Use, error) {
	busy, idle, err := m.host()
	if err != nil {
		return Use{}, err
	}
	b, errB := m.busy.per(busy, now)
	i, errI := m.idle.per(idle, now)
	groups, errG := m.limited(now)
	if err := errors.Join(errB, errI); err != nil {
		return Use{}, err
	}
	if b+i <= 0 {
		return Use{}, fmt.Errorf("resource: /proc/stat: no ticks have passed")
	}
	all := float64(runtime.NumCPU())
	if n, err := countCPUs(m.root); err == nil {
		all = n
	}
	host := Use{Used: all * b / (b + i), Capacity: all}
	if errG != nil {
		return Use{}, errG
	}
	return nearer(host, groups), nil
}

// host returns the ticks that all processors were busy and idle.
func (m *cpus) host() (busy, idle float64, err error) {
	line, err := firstLine(m.root, "proc/stat", "cpu ")
	if err != nil {
		return 0, 0, err
	}
	ticks := numbers(line)
	if len(ticks) < 5 {
		return 0, 0, fmt.Errorf("resource: /proc/stat: %q", line)
	}
	// user nice system idle iowait irq softirq steal; guests are in user and nice.
	for i, t := range ticks[:min(len(ticks), 8)] {
		if i == 3 || i == 4 {
			idle += t
		} else {
			busy += t
		}
	}
	return busy, idle, nil
}

func countCPUs(root fs.FS) (n float64, err error) {
	b, err := fs.ReadFile(root, "proc/stat")
	for line := range strings.Lines(string(b)) {
		if len(line) > 3 && strings.HasPrefix(line, "cpu") && line[3] != ' ' {
			n++
		}
	}
	if n == 0 && err == nil {
		err = errors.New("resource: /proc/stat: no processors")
	}
	return n, err
}

// limited returns the use of the tightest limit of the control groups, if there is.
func (m *cpus) limited(now time.Time) (Use, error) {
	best, dir := 0.0, ""
	for d := range groups(m.root) {
		f := fields(m.root, d+"/cpu.max")
		if len(f) != 2 || f[0] == "max" {
			continue
		}
		quota, period := number(f[0]), number(f[1])
		if quota > 0 && period > 0 && (best == 0 || quota/period < best) {
			best, dir = quota/period, d
		}
	}
	if best == 0 {
		return Use{}, nil
	}
	line, err := firstLine(m.root, dir+"/cpu.stat", "usage_usec")
	if err != nil {
		return Use{}, err
	}
	used, err := m.group.per(number(strings.TrimSpace(line))/1e6, now)
	return Use{Used: used, Capacity: best}, err
}

type memory struct{ root fs.FS }

func (m memory) Measure(time.Time) (Use, error) {
	total, errT := kibibytes(m.root, "MemTotal:")
	free, errF := kibibytes(m.root, "MemAvailable:")
	if err := errors.Join(errT, errF); err != nil {
		return Use{}, err
	}
	use := Use{Used: total - free, Capacity: total}
	for d := range groups(m.root) {
		limit, current := fields(m.root, d+"/memory.max"), fields(m.root, d+"/memory.current")
		if len(limit) != 1 || len(current) != 1 || limit[0] == "max" {
			continue
		}
		cached := 0.0
		if line, err := firstLine(m.root, d+"/memory.stat", "inactive_file"); err == nil {
			cached = number(strings.TrimSpace(line))
		}
		use = nearer(use, Use{Used: max(number(current[0])-cached, 0), Capacity: number(limit[0])})
	}
	return use, nil
}

func kibibytes(root fs.FS, key string) (float64, error) {
	line, err := firstLine(root, "proc/meminfo", key)
	if err != nil {
		return 0, err
	}
	if n := numbers(line); len(n) == 1 {
		return n[0] * 1024, nil
	}
	return 0, fmt.Errorf("resource: /proc/meminfo: %s%q", key, line)
}

type disk struct {
	root   fs.FS
	device string
	busy   map[string]*rate
}

func (m *disk) Measure(now time.Time) (Use, error) {
	stats, err := fs.ReadFile(m.root, "proc/diskstats")
	if err != nil {
		return Use{}, fmt.Errorf("resource: %w", err)
	}
	if m.busy == nil {
		m.busy = map[string]*rate{}
	}
	most, found := -1.0, fmt.Errorf("resource: /proc/diskstats: no disk %s", m.device)
	for line := range strings.Lines(string(stats)) {
		// major minor name, reads: 4 numbers, writes: 4, in flight, milliseconds busy
		f := strings.Fields(line)
		if len(f) < 13 || !m.wanted(f[2]) {
			continue
		}
		if m.busy[f[2]] == nil {
			m.busy[f[2]] = &rate{}
		}
		share, err := m.busy[f[2]].per(number(f[12])/1000, now)
		if err != nil {
			found = err
			continue
		}
		most = max(most, share)
	}
	if most < 0 {
		return Use{}, found
	}
	return Use{Used: min(most, 1), Capacity: 1}, nil // ticks are rounded
}

// wanted reports whether a device is one to measure: a whole disk that is none of
// memory or of a file.
func (m *disk) wanted(name string) bool {
	if m.device != "" {
		return name == m.device
	}
	for _, virtual := range []string{"loop", "ram", "zram", "fd", "sr"} {
		if strings.HasPrefix(name, virtual) {
			return false
		}
	}
	_, err := fs.Stat(m.root, "sys/block/"+name)
	return err == nil
}

type network struct {
	root     fs.FS
	ifname   string
	capacity float64
	rx, tx   rate
	last     string // the interface that rx and tx are of
}

func (m *network) Measure(now time.Time) (Use, error) {
	name := m.ifname
	if name == "" {
		if name = defaultInterface(m.root); name == "" {
			return Use{}, errors.New("resource: there is no default route: name the interface")
		}
	}
	if name != m.last {
		m.rx, m.tx, m.last = rate{}, rate{}, name
	}
	dir := "sys/class/net/" + name
	in, out := fields(m.root, dir+"/statistics/rx_bytes"), fields(m.root, dir+"/statistics/tx_bytes")
	if len(in) != 1 || len(out) != 1 {
		return Use{}, fmt.Errorf("resource: no statistics of interface %q", name)
	}
	rx, errR := m.rx.per(number(in[0]), now)
	tx, errT := m.tx.per(number(out[0]), now)
	capacity := m.capacity
	if capacity <= 0 {
		if speed := fields(m.root, dir+"/speed"); len(speed) == 1 {
			capacity = number(speed[0]) * 1e6 / 8
		}
	}
	if !(capacity > 0) {
		return Use{}, fmt.Errorf("resource: interface %q does not say how fast it is: state it", name)
	}
	return Use{Used: max(rx, tx), Capacity: capacity}, errors.Join(errR, errT)
}

// defaultInterface returns the interface of the IPv4 default route, or "".
func defaultInterface(root fs.FS) string {
	b, _ := fs.ReadFile(root, "proc/net/route")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 8 && f[1] == "00000000" && f[7] == "00000000" {
			return f[0]
		}
	}
	return ""
}

type acceptQueue struct {
	root fs.FS
	port uint16
}

// listenState is that of a listening socket in /proc/net/tcp; such come first there.
const listenState = "0A"

func (m acceptQueue) Measure(time.Time) (Use, error) {
	depth := fields(m.root, "proc/sys/net/core/somaxconn")
	if len(depth) != 1 {
		return Use{}, errors.New("resource: /proc/sys/net/core/somaxconn cannot be read")
	}
	var use Use
	for _, file := range []string{"proc/net/tcp", "proc/net/tcp6"} {
		waiting, sockets, err := m.listening(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // IPv6 may be off
			return Use{}, fmt.Errorf("resource: %w", err)
		}
		use.Used += waiting
		use.Capacity += float64(sockets) * number(depth[0])
	}
	if use.Capacity == 0 {
		return Use{}, fmt.Errorf("resource: nobody listens on TCP port %d", m.port)
	}
	return use, nil
}

func (m acceptQueue) listening(file string) (waiting float64, sockets int, err error) {
	f, err := m.root.Open(file)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// number: local_address:port remote state tx_queue:rx_queue ...
		f := strings.Fields(lines.Text())
		if len(f) < 5 || f[0] == "sl" {
			continue
		}
		if f[3] != listenState {
			break
		}
		_, port, _ := strings.Cut(f[1], ":")
		_, queue, _ := strings.Cut(f[4], ":")
		if n, err := strconv.ParseUint(port, 16, 16); err != nil || uint16(n) != m.port {
			continue
		}
		n, err := strconv.ParseUint(queue, 16, 32)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %q", file, lines.Text())
		}
		waiting += float64(n)
		sockets++
	}
	return waiting, sockets, lines.Err()
}

// groups yields the control groups (version 2) of this process, from its own to that
// below the root.
func groups(root fs.FS) func(yield func(dir string) bool) {
	return func(yield func(string) bool) {
		b, _ := fs.ReadFile(root, "proc/self/cgroup")
		for line := range strings.Lines(string(b)) {
			own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
			if !ok {
				continue
			}
			// In a namespace of its own, the root has limits too.
			for own = path.Join("/", own); yield("sys/fs/cgroup"+strings.TrimSuffix(own, "/")) && own != "/"; {
				own = path.Dir(own)
			}
			return
		}
	}
}

// firstLine returns what follows the key in the first line that begins with it.
func firstLine(root fs.FS, file, key string) (string, error) {
	b, err := fs.ReadFile(root, file)
	if err != nil {
		return "", fmt.Errorf("resource: %w", err)
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok {
			return string(rest), nil
		}
	}
	return "", fmt.Errorf("resource: %s: no %q", file, key)
}

func fields(root fs.FS, file string) []string {
	b, err := fs.ReadFile(root, file)
	if err != nil {
		return nil
	}
	return strings.Fields(string(b))
}

// numbers returns those in a line; what is none is left out.
func numbers(line string) (list []float64) {
	for _, f := range strings.Fields(line) {
		if x, err := strconv.ParseFloat(f, 64); err == nil {
			list = append(list, x)
		}
	}
	return slices.Clip(list)
}

// number returns a number, or -1, which no meter takes for a capacity.
func number(s string) float64 {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return -1
	}
	return x
}
