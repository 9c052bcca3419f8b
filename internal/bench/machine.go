package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
)

// A machine is what figures depend on.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

func thisMachine() machine {
	return machine{CPU: cpuModel(), Cores: runtime.NumCPU(), Kernel: kernelRelease(), Go: runtime.Version()}
}

func (m *machine) String() string {
	return fmt.Sprintf("%s, %d cores; %s; %s", m.CPU, m.Cores, m.Kernel, m.Go)
}

// cpuModel returns what the processor calls itself, where Linux tells.
func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func kernelRelease() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return runtime.GOOS
	}
	return "Linux " + strings.TrimSpace(string(b))
}

// ownMemory returns this process's memory in bytes, without that of files, its program
// among them, and NaN where it is not known.
func ownMemory() float64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return math.NaN()
	}
	var size, resident, shared float64
	if _, err := fmt.Sscan(string(b), &size, &resident, &shared); err != nil {
		return math.NaN()
	}
	return (resident - shared) * float64(os.Getpagesize())
}
