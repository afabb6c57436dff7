package testenv

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestNobodyGetsAFreePortByChance(t *testing.T) {
	lowest := 32768 // Linux's own
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if lowest, err = strconv.Atoi(strings.Fields(string(text))[0]); err != nil {
			t.Fatal(err)
		}
	}
	var seen []uint16
	for range 100 {
		port := FreePort(t)
		if int(port)+1 >= lowest {
			t.Errorf("the kernel gives %d away", port)
		}
		if slices.Contains(seen, port) || slices.Contains(seen, port-1) {
			t.Errorf("%d is given twice", port)
		}
		seen = append(seen, port)
	}
}
