package sockmeter

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// message builds one netlink message.
func message(kind uint16, seq uint32, body ...byte) []byte {
	b := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	binary.NativeEndian.PutUint32(b, uint32(unix.SizeofNlMsghdr+len(body)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint32(b[8:], seq)
	return append(b, body...)
}

// diagBody builds an inet_diag_msg with the given local end and attributes.
func diagBody(local netip.AddrPort, attrs ...byte) []byte {
	b := make([]byte, sizeofMsg)
	b[0] = unix.AF_INET
	if local.Addr().Is6() {
		b[0] = unix.AF_INET6
	}
	binary.BigEndian.PutUint16(b[offSport:], local.Port())
	copy(b[offSrc:], local.Addr().AsSlice())
	return append(b, attrs...)
}

func attr(kind uint16, value byte) []byte {
	b := make([]byte, 8)
	binary.NativeEndian.PutUint16(b, 5)
	binary.NativeEndian.PutUint16(b[2:], kind)
	b[4] = value
	return b
}

func TestParse(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("[2001:db8::1]:443")
	mapped := netip.MustParseAddrPort("[::ffff:192.0.2.1]:80")
	done := message(unix.NLMSG_DONE, 1, 0, 0, 0, 0)
	good := message(sockDiagFamily, 1, diagBody(v4)...)
	for _, c := range []struct {
		name string
		in   []byte
		want []socket
		done bool
		err  error
	}{
		{name: "nothing"},
		{name: "done", in: done, done: true},
		{name: "IPv4", in: append(good[:len(good):len(good)], done...), want: []socket{{v4.Addr(), 80, false}}, done: true},
		{name: "v4-mapped", in: message(sockDiagFamily, 1, diagBody(mapped)...), want: []socket{{v4.Addr(), 80, false}}},
		{name: "IPv6 only", in: message(sockDiagFamily, 1, diagBody(v6, append(attr(8, 0), attr(attrV6Only, 1)...)...)...),
			want: []socket{{v6.Addr(), 443, true}}},
		{name: "another dump", in: message(sockDiagFamily, 2, diagBody(v4)...)},
		{name: "error", in: message(unix.NLMSG_ERROR, 1, 0xff, 0xff, 0xff, 0xff), err: unix.EPERM},
		{name: "short error", in: message(unix.NLMSG_ERROR, 1), err: errShort},
		{name: "short socket", in: message(sockDiagFamily, 1, 1, 2, 3), err: errShort},
		{name: "short message", in: good[:len(good)-1], err: errShort},
		{name: "length 0", in: make([]byte, unix.SizeofNlMsghdr), err: errShort},
		{name: "attribute of length 0", in: message(sockDiagFamily, 1, diagBody(v4, 0, 0, 0, 0)...), err: errShort},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []socket
			done, err := parse(c.in, 1, func(s socket) { got = append(got, s) })
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.done, done)
			require.Equal(t, c.want, got)
		})
	}
}

func FuzzParse(f *testing.F) {
	local := netip.MustParseAddrPort("[::]:80")
	f.Add(message(sockDiagFamily, 1, diagBody(local, attr(attrV6Only, 1)...)...))
	f.Add(message(unix.NLMSG_ERROR, 1, 1, 0, 0, 0))
	f.Add(message(unix.NLMSG_DONE, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		_, _ = parse(b, 1, func(s socket) {
			n++
			require.True(t, s.local.IsValid())
		})
		require.LessOrEqual(t, n, len(b)/(unix.SizeofNlMsghdr+sizeofMsg))
	})
}

func TestFindCgroup2(t *testing.T) {
	const (
		v1    = "31 30 0:28 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
		root  = "40 30 0:37 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
		sub   = "41 30 0:37 /sub /mnt/sub rw - cgroup2 cgroup2 rw\n"
		blank = "42 30 0:37 / /mnt/a\\040b\\134c rw - cgroup2 none rw\n"
	)
	for _, c := range []struct{ name, in, want string }{
		{"hybrid", v1 + root, "/sys/fs/cgroup/unified"},
		{"the root wins", sub + root, "/sys/fs/cgroup/unified"},
		{"a subtree alone", v1 + sub, "/mnt/sub"},
		{"escapes", blank, `/mnt/a b\c`},
		{"none", v1, ""},
		{"garbage", "cgroup2 - cgroup2 cgroup2\n\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := findCgroup2(strings.NewReader(c.in))
			require.Equal(t, c.want, got)
			if c.want == "" {
				require.ErrorIs(t, err, errNoCgroup2)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

func FuzzFindCgroup2(f *testing.F) {
	f.Add("40 30 0:37 / /a\\040b\\ rw - cgroup2 cgroup2 rw\n")
	f.Fuzz(func(t *testing.T, s string) {
		dir, err := findCgroup2(strings.NewReader(s))
		require.Equal(t, err == nil, dir != "")
	})
}

func TestSpan(t *testing.T) {
	for _, c := range []struct {
		a, b span
		want int32
	}{
		{span{0, 0}, span{0, 0}, 0},
		{span{2, 2}, span{2, 2}, 2},
		{span{1, 5}, span{3, 9}, 3},
		{span{-9, -2}, span{-4, 1}, -2},
		{span{-1, 4}, span{2, 3}, 2},
		{span{1, 1}, span{0, 0}, 0}, // they disagree
		{span{1, 1}, span{-1, 3}, 1},
	} {
		require.Equal(t, c.want, c.a.and(c.b).nearest(), "%v and %v", c.a, c.b)
	}
}

// What is closed twice may be another file the second time.
func TestCloseDiagTwice(t *testing.T) {
	d, err := openDiag()
	require.NoError(t, err)
	fd := d.fd
	require.NoError(t, d.close())
	other, err := openDiag() // gets the lowest descriptor that is free
	require.NoError(t, err)
	require.Equal(t, fd, other.fd)
	require.NoError(t, d.close())
	require.NoError(t, other.close())
}
