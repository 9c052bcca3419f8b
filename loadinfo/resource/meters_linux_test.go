package resource

import (
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
)

// files makes a file system of names and contents.
func files(list map[string]string) fstest.MapFS {
	root := fstest.MapFS{}
	for name, s := range list {
		root[name] = &fstest.MapFile{Data: []byte(s)}
	}
	return root
}

// step is what the files are at a second, and what a meter says then.
type step struct {
	files map[string]string
	want  Use
	err   string
}

func check(t *testing.T, meter func(root fs.FS) Meter, base map[string]string, steps []step) {
	t.Helper()
	root := files(base)
	m := meter(root)
	for i, s := range steps {
		for name, f := range files(s.files) {
			root[name] = f
		}
		got, err := m.Measure(at(i))
		if s.err != "" {
			require.ErrorContains(t, err, s.err, "step %d", i)
			continue
		}
		require.NoError(t, err, "step %d", i)
		require.InDelta(t, s.want.Used, got.Used, 1e-6, "step %d", i)
		require.InDelta(t, s.want.Capacity, got.Capacity, 1e-6, "step %d", i)
	}
}

const (
	statA = "cpu  100 0 100 800 0 0 0 0 50 0\ncpu0 1 1\ncpu1 1 1\nintr 5\n"
	statB = "cpu  150 10 120 900 20 0 0 0 90 0\ncpu0 1 1\ncpu1 1 1\nintr 5\n" // 80 busy, 120 idle
)

func TestCPUs(t *testing.T) {
	cpu := func(root fs.FS) Meter { return &cpus{root: root} }
	t.Run("host", func(t *testing.T) {
		check(t, cpu, nil, []step{
			{files: nil, err: "proc/stat"},
			{files: map[string]string{"proc/stat": statA}, err: "second sample"},
			{files: map[string]string{"proc/stat": statB}, want: Use{0.8, 2}},
			{files: map[string]string{"proc/stat": statB}, err: "no ticks"},
			{files: map[string]string{"proc/stat": statA}, err: "went back"},
			{files: map[string]string{"proc/stat": "cpu 1 2\n"}, err: "/proc/stat"},
			{files: map[string]string{"proc/stat": "cpu  x y z u v\n"}, err: "/proc/stat"},
		})
	})
	group := func(quota, usage string) map[string]string {
		return map[string]string{
			"proc/self/cgroup": "1:name=systemd:/x\n0::/a/b\n", "proc/stat": statA,
			"sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
			"sys/fs/cgroup/a/cpu.max":   quota, "sys/fs/cgroup/a/cpu.stat": "usage_usec " + usage + "\nuser_usec 5\n",
		}
	}
	for _, tt := range []struct {
		name, quota string
		want        Use
		err         string
	}{
		{"a limit of half a CPU", "50000 100000\n", Use{0.4, 0.5}, ""},
		{"a limit that is far", "200000 100000\n", Use{0.8, 2}, ""},
		{"no limit", "max 100000\n", Use{0.8, 2}, ""},
		{"a limit that makes no sense", "x y\n", Use{0.8, 2}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check(t, cpu, group(tt.quota, "1000000"), []step{
				{err: "second sample"},
				{files: map[string]string{"proc/stat": statB, "sys/fs/cgroup/a/cpu.stat": "usage_usec 1400000\n"}, want: tt.want},
			})
		})
	}
	t.Run("a limit whose use cannot be read", func(t *testing.T) {
		check(t, cpu, group("50000 100000\n", "1"), []step{
			{err: "second sample"},
			{files: map[string]string{"proc/stat": statB, "sys/fs/cgroup/a/cpu.stat": ""}, err: "usage_usec"},
		})
	})
}

