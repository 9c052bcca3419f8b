package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is USER_HZ, the unit of CPU times in /proc: 100 on every Linux
// port that Go has.
const ticksPerSecond = 100

// A cpuTime is processor time in seconds.
type cpuTime struct{ busy, idle float64 }

// machineCPU returns what all processors have done since boot: in processes, in the
// kernel and in its interrupts. So it counts what no process is charged for.
func machineCPU() (cpuTime, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTime{}, err
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 9 || fields[0] != "cpu" {
		return cpuTime{}, errors.New("/proc/stat: no line of all processors")
	}
	var t cpuTime
	for i, f := range fields[1:9] { // guest times are part of user time
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return cpuTime{}, fmt.Errorf("/proc/stat: %w", err)
		}
		if i == 3 || i == 4 { // idle, and idle while something waits for a disk
			t.idle += float64(n) / ticksPerSecond
		} else {
			t.busy += float64(n) / ticksPerSecond
		}
	}
	return t, nil
}

func (t cpuTime) since(o cpuTime) cpuTime { return cpuTime{t.busy - o.busy, t.idle - o.idle} }

// tree returns the processes and their children, which nginx works in.
func tree(children []*child) (pids []int) {
	for _, c := range children {
		pids = append(pids, c.cmd.Process.Pid)
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.cmd.Process.Pid))
		for _, list := range lists {
			b, _ := os.ReadFile(list) // gone: it has none
			for _, f := range strings.Fields(string(b)) {
				if pid, err := strconv.Atoi(f); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids
}

// processCPU returns the processor time of processes, in seconds. It is the scheduler's
// own: /proc/PID/stat cuts it to ticks, which is as much as an idle process needs in a
// second or two.
func processCPU(pids []int) (total float64, err error) {
	const scheduler = 2 // CPUCLOCK_SCHED of the kernel's posix-timers.h
	for _, pid := range pids {
		var t unix.Timespec
		if err := unix.ClockGettime(int32(^pid<<3|scheduler), &t); err != nil {
			return 0, fmt.Errorf("processor time of %d: %w", pid, err)
		}
		total += float64(t.Nano()) / 1e9
	}
	return total, nil
}

// resident returns the memory of processes, in bytes.
func resident(pids []int) (total float64, err error) {
	for _, pid := range pids {
		n, err := kilobytes(fmt.Sprintf("/proc/%d/status", pid), "VmRSS:")
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// kernelSlab returns the memory that the kernel keeps its objects in, sockets and
// connection tracking among them, in bytes.
func kernelSlab() (float64, error) { return kilobytes("/proc/meminfo", "Slab:") }

// kilobytes returns the value of a line "name  value kB", in bytes.
func kilobytes(file, name string) (float64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == name {
			n, err := strconv.ParseUint(fields[1], 10, 64)
			return float64(n) * 1024, err
		}
	}
	return 0, fmt.Errorf("%s: no %s", file, name)
}
