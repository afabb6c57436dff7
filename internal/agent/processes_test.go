package agent

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func noLimits() clawbots.Limits { return clawbots.Limits{} }

func script(text string) ProcessRequest { return ProcessRequest{Argv: []string{"/bin/sh", "-c", text}} }

// told is what a program did, to its end.
func (l *land) told(id string) []string {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, time.Minute)
	defer cancel()
	var out []string
	l.must(l.Events(ctx, l.admin, "default", "writer", id, "", true, func(e Event) error {
		out = append(out, brief(e))
		return nil
	}))
	return out
}

func TestAProgramRunsInAJailOfItsOwn(t *testing.T) {
	l, d := newPrograms(t)
	p, err := l.Start(l.ctx, l.admin, "", "writer", script(`printf 'a\n{"type":"b"}\n'; echo "$SHELL_URL $MINE" >&2; exit 3`))
	l.must(err)
	got := l.told(p.ID)
	slices.Sort(got[1 : len(got)-1])
	if diff := cmp.Diff([]string{"started", "stderr http://gateway:3000 ", "stdout a", `stdout {"type":"b"}`, "exit"}, got); diff != "" {
		t.Error(diff)
	}
	if left := d.left(); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
	spec := d.specs[0]
	if spec.Template != "clawbot" || spec.Kind != jail.KindAgent || spec.Lifetime != jail.LifetimeOwner || spec.Agent == nil || spec.Agent.Name != "writer" ||
		spec.Agent.State != 0 || spec.Agent.Token || spec.Limits.Tasks != 64 || spec.Limits.WallClock != time.Hour {
		t.Errorf("%+v", spec)
	}
	all, err := l.Processes(l.ctx, l.admin, "", "writer")
	if err != nil || len(all) != 1 || all[0].ID != p.ID || all[0].Exit == nil || all[0].Exit.Code != 3 || !all[0].OwnJail || all[0].StartedBy != "admin" {
		t.Errorf("%+v, %v", all, err)
	}
	if other, err := l.Processes(l.ctx, l.admin, "", "other"); err != nil || len(other) > 0 {
		t.Errorf("%+v, %v", other, err)
	}
	rows, err := l.log.List(l.ctx, audit.Filter{ActionPrefix: "process."})
	l.must(err)
	var said []string
	for _, r := range rows {
		said = append(said, r.Action+" "+r.Phase+" "+r.Result)
		if strings.Contains(string(r.Detail), "printf") {
			t.Errorf("the arguments are on record: %s", r.Detail)
		}
	}
	if len(said) < 3 || said[0] != "process.start intent " || said[1] != "process.start outcome ok" {
		t.Errorf("%q", said)
	}
}

func TestExecInTmpIsForProgramsOfTheAgentToo(t *testing.T) {
	l, d := newPrograms(t)
	for n, tmp := range []string{"noexec", "exec"} {
		_, err := l.sync("clawbots:\n  - name: writer\n    tmp: " + tmp + "\n")
		l.must(err)
		p, err := l.Start(l.ctx, l.admin, "", "writer", script("exit"))
		l.must(err)
		l.told(p.ID)
		kept, _ := l.keeper.status("writer")
		for what, spec := range map[string]jail.Spec{"its jail": kept.Spec, "a program's": d.specs[n]} {
			profile := jail.ProfileFor(spec, jail.Lease{})
			at := slices.IndexFunc(profile.Tmpfs, func(one jail.Tmpfs) bool { return one.Path == "/tmp" })
			if profile.Tmpfs[at].NoExec != (tmp == "noexec") {
				t.Errorf("%s, %s: /tmp is %+v", tmp, what, profile.Tmpfs[at])
			}
		}
	}
}

// While it runs, its address is its agent's and nobody else's.
func TestAProgramReachesWhatItsAgentMay(t *testing.T) {
	l, d := newPrograms(t)
	p, err := l.Start(l.ctx, l.admin, "", "writer", script("sleep 1000 & sleep 1000"))
	l.must(err)
	agents, err := l.who.Agents(l.ctx, l.admin, "default")
	l.must(err)
	at := slices.IndexFunc(agents, func(a identity.Agent) bool { return a.Name == "writer" })
	who, ok := l.gate.at(d.find(p.Jail).addr)
	if !ok || who.Agent != agents[at].ID || who.Tenant != "default" || who.Jail != string(p.Jail) || who.Actor != "agent:"+agents[at].ID || len(who.Policy.Rules) > 0 {
		t.Errorf("%+v, %v", who, ok)
	}
	if st, err := l.Get(l.ctx, l.admin, "", "writer"); err != nil || st.Processes != 1 {
		t.Errorf("%+v, %v", st, err)
	}
	l.must(l.EndProcess(l.ctx, l.admin, "", "writer", p.ID))
	if left := d.left(); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
	all, err := l.Processes(l.ctx, l.admin, "", "writer")
	if err != nil || all[0].Exit == nil || all[0].Exit.Cause != jail.CauseDestroyed {
		t.Errorf("%+v, %v", all, err)
	}
	l.must(l.EndProcess(l.ctx, l.admin, "", "writer", p.ID)) // once more
	l.wantCode("another's", l.EndProcess(l.ctx, l.admin, "", "other", p.ID), problem.NotFound)
}