func TestMemory(t *testing.T) {
	host := "MemTotal:       1000 kB\nMemFree:        100 kB\nMemAvailable:    400 kB\n"
	mem := func(root fs.FS) Meter { return memory{root} }
	check(t, mem, nil, []step{{err: "proc/meminfo"}})
	check(t, mem, map[string]string{"proc/meminfo": "MemTotal: 1000 kB\n"}, []step{{err: "MemAvailable"}})
	check(t, mem, map[string]string{"proc/meminfo": host}, []step{{want: Use{600 << 10, 1000 << 10}}})
	group := map[string]string{
		"proc/meminfo": host, "proc/self/cgroup": "0::/a\n",
		"sys/fs/cgroup/a/memory.max": "1000\n", "sys/fs/cgroup/a/memory.current": "950\n", "sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 50\n",
	}
	check(t, mem, group, []step{
		{want: Use{900, 1000}},
		{files: map[string]string{"sys/fs/cgroup/a/memory.current": "300\n"}, want: Use{600 << 10, 1000 << 10}},
		{files: map[string]string{"sys/fs/cgroup/a/memory.max": "max\n"}, want: Use{600 << 10, 1000 << 10}},
	})
	group["proc/self/cgroup"] = "0::/\n" // in a namespace of its own
	group["sys/fs/cgroup/memory.max"], group["sys/fs/cgroup/memory.current"] = "100\n", "99\n"
	check(t, mem, group, []step{{want: Use{99, 100}}})
}

func TestDisk(t *testing.T) {
	stats := func(sda, sdb, loop string) map[string]string {
		line := func(name, ms string) string { return "8 0 " + name + " 1 2 3 4 5 6 7 8 0 " + ms + " 99\n" }
		return map[string]string{"proc/diskstats": line("sda", sda) + line("sda1", "999999") + line("sdb", sdb) + line("loop0", loop) + "junk\n"}
	}
	base := map[string]string{"sys/block/sda/size": "1", "sys/block/sdb/size": "1", "sys/block/loop0/size": "1"}
	busiest := func(root fs.FS) Meter { return &disk{root: root} }
	check(t, busiest, base, []step{
		{err: "diskstats"},
		{files: stats("1000", "1000", "0"), err: "second sample"},
		{files: stats("1250", "1600", "1000"), want: Use{0.6, 1}},
		{files: stats("2251", "1600", "1000"), want: Use{1, 1}},
		{files: stats("0", "1700", "1000"), want: Use{0.1, 1}},
		{files: stats("0", "0", "0"), want: Use{0, 1}},
	})
	one := func(root fs.FS) Meter { return &disk{root: root, device: "sda1"} }
	check(t, one, base, []step{{files: stats("1", "1", "1"), err: "second"}, {want: Use{0, 1}}})
	none := func(root fs.FS) Meter { return &disk{root: root, device: "nvme0n1"} }
	check(t, none, base, []step{{files: stats("1", "1", "1"), err: "no disk nvme0n1"}})
}

func TestNetwork(t *testing.T) {
	counters := func(rx, tx string) map[string]string {
		return map[string]string{"sys/class/net/eth0/statistics/rx_bytes": rx + "\n", "sys/class/net/eth0/statistics/tx_bytes": tx + "\n"}
	}
	route := "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\nlo\t0000007F\t0\t1\t0\t0\t0\t000000FF\neth0\t00000000\t0100000A\t3\t0\t0\t0\t00000000\n"
	auto := func(root fs.FS) Meter { return &network{root: root} }
	check(t, auto, nil, []step{{err: "no default route"}})
	check(t, auto, map[string]string{"proc/net/route": route, "sys/class/net/eth0/speed": "1000\n"}, []step{
		{err: "no statistics"},
		{files: counters("1000", "500"), err: "second sample"},
		{files: counters("2000", "10500"), want: Use{10_000, 125_000_000}},
		{files: counters("0", "0"), err: "went back"},
	})
	veth := func(root fs.FS) Meter { return &network{root: root, ifname: "eth0"} }
	check(t, veth, counters("1", "1"), []step{{err: "how fast"}})
	check(t, veth, map[string]string{"sys/class/net/eth0/speed": "-1\n"}, []step{{files: counters("1", "1"), err: "how fast"}})
	stated := func(root fs.FS) Meter { return &network{root: root, ifname: "eth0", capacity: 1e6} }
	check(t, stated, counters("1", "1"), []step{{err: "second"}, {files: counters("5", "1"), want: Use{4, 1e6}}})
}

