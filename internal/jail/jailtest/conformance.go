package jailtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// Subject is a driver under test, on a host of its own.
type Subject struct {
	Driver jail.Driver
	// Template holds /bin/sh and the usual tools.
	Template string
	// Resources lists everything that the installation has on the host.
	Resources func(context.Context) ([]jail.HostResource, error)
	// Missing is a well-formed name of this installation that no jail has.
	Missing jail.Name
	// Confines is false for a driver that runs programs without confining them.
	Confines bool
	// OneUser is true for a driver whose jails are all of the same user.
	OneUser bool
	// Slow is true for a driver whose steps are processes of a simulated host. Twenty of its jails at once, some 1500 processes,
	// are a part of make test-long; else there are six.
	Slow bool
}

// Spec is a jail that runs a shell command, with limits that no test here reaches by accident.
func (s Subject) Spec(script string) jail.Spec {
	return jail.Spec{
		Kind: jail.KindBrowser, Lifetime: jail.LifetimeOwner, Template: s.Template,
		Program: jail.Program{Argv: []string{"/bin/sh", "-c", script}, Dir: "/", Wire: jail.WireStdio},
		Limits: jail.Limits{Memory: 128 << 20, MilliCPU: 2000, Tasks: 64, Disk: 16 << 20,
			SharedMemory: 16 << 20, Files: 256, WallClock: time.Minute},
	}
}

// Run is the conformance suite: what every driver promises, whatever it is made of.
func Run(t *testing.T, make func(*testing.T) Subject) {
	for _, c := range []struct {
		promise string
		check   func(*testing.T, Subject)
	}{
		{"stdio is untouched", stdioUntouched},
		{"the program's end is reported", endReported},
		{"closing the pipes ends the jail", pipesEnd},
		{"names, addresses and uids are its own", ownEverything},
		{"destroy leaves nothing and may be repeated", destroyRepeats},
		{"destroy ends what ignores TERM", destroyStubborn},
		{"what does not exist is not found", notFound},
		{"bad specs are refused before anything is made", badSpecs},
		{"a program that is missing leaves nothing", missingProgram},
		{"a cancelled creation leaves nothing", cancelled},
		{"a jail ends when its time is up", wallClock},
		{"reaping twice is no error and touches no living jail", reapTwice},
		{"twenty at once all succeed", twentyAtOnce},
		{"staged files and environment arrive whole", staged},
	} {
		t.Run(c.promise, func(t *testing.T) {
			s := make(t)
			before := resources(t, s)
			c.check(t, s)
			Clean(t, s, before)
		})
	}
}

// Clean fails the test unless the host comes to hold what it held before.
func Clean(t *testing.T, s Subject, before []jail.HostResource) {
	t.Helper()
	var left []jail.HostResource
	testenv.Eventually(t, 10*time.Second, func() bool {
		left = Difference(before, resources(t, s))
		return len(left) == 0
	}, "left on the host: %v", &left)
}

// Difference lists what is in after and not in before.
func Difference(before, after []jail.HostResource) []jail.HostResource {
	old := map[jail.HostResource]bool{}
	for _, t := range before {
		old[t] = true
	}
	var out []jail.HostResource
	for _, t := range after {
		if !old[t] {
			out = append(out, t)
		}
	}
	return out
}

func resources(t *testing.T, s Subject) []jail.HostResource {
	t.Helper()
	list, err := s.Resources(t.Context())
	if err != nil {
		t.Fatalf("list what is on the host: %v", err)
	}
	return list
}

// Start makes a jail that runs a shell command and destroys it when the test ends.
func Start(t *testing.T, s Subject, spec jail.Spec) *jail.Jail {
	t.Helper()
	j, err := s.Driver.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() { destroy(t, s, j) })
	return j
}

func destroy(t *testing.T, s Subject, j *jail.Jail) {
	t.Helper()
	j.Stdio.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	defer cancel()
	if err := s.Driver.Destroy(ctx, j.Name); err != nil {
		t.Errorf("destroy %s: %v", j.Name, err)
	}
}