// A program may ask for something with its first instruction.
func TestAProgramIsKnownToTheGatewayBeforeItBegins(t *testing.T) {
	l, d := newPrograms(t)
	known := false
	d.begins = func(addr netip.Addr) { _, known = l.gate.at(addr) }
	l.gate.callers[netip.AddrFrom4([4]byte{10, 9, 0, 1})] = gateway.Caller{Agent: "who had the address before"}
	p, err := l.Start(l.ctx, l.admin, "", "writer", script("sleep 1000"))
	l.must(err)
	if !known || !d.specs[0].Admit {
		t.Errorf("the gateway knows it: %v, the firewall is to let it through: %v", known, d.specs[0].Admit)
	}
	if who, _ := l.gate.at(d.find(p.Jail).addr); who.Jail != string(p.Jail) {
		t.Errorf("it is let through as %+v", who)
	}
	l.must(l.EndProcess(l.ctx, l.admin, "", "writer", p.ID))
	// With an address of which the gateway cannot forget who had it, no program begins.
	l.gate.stuck, d.begins = true, func(netip.Addr) { t.Error("a program begins that the gateway does not know") }
	if _, err := l.Start(l.ctx, l.admin, "", "writer", script("exit 0")); err == nil {
		t.Error("it was started")
	}
	l.gate.stuck = false
}

func TestAProgramEndsWithItsAgentItsTimeAndTheService(t *testing.T) {
	l, d := newPrograms(t)
	sleeps := script("sleep 1000")
	ends := func(id string, want jail.Cause) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() bool {
			pr := l.processes.all[id]
			return wake.Closed(pr.done)
		}, "it runs on")
		if x := l.viewOf(l.processes.all[id]).Exit; x.Cause != want {
			t.Errorf("%+v", x)
		}
		if left := d.left(); len(left) > 0 {
			t.Errorf("%q are left", left)
		}
	}
	p, err := l.Start(l.ctx, l.admin, "", "writer", sleeps)
	l.must(err)
	l.must(l.who.RevokeAgent(l.ctx, l.admin, "default", "writer"))
	ends(p.ID, jail.CauseDestroyed)
	_, err = l.Start(l.ctx, l.admin, "", "writer", sleeps)
	l.wantCode("revoked", err, problem.Conflict)
	sleeps.TTL = time.Second
	p, err = l.Start(l.ctx, l.admin, "", "other", sleeps)
	l.must(err)
	ends(p.ID, jail.CauseWallClock)
	ctx, leave := context.WithCancel(l.ctx)
	sleeps.TTL = 0
	p, running, err := l.Run(ctx, l.admin, "", "other", sleeps)
	l.must(err)
	leave()
	exit, err := running.Wait(t.Context())
	if err != nil || exit.Cause != jail.CauseDestroyed {
		t.Errorf("%+v, %v", exit, err)
	}
	ends(p.ID, jail.CauseDestroyed)
	running.Stdio.Close()
	_, err = l.Start(l.ctx, l.admin, "", "other", sleeps)
	l.must(err)
	l.must(l.Service.Close(l.ctx))
	if left := d.left(); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
	_, err = l.Start(l.ctx, l.admin, "", "other", sleeps)
	l.wantCode("closed", err, problem.ShuttingDown)
}

