package sockmeter

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
)

// cgroupRoot returns the directory where the cgroup v2 hierarchy is mounted.
func cgroupRoot() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	return findCgroup2(f)
}

var errNoCgroup2 = errors.New(`sockmeter: no cgroup v2 hierarchy is mounted: mount one ("mount -t cgroup2 none DIR")`)

// findCgroup2 reads /proc/self/mountinfo (proc(5)) and returns the first mount
// point of a cgroup v2 hierarchy that shows its root, or else the first of any.
func findCgroup2(r io.Reader) (dir string, err error) {
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		mount, fs, ok := strings.Cut(sc.Text(), " - ")
		fields := strings.Fields(mount)
		if !ok || len(fields) < 5 || !strings.HasPrefix(fs, "cgroup2 ") {
			continue
		}
		root, at := fields[3], unescape(fields[4])
		if root == "/" {
			return at, nil
		}
		if dir == "" {
			dir = at
		}
	}
	if dir == "" {
		return "", errors.Join(errNoCgroup2, sc.Err())
	}
	return dir, nil
}

// unescape undoes the kernel's octal escapes of blanks and backslashes.
func unescape(s string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '\\')
		if i < 0 || i+4 > len(s) {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:i])
		if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
			b.WriteByte(byte(n))
		} else {
			b.WriteString(s[i : i+4])
		}
		s = s[i+4:]
	}
}