func stdioUntouched(t *testing.T, s Subject) {
	j := Start(t, s, s.Spec(`echo oops >&2; exec cat`))
	defer destroy(t, s, j)
	payload := strings.Repeat("\x00\xff{\"a\":1}\r\n", 20_000) // more than a pipe holds
	go func() {
		_, _ = io.WriteString(j.Stdio.In, payload) // a failure shows as a short read
		_ = j.Stdio.In.Close()
	}()
	out, err := io.ReadAll(j.Stdio.Out)
	if err != nil || string(out) != payload {
		t.Fatalf("stdout has %d bytes, want the %d of stdin; %v", len(out), len(payload), err)
	}
	if line, _ := bufio.NewReader(j.Stdio.Err).ReadString('\n'); line != "oops\n" {
		t.Fatalf("stderr is %q", line)
	}
}

func endReported(t *testing.T, s Subject) {
	j := Start(t, s, s.Spec(`read x; exit 7`))
	defer destroy(t, s, j)
	if st, err := s.Driver.Inspect(t.Context(), j.Name); err != nil || st.Exit != nil || st.State != jail.StateStarted {
		t.Fatalf("a running jail reports %+v, %v", st, err)
	}
	fmt.Fprintln(j.Stdio.In)
	x := wait(t, s, j)
	if x.Code != 7 || x.Cause != jail.CauseExited {
		t.Fatalf("exit is %+v, want code 7 by itself", x)
	}
}

func wait(t *testing.T, s Subject, j *jail.Jail) jail.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	x, err := s.Driver.Wait(ctx, j.Name)
	if err != nil {
		t.Fatalf("wait for %s: %v", j.Name, err)
	}
	return x
}

func pipesEnd(t *testing.T, s Subject) {
	j := Start(t, s, s.Spec(`exec cat`))
	defer destroy(t, s, j)
	j.Stdio.Close()
	if x := wait(t, s, j); x.Cause != jail.CauseExited {
		t.Fatalf("exit is %+v", x)
	}
}

func ownEverything(t *testing.T, s Subject) {
	a, b := Start(t, s, s.Spec(`exec cat`)), Start(t, s, s.Spec(`exec cat`))
	defer destroy(t, s, a)
	defer destroy(t, s, b)
	if a.Name == b.Name || a.Lease.Addr == b.Lease.Addr || a.Lease.UID == b.Lease.UID && !s.OneUser {
		t.Fatalf("two jails share something: %+v %+v", a, b)
	}
	list, err := s.Driver.List(t.Context())
	if err != nil || len(list) != 2 || list[0].Name != a.Name || list[1].Name != b.Name {
		t.Fatalf("list is %+v, %v; want both, oldest first", list, err)
	}
}

func destroyRepeats(t *testing.T, s Subject) {
	before := resources(t, s)
	j := Start(t, s, s.Spec(`exec cat`))
	if err := s.Driver.Admit(t.Context(), j.Name); err != nil {
		t.Fatalf("admit: %v", err)
	}
	if err := s.Driver.Admit(t.Context(), j.Name); err != nil {
		t.Fatalf("admit again: %v", err)
	}
	if len(Difference(before, resources(t, s))) == 0 {
		t.Fatal("the inventory does not see a running jail")
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { destroy(t, s, j) })
	}
	all.Wait()
	if left := Difference(before, resources(t, s)); len(left) > 0 {
		t.Fatalf("destroy returned and left %v", left)
	}
}

func destroyStubborn(t *testing.T, s Subject) {
	j := Start(t, s, s.Spec(`trap '' TERM; echo up; while :; do sleep 1; done`))
	if line, err := bufio.NewReader(j.Stdio.Out).ReadString('\n'); err != nil {
		t.Fatalf("first line %q: %v", line, err)
	}
	destroy(t, s, j) // which has its bound
}