// The time for which an agent is declared is also that of its programs.
func TestNoProgramOutlivesTheTimeOfItsAgent(t *testing.T) {
	l, d := newPrograms(t)
	agents, err := l.who.Agents(l.ctx, l.admin, "default")
	l.must(err)
	at := agents[0].CreatedAt.Add(time.Hour)
	l.Service.o.Now = func() time.Time { return at }
	l.must(l.put(l.ctx, "default", &declaration{Agent: clawbots.Agent{Name: "writer", TTL: 2 * time.Hour}, Done: true}))
	sleeps := script("sleep 1000")
	for _, c := range []struct {
		name      string
		ttl, want time.Duration
	}{{"writer", 3 * time.Hour, time.Hour}, {"writer", time.Minute, time.Minute}, {"other", 3 * time.Hour, 3 * time.Hour}} {
		sleeps.TTL = c.ttl
		p, err := l.Start(l.ctx, l.admin, "", c.name, sleeps)
		l.must(err)
		pr := l.processes.all[p.ID]
		if limit := d.specs[len(d.specs)-1].Limits.WallClock; pr.limit.Round(time.Minute) != c.want || limit != pr.limit {
			t.Errorf("%s may run for %s, its jail for %s", c.name, pr.limit, limit)
		}
		l.must(l.EndProcess(l.ctx, l.admin, "", c.name, p.ID))
	}
	at = at.Add(time.Hour + time.Minute)
	_, err = l.Start(l.ctx, l.admin, "", "writer", sleeps)
	l.wantCode("its time is over", err, problem.Conflict)
}

func TestStdioIsUntouched(t *testing.T) {
	l, _ := newPrograms(t)
	l.keepOne("writer", map[string]string{"OF_THE_JAIL": "yes"})
	data := make([]byte, 1<<20)
	for n := range data {
		data[n] = byte(n * 7)
	}
	run := map[string]func() (*jail.Running, error){
		"own jail": func() (*jail.Running, error) {
			_, r, err := l.Run(l.ctx, l.admin, "", "writer", script("cat; echo end >&2; kill -9 $$"))
			return r, err
		},
		"jail of the agent": func() (*jail.Running, error) {
			r := script("cat; echo end >&2; kill -9 $$")
			r.Jail = &JailConfig{Name: "writer"}
			_, running, err := l.Run(l.ctx, l.admin, "", "writer", r)
			return running, err
		},
		"exec": func() (*jail.Running, error) {
			return l.Exec(l.ctx, l.admin, "", "writer", jail.Program{Argv: []string{"/bin/sh", "-c", `[ "$OF_THE_JAIL" = yes ] && cat; echo end >&2; kill -9 $$`}})
		},
	}
	for name, start := range run {
		t.Run(name, func(t *testing.T) {
			r, err := start()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Stdio.Close()
			go func() {
				_, _ = r.Stdio.In.Write(data) // compared below
				_ = r.Stdio.In.Close()
			}()
			out, err := io.ReadAll(r.Stdio.Out)
			if err != nil || !slices.Equal(out, data) {
				t.Errorf("%d bytes, %v", len(out), err)
			}
			text, err := io.ReadAll(r.Stdio.Err)
			if err != nil || string(text) != "end\n" {
				t.Errorf("%q, %v", text, err)
			}
			exit, err := r.Wait(t.Context())
			if err != nil || exit.Signal != "killed" || exit.Cause != jail.CauseExited {
				t.Errorf("%+v, %v", exit, err)
			}
		})
	}
}

func TestWhatIsTypedReachesAProgram(t *testing.T) {
	l, _ := newPrograms(t)
	p, err := l.Start(l.ctx, l.admin, "", "writer", script("cat"))
	l.must(err)
	n, err := l.Type(l.ctx, l.admin, "", "writer", p.ID, []byte("hello\n"))
	if err != nil || n != 6 {
		t.Errorf("%d, %v", n, err)
	}
	_, err = l.Type(l.ctx, l.admin, "", "writer", p.ID, nil) // the end of it
	l.must(err)
	if diff := cmp.Diff([]string{"started", "stdout hello", "exit"}, l.told(p.ID)); diff != "" {
		t.Error(diff)
	}
	_, err = l.Type(l.ctx, l.admin, "", "writer", p.ID, []byte("x"))
	l.wantCode("after its end", err, problem.Conflict)
}

func TestNothingIsLeftOfAProgramThatCouldNotBeStarted(t *testing.T) {
	for _, step := range []string{"create", "begin", "exec"} {
		l, d := newPrograms(t)
		l.keepOne("writer", nil)
		d.refuse[step] = problem.New(problem.DiskFull, "", "no room")
		r := script("sleep 1000")
		if step == "exec" {
			r.Jail = &JailConfig{Name: "writer"}
		}
		_, err := l.Start(l.ctx, l.admin, "", "writer", r)
		l.wantCode(step, err, problem.DiskFull)
		if left := d.left(); len(left) > 0 {
			t.Errorf("%s: %q are left", step, left)
		}
		entries, err := os.ReadDir(filepath.Join(l.dir, "programs"))
		if err != nil || len(entries) > 0 {
			t.Errorf("%s: %v, %v", step, entries, err)
		}
		if all, err := l.Processes(l.ctx, l.admin, "", "writer"); err != nil || len(all) > 0 {
			t.Errorf("%s: %+v, %v", step, all, err)
		}
	}
}

