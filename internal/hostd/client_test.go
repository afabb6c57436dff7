package hostd

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestWhatIsEndedWhileTheHostDaemonIsAwayEndsWhenItIsBack(t *testing.T) {
	away := func(o *Options) { o.Grace, o.EndJails = time.Hour, false }
	f := newFixture(t, away)
	c := f.client(t)
	ended, late, stays := create(t, c, spec("exec sleep 1000")), create(t, c, spec("exec sleep 1000")), create(t, c, spec("exec sleep 1000"))
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // as one that asks again does, and gives up
		if err := c.Destroy(t.Context(), ended.Name); !hasCode(err, problem.HostdUnreachable) {
			t.Fatalf("nobody is there: %v", err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Destroy(over, late.Name); !errors.Is(err, context.Canceled) {
		t.Fatalf("the caller's time is over: %v", err)
	}
	// One that does not own them leaves them alone.
	if err := NewClient(f.socket, nil).Destroy(t.Context(), stays.Name); !hasCode(err, problem.HostdUnreachable) {
		t.Fatalf("nobody is there: %v", err)
	}
	startServer(t, f.host, f.socket, func(o *Options) { o.Grace = time.Hour })
	testenv.Eventually(t, patience, func() bool { return !f.host.Runs(ended.Name) && !f.host.Runs(late.Name) }, "what was ended runs on")
	if err := c.Destroy(t.Context(), ended.Name); err != nil {
		t.Errorf("once more: %v", err)
	}
	if !f.host.Runs(stays.Name) {
		t.Error("another one has ended, too")
	}
}

// A client that is closed waits for no host daemon.
func TestClosingWaitsForNoHostDaemonThatIsAway(t *testing.T) {
	f := newFixture(t, nil)
	c := f.client(t)
	j := create(t, c, spec("exec sleep 1000"))
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	if err := c.Destroy(t.Context(), j.Name); !hasCode(err, problem.HostdUnreachable) {
		t.Fatalf("nobody is there: %v", err)
	}
	c.Close() // or the test does not end
	if err := c.Destroy(t.Context(), j.Name); !hasCode(err, problem.HostdUnreachable) {
		t.Fatalf("nobody is there: %v", err)
	}
}

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
