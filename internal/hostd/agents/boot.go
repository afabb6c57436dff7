package agents

import "os"

// BootOf reads the name of this run of the host from the kernel.
func BootOf() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil && len(data) >= 32 {
		return string(data[:min(len(data), 36)]), nil
	}
	return bootTime()
}