func TestWhatCannotBeRunIsRefusedBeforeAnythingIsDone(t *testing.T) {
	l, d := newPrograms(t)
	l.keepOne("other", nil)
	viewer, stranger := l.operator("default", identity.RoleViewer), l.operator("beta", identity.RoleAdmin)
	with := func(change func(*ProcessRequest)) ProcessRequest {
		r := script("true")
		change(&r)
		return r
	}
	for name, test := range map[string]struct {
		by    identity.Principal
		agent string
		r     ProcessRequest
		code  string
	}{
		"a viewer":            {viewer, "writer", script("true"), problem.Forbidden},
		"another tenant":      {stranger, "writer", script("true"), problem.NotFound},
		"no agent":            {l.admin, "nobody", script("true"), problem.NotFound},
		"another's jail":      {l.admin, "writer", with(func(r *ProcessRequest) { r.Jail = &JailConfig{Name: "other"} }), problem.BadRequest},
		"no jail of its own":  {l.admin, "writer", with(func(r *ProcessRequest) { r.Jail = &JailConfig{Name: "writer"} }), problem.NotFound},
		"mounts there":        {l.admin, "other", with(func(r *ProcessRequest) { r.Jail = &JailConfig{Name: "other", Mounts: []jail.Mount{{}}} }), problem.BadRequest},
		"a path and template": {l.admin, "writer", with(func(r *ProcessRequest) { r.Jail, r.Template = &JailConfig{Path: "/srv/a"}, "clawbot" }), problem.BadRequest},
		"a mount over /etc": {l.admin, "writer", with(func(r *ProcessRequest) {
			r.Jail = &JailConfig{Mounts: []jail.Mount{{Source: "/srv/a", Target: "/etc"}}}
		}), problem.BadRequest},
		"too long":            {l.admin, "writer", with(func(r *ProcessRequest) { r.TTL = 8 * 24 * time.Hour }), problem.BadLimit},
		"no time":             {l.admin, "writer", with(func(r *ProcessRequest) { r.TTL = -1 }), problem.BadLimit},
		"a template's name":   {l.admin, "writer", with(func(r *ProcessRequest) { r.Template = "../x" }), problem.BadTemplate},
		"negative tasks":      {l.admin, "writer", with(func(r *ProcessRequest) { r.Limits.Tasks = -1 }), problem.BadLimit},
		"no processor":        {l.admin, "writer", with(func(r *ProcessRequest) { r.Limits.CPU = -1 }), problem.BadLimit},
		"a volume":            {l.admin, "writer", with(func(r *ProcessRequest) { r.Limits.State = 1 << 20 }), problem.BadRequest},
		"a long command line": {l.admin, "writer", with(func(r *ProcessRequest) { r.Argv = append(r.Argv, strings.Repeat("x", 65<<10)) }), problem.BadRequest},
	} {
		_, err := l.Start(l.ctx, test.by, "default", test.agent, test.r)
		l.wantCode(name, err, test.code)
		_, running, err := l.Run(l.ctx, test.by, "default", test.agent, test.r)
		if l.wantCode(name, err, test.code); running != nil {
			t.Errorf("%s: it runs", name)
		}
	}
	if len(d.specs)+len(d.entered) > 0 {
		t.Errorf("%+v, %v", d.specs, d.entered)
	}
}

// A plain name is searched for in the jail, not here.
func TestAPlainNameIsSearchedForInTheJail(t *testing.T) {
	for in, want := range map[string][]string{
		"python3 -c x": {"/usr/bin/env", "python3", "-c", "x"}, "/bin/sh": {"/bin/sh"}, "./a": {"./a"}, "A=b": {"A=b"}, "-x": {"-x"},
	} {
		if diff := cmp.Diff(want, jail.Searched(strings.Fields(in))); diff != "" {
			t.Error(diff)
		}
	}
}

func TestProgramsAreBounded(t *testing.T) {
	l, _ := newPrograms(t)
	p := &l.processes
	entered := func(tenant string) (*process, error) {
		pr := &process{done: make(chan struct{}), view: Process{ID: rnd(), Tenant: tenant}}
		pr.ending, pr.end = context.WithCancelCause(context.Background())
		return pr, p.enter(pr)
	}
	var all []*process
	for n := range maxProcesses {
		pr, err := entered([]string{"a", "b", "c", "d"}[n/maxProcessesOfTenant])
		l.must(err)
		all = append(all, pr)
		if n == maxProcessesOfTenant-1 {
			_, err := entered("a")
			l.wantCode("one more of a tenant", err, problem.RateLimited)
		}
	}
	_, err := entered("e")
	l.wantCode("one more", err, problem.RateLimited)
	p.leave(all[0])
	pr, err := entered("e")
	l.must(err)
	for _, pr := range append(all[1:], pr) {
		p.leave(pr)
	}
}

