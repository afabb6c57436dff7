// Package freeport finds a port for a program that is started later, and that cannot be handed a listener.
package freeport

import (
	"net"
	"strconv"
)

// The ports are below those that Linux gives to connections and to listeners on port 0, 32768 and up: until
// the program has started, none of these gets its port.
const (
	lowest = 20_000
	pairs  = 6_000
)

// Nth is the n-th port of loopback that may be given, and whether it is free now, and the next one too. Another n has another
// one, except when it is a multiple of 6000 away.
func Nth(n uint32) (port uint16, free bool) {
	port = uint16(lowest + 2*(n%pairs))
	return port, unused(port) && unused(port+1)
}

func unused(port uint16) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	return err == nil && l.Close() == nil
}