func notFound(t *testing.T, s Subject) {
	n := s.Missing
	if _, err := s.Driver.Inspect(t.Context(), n); !errors.Is(err, jail.ErrNotFound) {
		t.Errorf("inspect: %v", err)
	}
	if _, err := s.Driver.Wait(t.Context(), n); !errors.Is(err, jail.ErrNotFound) {
		t.Errorf("wait: %v", err)
	}
	if err := s.Driver.Admit(t.Context(), n); !errors.Is(err, jail.ErrNotFound) {
		t.Errorf("admit: %v", err)
	}
	if err := s.Driver.Destroy(t.Context(), n); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

func badSpecs(t *testing.T, s Subject) {
	before := resources(t, s)
	for _, c := range []struct {
		what   string
		code   string
		change func(*jail.Spec)
	}{
		{"no kind", problem.BadRequest, func(p *jail.Spec) { p.Kind = "" }},
		{"no lifetime", problem.BadRequest, func(p *jail.Spec) { p.Lifetime = "" }},
		{"template with a path", problem.BadTemplate, func(p *jail.Spec) { p.Template = "../etc" }},
		{"template that is missing", problem.TemplateMissing, func(p *jail.Spec) { p.Template = "missing" }},
		{"relative program", problem.BadRequest, func(p *jail.Spec) { p.Program.Argv = []string{"sh"} }},
		{"no program", problem.BadRequest, func(p *jail.Spec) { p.Program.Argv = nil }},
		{"NUL in an argument", problem.BadRequest, func(p *jail.Spec) { p.Program.Argv[2] = "a\x00b" }},
		{"bad variable", problem.BadRequest, func(p *jail.Spec) { p.Program.Env = map[string]string{"A B": "x"} }},
		{"no memory limit", problem.BadLimit, func(p *jail.Spec) { p.Limits.Memory = 0 }},
		{"no task limit", problem.BadLimit, func(p *jail.Spec) { p.Limits.Tasks = 0 }},
		{"negative disk", problem.BadLimit, func(p *jail.Spec) { p.Limits.Disk = -1 }},
		{"no wall clock", problem.BadLimit, func(p *jail.Spec) { p.Limits.WallClock = 0 }},
		{"staged file outside", problem.BadRequest, func(p *jail.Spec) { p.HomeFiles = []jail.File{{Path: "../x"}} }},
		{"a file staged twice", problem.BadRequest, func(p *jail.Spec) { p.HomeFiles = []jail.File{{Path: "a"}, {Path: "a"}} }},
		{"a file staged below a file", problem.BadRequest, func(p *jail.Spec) {
			p.HomeFiles = []jail.File{{Path: "a"}, {Path: "a/b/c"}}
		}},
		{"a file staged where there is a folder", problem.BadRequest, func(p *jail.Spec) {
			p.HomeFiles = []jail.File{{Path: "a/b/c"}, {Path: "a/b"}}
		}},
		{"staged files too large", problem.BadRequest, func(p *jail.Spec) {
			p.HomeFiles = []jail.File{{Path: "x", Data: make([]byte, jail.MaxHomeFiles+1)}}
		}},
	} {
		spec := s.Spec(`exec cat`)
		c.change(&spec)
		j, err := s.Driver.Create(t.Context(), spec)
		if err == nil {
			destroy(t, s, j)
			t.Errorf("%s: accepted", c.what)
			continue
		}
		if !hasCode(err, c.code) {
			t.Errorf("%s: error %v does not have code %s", c.what, err, c.code)
		}
	}
	if left := Difference(before, resources(t, s)); len(left) > 0 {
		t.Fatalf("refused, and still there: %v", left)
	}
}

// hasCode looks for a problem with the code anywhere in a tree of joined errors.
func hasCode(err error, code string) bool {
	var p *problem.Error
	if errors.As(err, &p) && p.Code == code {
		return true
	}
	return strings.Contains(problem.CodeOf(err), code)
}

func missingProgram(t *testing.T, s Subject) {
	spec := s.Spec("")
	spec.Program.Argv = []string{"/bin/there-is-no-such-program"}
	j, err := s.Driver.Create(t.Context(), spec)
	if err != nil {
		return // seen at once
	}
	defer destroy(t, s, j)
	if x := wait(t, s, j); x.Code == 0 {
		t.Fatalf("a program that is missing ended with %+v", x)
	}
}

func cancelled(t *testing.T, s Subject) {
	for i := range 12 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i)*time.Millisecond/2)
		j, err := s.Driver.Create(ctx, s.Spec(`exec cat`))
		cancel()
		if err == nil {
			destroy(t, s, j)
		}
	}
}