func TestAcceptQueue(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when\n"
	line := func(port, state, rx string) string {
		return "   0: 00000000:" + port + " 00000000:0000 " + state + " 00000000:" + rx + " 00:00000000 00000000\n"
	}
	queue := func(root fs.FS) Meter { return acceptQueue{root, 80} }
	base := map[string]string{"proc/sys/net/core/somaxconn": "4096\n"}
	check(t, queue, nil, []step{{err: "somaxconn"}})
	check(t, queue, base, []step{
		{err: "nobody listens"},
		{files: map[string]string{"proc/net/tcp": head + line("0050", "0A", "00000010") + line("1F90", "0A", "000000FF") + line("0050", "01", "00000099")}, want: Use{16, 4096}},
		{files: map[string]string{"proc/net/tcp6": head + line("0050", "0A", "00000001")}, want: Use{17, 8192}},
		{files: map[string]string{"proc/net/tcp": head + line("0050", "0A", "junk")}, err: "junk"},
	})
}

// The meters of this machine say something that can be, or why they do not.
func TestThisMachine(t *testing.T) {
	for name, m := range map[string]Meter{
		"cpu": CPUs(), "memory": UsedMemory(), "disk": BusyDisk(""), "network": NetworkRate("lo", 1e9), "queue": AcceptQueue(1),
	} {
		_, _ = m.Measure(at(0))
		use, err := m.Measure(time.Now())
		t.Log(name, use, err)
		if err == nil {
			require.Positive(t, use.Capacity, name)
			require.GreaterOrEqual(t, use.Used, 0.0, name)
			require.LessOrEqual(t, use.Used, use.Capacity*1.01, name)
		}
	}
	use, err := UsedMemory().Measure(time.Now())
	require.NoError(t, err)
	require.Positive(t, use.Used)
}

// FuzzMeters gives the meters files of any content; nothing is known of it, or
// something that can be.
func FuzzMeters(f *testing.F) {
	for _, name := range []string{"/proc/stat", "/proc/meminfo", "/proc/diskstats", "/proc/net/route", "/proc/net/tcp"} {
		if b, err := os.ReadFile(name); err == nil {
			f.Add(string(b))
		}
	}
	f.Add(statB)
	f.Add("0::/\n1000 100\n")
	f.Fuzz(func(t *testing.T, s string) {
		root := fstest.MapFS{}
		names := strings.Fields("proc/stat proc/meminfo proc/diskstats proc/net/route proc/net/tcp proc/self/cgroup proc/sys/net/core/somaxconn " +
			"sys/fs/cgroup/cpu.max sys/fs/cgroup/cpu.stat sys/fs/cgroup/memory.max sys/fs/cgroup/memory.current sys/class/net/eth0/speed " +
			"sys/class/net/eth0/statistics/rx_bytes sys/class/net/eth0/statistics/tx_bytes")
		for _, name := range names {
			root[name] = &fstest.MapFile{Data: []byte(s)}
		}
		r := NewRegistry()
		for name, m := range map[string]Meter{
			CPU: &cpus{root: root}, Memory: memory{root}, Disk: &disk{root: root, device: "sda"},
			Network: &network{root: root, ifname: "eth0"}, "queue": acceptQueue{root, 80}, "default": &network{root: root},
		} {
			require.NoError(t, r.Add(Resource{Name: name, Meter: m, Model: &EWMA{}}))
		}
		r.Sample(at(0))
		r.Sample(at(1))
		for _, x := range r.Readings(at(1)) {
			if x.Err == nil {
				require.GreaterOrEqual(t, x.Share(), 0.0)
			} else {
				require.InDelta(t, -1, x.Share(), 0)
			}
		}
	})
}
