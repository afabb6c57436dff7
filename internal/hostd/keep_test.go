package hostd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

const agentToken = "hermit_0123456789abcdef"

// keptSpec is an agent that runs a shell command.
func keptSpec(name, script string) jail.Kept {
	s := spec(script)
	s.Kind, s.Lifetime = jail.KindAgent, jail.LifetimeKeep
	s.Agent = &jail.Agent{Tenant: "default", Name: name, State: jail.MinState, Token: true}
	s.Limits.WallClock = jail.MaxWallClock
	return jail.Kept{Spec: s, Restart: jail.RestartAlways, Revision: "r1"}
}

func keep(t *testing.T, c *Client, k jail.Kept) jail.KeptStatus {
	t.Helper()
	if err := c.Keep(t.Context(), k, agentToken); err != nil {
		t.Fatalf("keep: %v", err)
	}
	return keptStatus(t, c, k.Spec.Agent.Name)
}

func keptStatus(t *testing.T, c *Client, name string) jail.KeptStatus {
	t.Helper()
	_, all, err := c.Kept(t.Context(), 0, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Spec.Agent.Name == name {
			return s
		}
	}
	return jail.KeptStatus{}
}

func TestClientIsAKeeper(t *testing.T) {
	f := newFixture(t, nil)
	c := NewClient(f.socket, nil) // without a hold: agents are nobody's
	missing := keptSpec("none", "exit")
	missing.Spec.Template = "missing"
	broken := keptSpec("bad", "exit")
	broken.Spec.Limits.Memory = 0
	good := keptSpec("bot", "echo started; while read line; do echo got $line; done")
	errs, err := c.CheckKept(t.Context(), []jail.Kept{good, missing, broken})
	if err != nil || len(errs) != 3 || errs[0] != nil || problem.CodeOf(errs[1]) != problem.TemplateMissing || problem.CodeOf(errs[2]) != problem.BadLimit {
		t.Errorf("check says %v, %v", errs, err)
	}
	if err := c.Keep(t.Context(), good, ""); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("without a token: %v", err)
	}
	s := keep(t, c, good)
	if s.Phase != jail.PhaseRunning || s.Revision != "r1" || !s.Addr.IsValid() || s.Usage == nil || s.Jail.InContainer() {
		t.Fatalf("it stands at %+v", s)
	}
	if n, err := c.Type(t.Context(), "default", "bot", []byte("hello\n")); n != 6 || err != nil {
		t.Errorf("type: %d, %v", n, err)
	}
	log := func() string {
		chunk, err := c.ReadLog(t.Context(), jail.LogRequest{Tenant: "default", Name: "bot", Stream: jail.Stdout, Wait: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return string(chunk.Data)
	}
	testenv.Eventually(t, patience, func() bool { return log() == "started\ngot hello\n" }, "the log is %q", log())
	if has, err := c.HasToken(t.Context(), "default", "bot"); !has || err != nil {
		t.Errorf("has token: %v, %v", has, err)
	}
	if err := c.SetToken(t.Context(), "default", "bot", "another"); err != nil {
		t.Error(err)
	}
	if got, _ := f.host.Token(s.Jail); got != "another" {
		t.Errorf("the jail has the token %q", got)
	}
	if err := c.RestartKept(t.Context(), "default", "bot"); err != nil || keptStatus(t, c, "bot").Jail == s.Jail {
		t.Errorf("restart: %v", err)
	}
	all := make([]jail.Kept, 0, 40) // more than one request can carry
	for i := range cap(all) {
		k := keptSpec(fmt.Sprintf("n%d", i), "exit")
		k.Spec.HomeFiles = []jail.File{{Path: "x", Data: make([]byte, 100_000)}}
		if i%2 == 1 {
			k.Spec.Template = "missing"
		}
		all = append(all, k)
	}
	if errs, err = c.CheckKept(t.Context(), all); err != nil || len(errs) != len(all) || errs[38] != nil || errs[39] == nil {
		t.Errorf("%d answers for %d, %v", len(errs), len(all), err)
	}
	if err := c.Drop(t.Context(), "default", "bot", jail.DropOptions{}); err != nil {
		t.Fatal(err)
	}
	f.empty(t)
	if n := len(f.host.States()); n != 0 {
		t.Errorf("%d volumes are left", n)
	}
	if err := c.RestartKept(t.Context(), "default", "bot"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("one that was dropped: %v", err)
	}
}

func TestKeptJailsAreMadeByKeepAlone(t *testing.T) {
	f := newFixture(t, nil)
	if _, err := f.client(t).Create(t.Context(), keptSpec("bot", "exec cat").Spec); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("an owner has made a jail that is kept: %v", err)
	}
	image := spec("exec cat")
	image.Template, image.Image, image.Kind = "", "busybox", jail.KindAgent
	if _, err := f.client(t).Create(t.Context(), image); problem.CodeOf(err) != problem.Unsupported {
		t.Errorf("a container without an engine: %v", err)
	}
	f.empty(t)
}

