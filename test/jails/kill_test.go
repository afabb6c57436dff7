//go:build linux

package jails

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// TestNothingIsLeftWhenAProcessIsKilledAtAnyStep stops the host daemon before every step of a session's life, kills one
// of the processes that take part, and lets the supervisor's fresh one recover. The steps are the code's own list.
func TestNothingIsLeftWhenAProcessIsKilledAtAnyStep(t *testing.T) {
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool})
	barriers := filepath.Join(b.Config.RunDir, "barriers")
	if err := os.Mkdir(barriers, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, victim := range []string{"hostd", "serve", "chromium"} {
		for _, step := range jail.Steps() {
			if victim == "chromium" && !jailLives(step) {
				continue // nobody is in the jail before that step
			}
			if victim != "hostd" && !testenv.IsLong() && !slices.Contains(telling[victim], step) {
				continue
			}
			t.Run(victim+" at "+string(step), func(t *testing.T) {
				inner := &testkit.Installation{Instance: b.Instance, T: t, API: b.API, Idle: b.Idle}
				killed := 0
				for try := 0; try < 5 && killed == 0; try++ { // a browser whose session is closed may have ended by itself
					killed = killAt(inner, barriers, step, victim)
				}
				if killed == 0 {
					t.Error("nobody was killed: this shows nothing")
				}
			})
			if t.Failed() {
				return // what is left would fail all that follows
			}
		}
	}
}

// telling are the steps at which every run kills the victims that know little of steps: one of a kind. `make test-long` has all.
var telling = map[string][]jail.Step{
	"serve":    {jail.StepClone, jail.StepVerify, jail.StepDeliver, jail.StepAdmit, jail.StepTerminate},
	"chromium": {jail.StepVerify, jail.StepAdmit, jail.StepTerminate},
}

// killAt returns how many processes it has killed.
func killAt(b *testkit.Installation, barriers string, step jail.Step, victim string) (killed int) {
	t := b.T
	armed := filepath.Join(barriers, string(step))
	if err := os.WriteFile(armed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	disarm := func() {
		_ = os.Remove(armed + ".reached") // it is there or it is not
		if err := os.Remove(armed); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	}
	defer disarm()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, err := b.API.Open(ctx, session.OpenRequest{})
		if err == nil {
			_ = b.API.Close(ctx, s.ID, true) // it may have been killed
		}
	}()
	reached := func() bool { _, err := os.Lstat(armed + ".reached"); return err == nil }
	testenv.Eventually(t, 20*time.Second, reached, "the step %s was not reached", step)
	for _, pid := range b.Victims(victim) {
		switch err := syscall.Kill(pid, syscall.SIGKILL); err {
		case nil:
			killed++
		case syscall.ESRCH: // it ended between the look and the signal
		default:
			t.Fatalf("kill %s: %v", victim, err)
		}
	}
	disarm()
	b.Ready()
	<-done
	b.Clean(20 * time.Second)
	// The supervisor waits longer with every death in a row. This one starts from the beginning.
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return killed
}

// jailLives says whether something runs in a jail just before a step: what its start has made, and its end not yet ended.
func jailLives(step jail.Step) bool {
	return slices.Contains([]jail.Step{jail.StepVerify, jail.StepDeliver, jail.StepBegin, jail.StepAdmit,
		jail.StepTerminate}, step)
}

// TestNothingIsLeftWhenTheRuntimeIsKilled kills the OCI runtime at different moments of a start.
func TestNothingIsLeftWhenTheRuntimeIsKilled(t *testing.T) {
	runc := testenv.Tool(t, "runc")
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// The wrapper is spoken to as runc, and kills the real one after as many seconds as the file says, or is itself killed first.
	wrapper := filepath.Join(dir, "runc")
	delay := filepath.Join(dir, "delay")
	script := fmt.Sprintf(`#!/bin/sh
case " $* " in *" run "*) ;; *) exec %[1]s "$@" ;; esac
[ -s %[2]s ] || exec %[1]s "$@"
[ "$(cat %[2]s)" != first ] || kill -9 $$
%[1]s "$@" <&0 &
pid=$!
sleep "$(cat %[2]s)"
kill -9 $pid 2>/dev/null
wait $pid
`, runc, delay)
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool + "runtime: " + wrapper + "\n"})
	b.Close(b.Open(session.OpenRequest{})) // without a delay it works
	killed := func(when string) error {
		t.Helper()
		if err := os.WriteFile(delay, []byte(when), 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := b.API.Open(t.Context(), session.OpenRequest{})
		if err == nil {
			b.Close(s.ID)
		}
		b.Clean(20 * time.Second)
		return err
	}
	if err := killed("first"); err == nil {
		t.Error("a session opens whose runtime was killed before it did anything: the test shows nothing")
	}
	for ms := 0; ms <= 60; ms += 4 { // it may be done by then
		_ = killed(fmt.Sprintf("0.%03d", ms))
	}
	if err := os.Remove(delay); err != nil {
		t.Fatal(err)
	}
	b.Close(b.Open(session.OpenRequest{})) // and works again
}

// TestSessionsSurviveARestartOfTheHostDaemon kills it under an open session.
func TestSessionsSurviveARestartOfTheHostDaemon(t *testing.T) {
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool})
	id := b.Open(session.OpenRequest{})
	for _, pid := range b.Victims("hostd") {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	b.Ready()
	if _, err := b.API.Picture(t.Context(), id, browser.Screenshot{}); err != nil {
		t.Fatalf("the session does not work any more: %v\n%s", err, b.Log())
	}
	b.Close(id)
	b.Clean(10 * time.Second)
}

// TestJailsEndWithTheirOwner kills the control plane, with sessions and a warm pool, and looks whether the host daemon
// clears up by itself.
func TestJailsEndWithTheirOwner(t *testing.T) {
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool})
	for range 3 {
		b.Open(session.OpenRequest{})
	}
	for _, pid := range b.Victims("serve") {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	b.Clean(30 * time.Second)
	b.Ready()
	list, err := b.API.List(t.Context(), true)
	if err != nil || len(list) > 0 {
		t.Fatalf("a fresh control plane has sessions: %v, %v", list, err)
	}
	info, err := hostd.NewClient(hostd.SocketPath(b.Config), nil).Info(t.Context())
	if err != nil || info.Jails > 0 {
		t.Fatalf("the host daemon has %d jails, %v", info.Jails, err)
	}
}
