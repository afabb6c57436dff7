package testenv

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// SentAgain is how many packets of TCP a network has sent once more, by what /proc/PID/net/snmp of a process in it says. The first
// packet of a connection is when it was not answered for a second, so that what is refused at once leaves the number as it is.
func SentAgain(snmp []byte) (int, error) {
	_, rest, _ := strings.Cut(string(snmp), "\nTcp: ")
	names, rest, _ := strings.Cut(rest, "\nTcp: ")
	values, _, _ := strings.Cut(rest, "\n")
	if i := slices.Index(strings.Fields(names), "RetransSegs"); i >= 0 && i < len(strings.Fields(values)) {
		return strconv.Atoi(strings.Fields(values)[i])
	}
	return 0, fmt.Errorf("there is no Tcp: RetransSegs in %q", snmp)
}
