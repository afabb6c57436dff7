package hostd

import (
	"net"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestTheHoldIsTakenAgainAfterAHostDaemonThatRefusedIt(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Grace = time.Hour })
	c := f.client(t)
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	refuses, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: f.socket})
	if err == nil {
		err = refuses.SetDeadline(time.Now().Add(patience))
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		conn, err := refuses.Accept()
		if err != nil {
			t.Fatalf("it does not ask once more: %v", err)
		}
		if _, err := readFrame(conn, maxRequest); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(encodeAnswer(nil, problem.New(problem.Conflict, "", "another version"))); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close() // it was answered
	}
	if err := refuses.Close(); err != nil {
		t.Fatal(err)
	}
	startServer(t, f.host, f.socket, nil)
	if err := c.Destroy(t.Context(), create(t, c, spec("exec cat")).Name); err != nil {
		t.Error(err)
	}
}