func rnd() string { return processPrefix + rand.Text() }

// The output of programs that have ended is kept for a while, and then removed.
func TestWhatProgramsPrintedGoes(t *testing.T) {
	l, _ := newPrograms(t)
	p := &l.processes
	at := time.Now()
	p.with.Now = func() time.Time { return at }
	for range 2 {
		pr, err := l.Start(l.ctx, l.admin, "", "writer", script("echo x"))
		l.must(err)
		l.told(pr.ID)
	}
	at = at.Add(endedFor + time.Minute)
	all, err := l.Processes(l.ctx, l.admin, "", "writer")
	if err != nil || len(all) > 0 {
		t.Errorf("%+v, %v", all, err)
	}
	entries, err := os.ReadDir(filepath.Join(l.dir, "programs"))
	if err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
	// And what an earlier control plane left.
	l.must(os.MkdirAll(filepath.Join(l.dir, "programs", processPrefix+"x", "stdout"), 0o700))
	l.begin()
	if entries, err := os.ReadDir(filepath.Join(l.dir, "programs")); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// Programs that have no output here, such as a health check by `clawjail agent exec`, take away that of no other.
func TestWhatAProgramPrintedStaysForAnHour(t *testing.T) {
	l, _ := newPrograms(t)
	p := &l.processes
	detached, err := l.Start(l.ctx, l.admin, "", "writer", script("echo x"))
	l.must(err)
	l.must(l.EndProcess(l.ctx, l.admin, "", "writer", detached.ID))
	again := func(times int, dir string) {
		t.Helper()
		p.mu.Lock()
		was := p.all[detached.ID]
		for n := range times {
			pr := &process{agent: was.agent, done: was.done, end: was.end, view: was.view}
			if dir != "" {
				pr.dir = filepath.Join(l.dir, dir)
			}
			pr.view.ID, pr.view.Exit = fmt.Sprint(processPrefix, dir, n), &jail.Exit{At: was.view.Exit.At.Add(time.Second)}
			p.all[pr.view.ID] = pr
		}
		p.mu.Unlock()
		p.tidy()
	}
	printed := func() bool {
		_, err := os.Stat(filepath.Join(l.dir, "programs", detached.ID))
		return err == nil
	}
	again(2*maxProcessesOfTenant, "")
	again(maxProcessesOfTenant-1, "other")
	if !printed() {
		t.Error("what it printed is gone")
	}
	again(maxProcessesOfTenant, "third")
	if printed() {
		t.Error("the output of ended programs has no bound")
	}
}

func TestAnEndThatFailsIsSaid(t *testing.T) {
	l, d := newPrograms(t)
	p, err := l.Start(l.ctx, l.admin, "", "writer", script("sleep 1000"))
	l.must(err)
	d.mu.Lock()
	d.refuse["destroy"] = problem.New(problem.JailBusy, "", "busy")
	d.mu.Unlock()
	go d.find(p.Jail).kill() // the host daemon's reaper
	for range 2 {
		l.wantCode("an end that fails", l.EndProcess(l.ctx, l.admin, "", "writer", p.ID), problem.JailBusy)
	}
	testenv.Eventually(t, 20*time.Second, func() bool {
		rows, err := l.log.List(l.ctx, audit.Filter{Action: "process.end", Phase: "outcome"})
		return err == nil && len(rows) == 1 && rows[0].Result == "failed"
	}, "it is not on record")
	d.mu.Lock()
	delete(d.refuse, "destroy")
	d.mu.Unlock()
	for range 2 {
		l.must(l.EndProcess(l.ctx, l.admin, "", "writer", p.ID))
	}
	if left := d.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func BenchmarkSpawn(b *testing.B) {
	l, _ := newPrograms(b)
	buffer := make([]byte, 16)
	for b.Loop() {
		_, r, err := l.Run(l.ctx, l.admin, "", "writer", ProcessRequest{Argv: []string{"/bin/echo", "x"}})
		l.must(err)
		_, err = r.Stdio.Out.Read(buffer)
		l.must(err)
		b.StopTimer()
		_, err = r.Wait(b.Context())
		l.must(err)
		r.Stdio.Close()
		b.StartTimer()
	}
}