// execIn starts a shell command in the jail of an agent.
func execIn(t *testing.T, c *Client, name jail.Name, script string) *jail.Running {
	t.Helper()
	r, err := c.ExecIn(t.Context(), name, jail.Program{Argv: []string{"/bin/sh", "-c", script}, Wire: jail.WireStdio})
	if err != nil {
		t.Fatalf("exec: %v", err)
	}
	t.Cleanup(r.End)
	t.Cleanup(r.Stdio.Close)
	return r
}

func TestExecInHandsTheStdioOverAndSaysHowItEnded(t *testing.T) {
	f := newFixture(t, nil)
	c := NewClient(f.socket, nil)
	s := keep(t, c, keptSpec("bot", "exec sleep 1000"))
	r := execIn(t, c, s.Jail, "read line; echo got $line; echo no >&2; exit 7")
	fmt.Fprintln(r.Stdio.In, "hello")
	out, err := io.ReadAll(r.Stdio.Out)
	if string(out) != "got hello\n" || err != nil {
		t.Errorf("stdout is %q, %v", out, err)
	}
	if text, err := io.ReadAll(r.Stdio.Err); string(text) != "no\n" || err != nil {
		t.Errorf("stderr is %q, %v", text, err)
	}
	if x, err := r.Wait(t.Context()); err != nil || x.Code != 7 {
		t.Errorf("it ended by %+v, %v", x, err)
	}
	r.End()
	r.End()
	if _, err := c.ExecIn(t.Context(), s.Jail, jail.Program{Argv: []string{"sh"}, Wire: jail.WireStdio}); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("a program without a path: %v", err)
	}
	if _, err := c.ExecIn(t.Context(), "atest99999", jail.Program{Argv: []string{"/bin/true"}, Wire: jail.WireStdio}); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("a jail that is not there: %v", err)
	}
}

func TestExecEndsWithItsCallerAndNotWithTheStart(t *testing.T) {
	f := newFixture(t, nil)
	c := NewClient(f.socket, nil)
	s := keep(t, c, keptSpec("bot", "exec sleep 1000"))
	ctx, cancel := context.WithCancel(t.Context())
	r, err := c.ExecIn(ctx, s.Jail, jail.Program{Argv: []string{"/bin/sh", "-c", "trap '' TERM HUP; while read line; do echo $line; done; exec sleep 1000"}, Wire: jail.WireStdio})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stdio.Close()
	cancel()
	if _, err := r.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that is given up: %v", err)
	}
	fmt.Fprintln(r.Stdio.In, "started")
	out := bufio.NewReader(r.Stdio.Out)
	if line, err := out.ReadString('\n'); line != "started\n" {
		t.Fatal("it ends with the context of its start", line, err)
	}
	r.End()
	if _, err := r.Wait(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended by itself: %v", err)
	}
	others := []unix.PollFd{{Fd: int32(r.Stdio.Out.Fd()), Events: unix.POLLIN}}
	if _, err := unix.Poll(others, 0); err != nil || others[0].Revents&unix.POLLHUP == 0 {
		t.Errorf("it runs on, and has its stdout: %v", err)
	}
}

func TestDialInHandsAConnectionOver(t *testing.T) {
	f := newFixture(t, nil)
	c := NewClient(f.socket, nil)
	s := keep(t, c, keptSpec("bot", "exec sleep 1000"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	file, err := c.DialIn(t.Context(), s.Jail, port)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(file)
	_ = file.Close() // net has its own
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	fmt.Fprintln(peer, "hello")
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "hello\n" {
		t.Error(line, err)
	}
	if _, err := c.DialIn(t.Context(), s.Jail, 0); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("port 0: %v", err)
	}
}

// Calls that wait for news end when the host daemon does, and jails run on.
func TestKeptJailsRunOnWhenTheHostDaemonEnds(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.EndJails = false })
	c := NewClient(f.socket, nil)
	s := keep(t, c, keptSpec("bot", "exec cat"))
	version, _, err := c.Kept(t.Context(), 0, false)
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, _, err := c.Kept(context.Background(), version, false)
		waited <- err
	}()
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	<-waited // with an answer or an error, and soon
	if !f.host.Runs(s.Jail) {
		t.Error("its jail ended")
	}
	f2 := startServer(t, f.host, f.socket, nil) // ends the jail with the test
	c = NewClient(f2.socket, nil)
	testenv.Eventually(t, patience, func() bool { return keptStatus(t, c, "bot").Phase == jail.PhaseRunning }, "it does not run")
	if got := keptStatus(t, c, "bot"); got.Jail != s.Jail {
		t.Errorf("jail %s became %s", s.Jail, got.Jail)
	} else if got.Since.After(s.Since) {
		t.Errorf("it ran since %s, and says %s", s.Since, got.Since)
	}
}

func TestTokensAreInNoLogOfTheHostDaemon(t *testing.T) {
	socket := newSocket(t)
	path := filepath.Join(filepath.Dir(socket), "log")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	f := newFixture(t, func(o *Options) { o.Log = debugLog(file) })
	c := NewClient(f.socket, nil)
	keep(t, c, keptSpec("bot", "exec cat"))
	_ = c.SetToken(t.Context(), "default", "bot", agentToken+" x") // refused, and said so
	if err := c.Drop(t.Context(), "default", "bot", jail.DropOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), "op=keep") || strings.Contains(string(data), agentToken) {
		t.Errorf("the log is\n%s\n%v", data, err)
	}
}
