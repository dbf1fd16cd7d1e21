package bench

import (
	"os"
	"runtime"
	"strings"
)

// A Machine is where a report was made.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"` // that this process may use
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// ThisMachine describes this one; what cannot be read stays empty.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel = strings.TrimSpace(string(release))
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	return m
}