func wallClock(t *testing.T, s Subject) {
	spec := s.Spec(`exec cat`)
	spec.Limits.WallClock = time.Second
	j := Start(t, s, spec)
	defer destroy(t, s, j)
	x := wait(t, s, j)
	if x.Cause != jail.CauseWallClock {
		t.Fatalf("exit is %+v, want cause %s", x, jail.CauseWallClock)
	}
}

func reapTwice(t *testing.T, s Subject) {
	j := Start(t, s, s.Spec(`exec cat`))
	defer destroy(t, s, j)
	for range 2 {
		r, err := s.Driver.Reap(t.Context(), jail.ReapOptions{})
		if err != nil || len(r.Findings) > 0 || r.Jails != 1 {
			t.Fatalf("reap with one good jail: %+v, %v", r, err)
		}
	}
	fmt.Fprintln(j.Stdio.In, "still here")
	if line, err := bufio.NewReader(j.Stdio.Out).ReadString('\n'); line != "still here\n" {
		t.Fatalf("after reaping the jail answers %q, %v", line, err)
	}
}

func twentyAtOnce(t *testing.T, s Subject) {
	var all sync.WaitGroup
	jails := make([]*jail.Jail, 20)
	if s.Slow && !testenv.IsLong() {
		jails = jails[:6]
	}
	for i := range jails {
		all.Go(func() {
			j, err := s.Driver.Create(t.Context(), s.Spec(`exec cat`))
			if err != nil {
				t.Errorf("create %d: %v", i, err)
				return
			}
			jails[i] = j
		})
	}
	all.Wait()
	seen := map[string]bool{}
	for _, j := range jails {
		if j == nil {
			continue
		}
		if seen[j.Lease.Addr.String()] || seen[string(j.Name)] {
			t.Errorf("%s or its address is used twice", j.Name)
		}
		seen[j.Lease.Addr.String()], seen[string(j.Name)] = true, true
		all.Go(func() { destroy(t, s, j) })
	}
	all.Wait()
}

func staged(t *testing.T, s Subject) {
	if !s.Confines {
		return // nor does it stage: there is no jail to stage into
	}
	spec := s.Spec(`printf '%s|' "$TRICKY" "$LANG" "${TZ-none}" "$PWD"; read -r text <"$HOME/.config/a.b" || :; printf %s "$text"`)
	spec.Program.Dir = "/tmp"
	// Where the program finds others is its own affair: its home is filled all the same.
	spec.Program.Env = map[string]string{"TRICKY": "a'b\"c\n$(echo no)`no`\\", "PATH": "/nowhere"}
	spec.Program.Without = []string{"TZ"}
	spec.HomeFiles = []jail.File{{Path: ".config/a.b", Data: []byte("staged")}}
	j := Start(t, s, spec)
	defer destroy(t, s, j)
	out, err := io.ReadAll(j.Stdio.Out)
	if want := spec.Program.Env["TRICKY"] + "|C.UTF-8|none|/tmp|staged"; string(out) != want || err != nil {
		complaint, _ := io.ReadAll(j.Stdio.Err)
		t.Fatalf("got %q, %v, want %q; stderr %q", out, err, want, complaint)
	}
}
