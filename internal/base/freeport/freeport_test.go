package freeport

import (
	"net"
	"strconv"
	"testing"
)

func TestAPortIsFreeWhenTheNextOneIsToo(t *testing.T) {
	n := uint32(0)
	port, free := Nth(n)
	for ; !free; port, free = Nth(n) {
		if n++; n == pairs {
			t.Fatal("no port is free")
		}
	}
	for _, taken := range []uint16{port, port + 1} {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(taken))))
		if err != nil {
			t.Fatal(err)
		}
		if got, free := Nth(n); got != port || free {
			t.Errorf("%d is taken: %d is free: %v", taken, got, free)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if got, free := Nth(n); got != port || !free {
			t.Errorf("%d is not taken any more: %d is free: %v", taken, got, free)
		}
	}
}
