package testenv

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// greeter says its name, and from where it was called, to everybody.
func greeter(t *testing.T, name string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	calls.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			calls.Go(func() {
				defer conn.Close()
				host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
				fmt.Fprintf(conn, "%s to %s\n", name, host)
				_, _ = io.Copy(io.Discard, conn) // until the caller leaves
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		calls.Wait()
	})
	return l.Addr().String()
}

func TestARelayLeadsWhereItIsTold(t *testing.T) {
	one, two := greeter(t, "one"), greeter(t, "two")
	all := new(Buffer)
	r := NewRelay(t, all)
	call := func() (net.Conn, string) {
		t.Helper()
		conn, err := net.Dial("tcp", r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		said, _ := bufio.NewReader(conn).ReadString('\n') // an error is a wire that leads nowhere
		return conn, said
	}
	if _, said := call(); said != "" {
		t.Errorf("before it leads anywhere %q answers", said)
	}
	r.Lead(one)
	first, said := call()
	if said != "one to 127.0.0.1\n" {
		t.Errorf("%q answers", said)
	}
	r.Lead(two)
	if n, err := first.Read(make([]byte, 1)); err == nil {
		t.Errorf("what came before goes on: %d", n)
	}
	if _, said := call(); said != "two to 127.0.0.1\n" {
		t.Errorf("%q answers", said)
	}
	if runtime.GOOS == "linux" { // others have one address of loopback
		r.LeadFrom(netip.MustParseAddr("127.0.1.7"), one)
		if _, said := call(); said != "one to 127.0.1.7\n" {
			t.Errorf("%q answers", said)
		}
	}
	r.Lead("")
	if _, said := call(); said != "" {
		t.Errorf("when it is cut %q answers", said)
	}
	if got := all.String(); !strings.HasPrefix(got, "one to 127.0.0.1\ntwo to 127.0.0.1\n") {
		t.Errorf("it heard %q", got)
	}
}
