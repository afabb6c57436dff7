package postgres

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestServersThatFallSilentAreGivenUp: the kernel is told when to give up a connection on which nothing comes back, and the pool what to
// do meanwhile. What a URL says about it stays.
func TestServersThatFallSilentAreGivenUp(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for query, want := range map[string][2]string{
		"": {silence.String(), pingTime.String()}, "&connect_timeout=3&pool_ping_timeout=7s": {"3s", "7s"},
	} {
		config, err := parse("postgres://somebody:Xk29vTqpLw@" + listener.Addr().String() + "/clawjail?sslmode=disable" + query)
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]string{config.ConnConfig.ConnectTimeout.String(), config.PingTimeout.String()}; got != want {
			t.Errorf("%q: %q to connect and to show that it is there, want %q", query, got, want)
		}
		conn, err := config.ConnConfig.DialFunc(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		raw, err := conn.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		read := func(level, option int) (got int) {
			if err := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), level, option) }); err != nil {
				t.Error(err)
			}
			return got
		}
		probes := read(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE) + read(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL)*read(unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
		if read(unix.SOL_SOCKET, unix.SO_KEEPALIVE) == 0 || probes > 30 || read(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) != int(silence.Milliseconds()) {
			t.Errorf("%q: given up after %d s without an answer, and %d ms with something on its way", query, probes, read(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))
		}
	}
}
