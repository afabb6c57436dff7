package agents

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

const token = "hermit_0123456789abcdef"

func TestWhatIsDeclaredAlreadyIsLeftAlone(t *testing.T) {
	f := newFixture(t, nil)
	k := kept("bot", "echo hello; exec sleep 1000")
	f.keep(t, k, token)
	first := f.status("bot")
	if first.Phase != jail.PhaseRunning || first.Jail == "" || !first.Addr.IsValid() || first.PID == 0 {
		t.Fatalf("it stands at %+v", first)
	}
	f.keep(t, k, "")
	k.Revision = "2"
	f.keep(t, k, "")
	if s := f.status("bot"); s.Jail != first.Jail || s.Revision != "2" {
		t.Errorf("another revision: jail %s became %s, revision %q", first.Jail, s.Jail, s.Revision)
	}
	k.Restart = jail.RestartNever
	f.keep(t, k, "")
	if s := f.status("bot"); s.Jail != first.Jail || s.Spec.Agent.Key() != "bot" || s.Kept.Restart != jail.RestartNever {
		t.Errorf("another restart policy made a new jail, or is not in force: %+v", s)
	}
	// On a busy host the first program has said nothing yet.
	testenv.Eventually(t, patience, func() bool { return f.readLog(t, "bot") == "hello\n" }, "the log is %q", f.readLog(t, "bot"))
	k.Spec.Limits.Memory *= 2
	f.keep(t, k, "")
	s := f.status("bot")
	if s.Jail == first.Jail || s.Phase != jail.PhaseRunning || len(f.jails("bot")) != 1 {
		t.Errorf("another spec: %+v, jails %v", s, f.jails("bot"))
	}
	if s.Exit == nil || s.Exit.Cause != jail.CauseDestroyed {
		t.Errorf("the run before ended by %+v", s.Exit)
	}
	testenv.Eventually(t, patience, func() bool { return f.readLog(t, "bot") == "hello\nhello\n" }, "the log is %q", f.readLog(t, "bot"))
	k.Stopped = true
	f.keep(t, k, "")
	if s := f.status("bot"); s.Phase != jail.PhaseStopped || s.Jail != "" || len(f.jails("bot")) != 0 || len(f.host.States()) != 1 {
		t.Errorf("stopped: %+v, jails %v, volumes %v", s, f.jails("bot"), f.host.States())
	}
	if err := f.k.RestartKept(t.Context(), "default", "bot"); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("one that is stopped is restarted: %v", err)
	}
	k.Stopped = false
	f.keep(t, k, "")
	again := f.status("bot").Jail
	if err := f.k.RestartKept(t.Context(), "default", "bot"); err != nil || f.status("bot").Jail == again || f.status("bot").Jail == "" {
		t.Errorf("restarted: %v, jail %s was %s", err, f.status("bot").Jail, again)
	}
}

func TestTokensGoIntoJailsAndNowhereElse(t *testing.T) {
	f := newFixture(t, nil)
	k := kept("bot", "exec sleep 1000")
	if err := f.k.Keep(t.Context(), k, ""); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("without a token: %v", err)
	}
	if s := f.status("bot"); s.Phase != "" {
		t.Errorf("it is declared all the same: %+v", s)
	}
	f.keep(t, k, token)
	if got, ok := f.host.Token(f.status("bot").Jail); !ok || got != token {
		t.Fatalf("the jail has the token %q", got)
	}
	has := func(want bool) {
		t.Helper()
		if got, err := f.k.HasToken(t.Context(), "default", "bot"); got != want || err != nil {
			t.Errorf("has token: %v, %v", got, err)
		}
	}
	has(true)
	before := f.status("bot").Jail
	const second = "hermit_fedcba9876543210"
	if err := f.k.SetToken(t.Context(), "default", "bot", second); err != nil {
		t.Fatal(err)
	}
	if got, _ := f.host.Token(before); got != second || f.status("bot").Jail != before {
		t.Errorf("the jail %s has the token %q", f.status("bot").Jail, got)
	}
	has(true)
	if err := f.k.RestartKept(t.Context(), "default", "bot"); err != nil {
		t.Fatal(err)
	}
	if got, _ := f.host.Token(f.status("bot").Jail); got != second {
		t.Errorf("the next jail has the token %q", got)
	}
	// The tokens on the disk and in the jail differ: a keeper wrote the first and was killed before it delivered it.
	f.stop(true)
	if err := os.WriteFile(filepath.Join(f.dir, "agents", "bot.token"), []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	f.start()
	f.eventually(t, "bot", "running", func(s jail.KeptStatus) bool { return s.Phase == jail.PhaseRunning })
	if got, _ := f.host.Token(f.status("bot").Jail); got != token {
		t.Errorf("after a restart the jail has the token %q", got)
	}
	if in := grep(t, f.dir, token); !slices.Equal(in, []string{"bot.token"}) {
		t.Errorf("the token is in %v", in)
	}
	if info, err := os.Stat(filepath.Join(f.dir, "agents", "bot.token")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its file is %v, %v", info.Mode(), err)
	}
	_, all, _ := f.k.Kept(t.Context(), 0, true)
	said, err := json.Marshal(all, options())
	if err != nil || strings.Contains(string(said), token) || strings.Contains(f.log.String(), token) || strings.Contains(f.log.String(), second) {
		t.Errorf("the token is in the listing or the log: %s, %v", said, err)
	}
	for _, bad := range []string{"", "a b", "a\nb", strings.Repeat("x", maxToken+1)} {
		if err := f.k.SetToken(t.Context(), "default", "bot", bad); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("the token %.10q: %v", bad, err)
		}
	}
}

// A jail that is not confined as declared gets no token, and does not run.
func TestUnconfinedJailGetsNoToken(t *testing.T) {
	f := newFixture(t, func(f *fixture) { f.seen = func(o *jail.Observed) { o.NoNewPrivileges = false } })
	k := kept("bot", "exec sleep 1000")
	k.Restart = jail.RestartNever
	err := f.k.Keep(t.Context(), k, token)
	if problem.CodeOf(err) != problem.JailUnconfined {
		t.Fatalf("the error is %v", err)
	}
	s := f.eventually(t, "bot", "failed", func(s jail.KeptStatus) bool { return s.Phase == jail.PhaseFailed })
	if s.Code != problem.JailUnconfined || s.Hint == "" || s.Jail != "" || len(f.jails("bot")) > 0 {
		t.Errorf("it stands at %+v", s)
	}
	for i := range 100_000 {
		name, _ := jail.NewName(jail.KindAgent, "test", i)
		if _, ok := f.host.Token(name); ok {
			t.Fatalf("jail %s has the token", name)
		}
	}
}

func TestRestartPolicies(t *testing.T) {
	year := jail.Limits{WallClock: jail.MaxWallClock}
	hour := jail.Limits{WallClock: time.Hour}
	good, bad := jail.Exit{Cause: jail.CauseExited}, jail.Exit{Code: 3, Cause: jail.CauseExited}
	for _, c := range []struct {
		what   string
		policy jail.Restart
		exit   jail.Exit
		limits jail.Limits
		want   bool
	}{
		{"always, well", jail.RestartAlways, good, year, true},
		{"always, badly", jail.RestartAlways, bad, year, true},
		{"on failure, well", jail.RestartOnFailure, good, year, false},
		{"on failure, badly", jail.RestartOnFailure, bad, year, true},
		{"on failure, by a signal", jail.RestartOnFailure, jail.Exit{Signal: "killed", Cause: jail.CauseExited}, year, true},
		{"on failure, unknown", jail.RestartOnFailure, jail.Exit{Code: -1, Cause: jail.CauseExited}, year, true},
		{"on failure, by its memory", jail.RestartOnFailure, jail.Exit{Cause: jail.CauseMemory}, year, true},
		{"never, badly", jail.RestartNever, bad, year, false},
		{"its time was up", jail.RestartAlways, jail.Exit{Cause: jail.CauseWallClock}, hour, false},
		{"a year was up", jail.RestartAlways, jail.Exit{Cause: jail.CauseWallClock}, year, true},
		{"no policy", "", bad, year, false},
	} {
		if got := startsAgain(c.policy, c.exit, c.limits); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
	o := Options{FirstPause: time.Second, LongestPause: time.Minute, Steady: 10 * time.Minute}
	var pauses []string
	p := time.Duration(0)
	for range 8 {
		p = o.pauseAfter(p, 9*time.Minute)
		pauses = append(pauses, p.String())
	}
	if got := strings.Join(pauses, " "); got != "1s 2s 4s 8s 16s 32s 1m0s 1m0s" {
		t.Errorf("the pauses are %s", got)
	}
	if got := o.pauseAfter(time.Minute, 10*time.Minute); got != time.Second {
		t.Errorf("after a long run the pause is %s", got)
	}
}

func TestWhatEndsIsStartedAgainByItsPolicy(t *testing.T) {
	f := newFixture(t, nil)
	counter := filepath.Join(f.dir, "runs")
	script := func(code int) string { return fmt.Sprintf("echo run >>%s; exit %d", counter, code) }
	runs := func() int {
		data, _ := os.ReadFile(counter)
		return strings.Count(string(data), "run\n")
	}
	k := kept("bot", script(0))
	f.keep(t, k, token)
	s := f.eventually(t, "bot", "restarted", func(s jail.KeptStatus) bool { return s.Restarts >= 3 })
	if s.Exit == nil || s.Exit.Code != 0 || runs() < 3 || s.CrashLoop(time.Now()) != s.Restarts {
		t.Errorf("%d runs, %+v", runs(), s)
	}
	k.Restart, k.Spec.Program.Argv[2] = jail.RestartOnFailure, script(3)
	f.keep(t, k, "")
	s = f.eventually(t, "bot", "restarted", func(s jail.KeptStatus) bool { return s.Restarts >= 2 })
	if s.Exit.Code != 3 || s.Crashes > s.Restarts {
		t.Errorf("it stands at %+v", s)
	}
	k.Spec.Program.Argv[2] = script(0)
	f.keep(t, k, "")
	s = f.eventually(t, "bot", "ended", func(s jail.KeptStatus) bool { return s.Phase == jail.PhaseEnded && s.Jail == "" })
	if s.Restarts != 0 || s.Crashes != 0 || s.Exit == nil || s.Exit.Code != 0 || !s.Next.IsZero() {
		t.Errorf("it stands at %+v", s)
	}
	n := runs()
	f.stop(true)
	f.start() // the host daemon alone: it stays ended
	f.eventually(t, "bot", "ended", func(s jail.KeptStatus) bool { return s.Phase == jail.PhaseEnded })
	if runs() != n {
		t.Errorf("it ran again after a restart of the host daemon")
	}
	f.stop(true)
	f.boot = "second"
	f.start() // the host: everything is started
	f.eventually(t, "bot", "started after the boot", func(s jail.KeptStatus) bool { return s.Phase == jail.PhaseEnded && runs() == n+1 })
}

func TestJailsRunOnThroughARestartOfTheHostDaemon(t *testing.T) {
	f := newFixture(t, nil)
	k := kept("bot", "while read line; do echo got $line; done")
	f.keep(t, k, token)
	before := f.status("bot")
	stray, err := f.life.CreateFor(t.Context(), "", agentSpec("nobody", "exec sleep 1000"), func(context.Context, *jail.Jail) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	second, err := f.life.CreateFor(t.Context(), "", agentSpec("bot", "exec sleep 1000"), func(context.Context, *jail.Jail) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if n, err := f.k.Type(t.Context(), "default", "bot", []byte("one\n")); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	f.stop(true)
	f.start()
	after := f.eventually(t, "bot", "running", func(s jail.KeptStatus) bool { return s.Phase == jail.PhaseRunning })
	if after.Jail != before.Jail || after.Addr != before.Addr || after.PID != before.PID || after.Restarts != 0 {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	if _, err := f.k.Type(t.Context(), "default", "bot", []byte("two\n")); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool { return f.readLog(t, "bot") == "got one\ngot two\n" }, "the log is not whole")
	for _, j := range []*jail.Jail{stray, second} {
		testenv.Eventually(t, patience, func() bool { return !f.host.Runs(j.Name) }, "jail %s, which nobody declared, runs on", j.Name)
	}
	if got := f.jails("bot"); !slices.Equal(got, []jail.Name{before.Jail}) {
		t.Errorf("its jails are %v", got)
	}
}

func TestNoJailThatIsTakenOverIsTakenForAStray(t *testing.T) {
	f := newFixture(t, nil)
	f.keep(t, kept("bot", "exec sleep 1000"), token)
	mine := jail.Status{Name: f.status("bot").Jail, State: jail.StateReady}
	for range 200 {
		f.stop(true)
		f.start()
		for running := false; !running; { // as often as it can be asked, a sweep would not end it
			f.k.mu.Lock()
			stray := f.k.isStray("bot", mine)
			running = f.k.agents["bot"].status.Phase == jail.PhaseRunning
			f.k.mu.Unlock()
			if stray {
				t.Fatal("the jail of an agent is taken for one that nobody declared while it is taken over")
			}
		}
	}
	if !f.k.isStray("nobody", mine) {
		t.Error("no jail is taken for one that nobody declared")
	}
}

func TestDropKeepsWhatItIsAskedToKeep(t *testing.T) {
	f := newFixture(t, nil)
	script := "echo hello; exec sleep 1000"
	drop := func(o jail.DropOptions) {
		t.Helper()
		if err := f.k.Drop(t.Context(), "default", "bot", o); err != nil {
			t.Fatal(err)
		}
		if s := f.status("bot"); s.Phase != "" || len(f.jails("bot")) != 0 {
			t.Errorf("it is still there: %+v, %v", s, f.jails("bot"))
		}
		if left, err := filepath.Glob(filepath.Join(f.dir, "agents", "bot*")); err != nil || len(left) > 0 {
			t.Errorf("left are %v, %v", left, err)
		}
	}
	logged := func() bool {
		_, err := f.k.ReadLog(t.Context(), jail.LogRequest{Tenant: "default", Name: "bot", Stream: jail.Stdout})
		return err == nil
	}
	f.keep(t, kept("bot", script), token)
	testenv.Eventually(t, patience, func() bool { return f.readLog(t, "bot") == "hello\n" }, "it prints nothing")
	drop(jail.DropOptions{KeepState: true, KeepLog: true})
	if len(f.host.States()) != 1 || f.readLog(t, "bot") != "hello\n" {
		t.Errorf("kept are the volumes %v", f.host.States())
	}
	drop(jail.DropOptions{}) // of what the one before has kept
	if len(f.host.States()) != 0 || logged() {
		t.Errorf("kept are the volumes %v, the log: %v", f.host.States(), logged())
	}
	f.keep(t, kept("bot", script), token) // a name that was dropped can be declared again
	drop(jail.DropOptions{})
	if len(f.host.States()) != 0 || logged() {
		t.Errorf("kept are the volumes %v, the log: %v", f.host.States(), logged())
	}
	drop(jail.DropOptions{})
}

func TestADropThatFindsAnotherAtItsEndIsDoneToo(t *testing.T) {
	ends, goOn := make(chan struct{}), make(chan struct{})
	f := newFixture(t, func(f *fixture) {
		f.change = func(o *Options) {
			o.RemoveMade = func(context.Context, jail.Agent, []jail.Mount) error {
				ends <- struct{}{}
				<-goOn
				return nil
			}
		}
	})
	f.keep(t, kept("bot", "exec sleep 1000"), token)
	done := make(chan error, 2)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	drop := func(o jail.DropOptions) { go func() { done <- f.k.Drop(ctx, "default", "bot", o) }() }
	bot := f.k.agents["bot"]
	drop(jail.DropOptions{KeepState: true, RemoveWorkspace: true})
	<-ends
	before := bot.look().seq
	drop(jail.DropOptions{})
	testenv.Eventually(t, patience, func() bool { return bot.look().seq > before }, "the second is not wanted")
	goOn <- struct{}{}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if len(f.host.States()) != 0 || f.status("bot").Phase != "" {
		t.Errorf("left are the volumes %v, and %+v", f.host.States(), f.status("bot"))
	}
	if _, err := bot.drop(jail.DropOptions{}); !errors.Is(err, errUnknown) {
		t.Errorf("dropped when it was gone: %v", err)
	}
}

func TestWhatCannotBeMadeSaysWhyAndIsTriedAgain(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		f.change = func(o *Options) { o.FirstPause, o.LongestPause = time.Hour, time.Hour }
	})
	k := kept("bot", "exec sleep 1000")
	k.Spec.Template = "missing"
	if errs, err := f.k.CheckKept(t.Context(), []jail.Kept{kept("a", "exit"), k}); err != nil || errs[0] != nil || problem.CodeOf(errs[1]) != problem.TemplateMissing {
		t.Errorf("check says %v, %v", errs, err)
	}
	if err := f.k.Keep(t.Context(), k, token); problem.CodeOf(err) != problem.TemplateMissing {
		t.Fatalf("keep: %v", err)
	}
	s := f.status("bot")
	if s.Phase != jail.PhaseFailed || s.Code != problem.TemplateMissing || s.Problem == "" || s.Hint == "" || s.Next.IsZero() {
		t.Errorf("it stands at %+v", s)
	}
	f.stop(false)
	f.host.Templates = append(f.host.Templates, "missing")
	f.start()
	f.eventually(t, "bot", "running", func(s jail.KeptStatus) bool { return s.Phase == jail.PhaseRunning && s.Problem == "" })
	k.Spec.Template = "other"
	if err := f.k.Keep(t.Context(), k, ""); problem.CodeOf(err) != problem.TemplateMissing {
		t.Fatalf("keep: %v", err)
	}
	if err := f.k.Keep(t.Context(), k, ""); problem.CodeOf(err) != problem.TemplateMissing {
		t.Fatalf("declared once more, it is not tried at once: %v", err)
	}
}

func TestListingWaitsForAChange(t *testing.T) {
	f := newFixture(t, nil)
	v, all, err := f.k.Kept(t.Context(), 0, false)
	if v == 0 || len(all) != 0 || err != nil {
		t.Fatal(v, all, err)
	}
	type listing struct {
		version uint64
		all     []jail.KeptStatus
	}
	got := make(chan listing, 1)
	go func() {
		v, all, _ := f.k.Kept(context.Background(), v, false)
		got <- listing{v, all}
	}()
	f.keep(t, kept("bot", "exec sleep 1000"), token)
	if l := <-got; l.version == v {
		t.Errorf("a change gave %+v", l)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	now, _, _ := f.k.Kept(t.Context(), 0, false)
	if v, all, err := f.k.Kept(ended, now, true); v != now || len(all) != 1 || err != nil {
		t.Errorf("without a change: %d, %v, %v", v, all, err)
	}
	if _, all, _ = f.k.Kept(t.Context(), 0, true); all[0].Usage == nil || all[0].Usage.Tasks != 1 {
		t.Errorf("the usage is %+v", all[0].Usage)
	}
}

func TestDamagedDeclarationsAreStoppedAndSayso(t *testing.T) {
	f := newFixture(t, nil)
	f.keep(t, kept("bot", "exec sleep 1000"), token)
	name := f.status("bot").Jail
	f.stop(true)
	file := filepath.Join(f.dir, "agents", "bot.json")
	if err := errors.Join(os.WriteFile(file, []byte(`{"version":1,"spec":{}}`), 0o600),
		os.WriteFile(filepath.Join(f.dir, "agents", "UP.json"), nil, 0o600),
		os.WriteFile(filepath.Join(f.dir, "agents", "alone.token"), []byte(token), 0o600)); err != nil {
		t.Fatal(err)
	}
	f.start()
	s := f.eventually(t, "bot", "failed", func(s jail.KeptStatus) bool { return s.Phase == jail.PhaseFailed && s.Problem != "" })
	testenv.Eventually(t, patience, func() bool { return !f.host.Runs(name) }, "its jail runs on (%+v)", s)
	if _, err := os.Stat(filepath.Join(f.dir, "agents", "alone.token")); err == nil {
		t.Error("a token of nobody is kept")
	}
	f.keep(t, kept("bot", "exec sleep 1000"), "") // its token is still there
	if s := f.status("bot"); s.Phase != jail.PhaseRunning || s.Problem != "" {
		t.Errorf("declared again it stands at %+v", s)
	}
}

func TestDeclarationsAreValidated(t *testing.T) {
	f := newFixture(t, func(f *fixture) { f.change = func(o *Options) { o.MaxAgents = 1 } })
	for what, change := range map[string]func(*jail.Kept){
		"lifetime": func(k *jail.Kept) { k.Spec.Lifetime = jail.LifetimeOwner },
		"nobody's": func(k *jail.Kept) { k.Spec.Agent = nil },
		"policy":   func(k *jail.Kept) { k.Restart = "sometimes" },
		"revision": func(k *jail.Kept) { k.Revision = strings.Repeat("x", 101) },
		"name":     func(k *jail.Kept) { k.Spec.Agent.Name = "../x" },
		"limits":   func(k *jail.Kept) { k.Spec.Limits.Memory = 0 },
	} {
		k := kept("bot", "exit")
		change(&k)
		if err := f.k.Keep(t.Context(), k, token); err == nil {
			t.Errorf("%s: it is kept", what)
		}
	}
	for _, err := range []error{
		f.k.SetToken(t.Context(), "default", "..", token), f.k.RestartKept(t.Context(), "a/b", "x"),
		f.k.Drop(t.Context(), "", "x", jail.DropOptions{}),
	} {
		if problem.CodeOf(err) != problem.BadName {
			t.Errorf("a bad name: %v", err)
		}
	}
	if err := f.k.RestartKept(t.Context(), "default", "nobody"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("one that is not there: %v", err)
	}
	f.keep(t, kept("bot", "exec sleep 1000"), token)
	if err := f.k.Keep(t.Context(), kept("more", "exec sleep 1000"), token); problem.CodeOf(err) != problem.PoolExhausted {
		t.Errorf("one too many: %v", err)
	}
	if err := (&Options{MaxStarts: -1}).Validate(); err == nil || strings.Count(err.Error(), "\n") < 4 {
		t.Errorf("the options say %v", err)
	}
}

// Starts of one tenant that take long leave a place to another tenant, which does not wait for all of them.
func TestStartsOfATenantDoNotHoldUpAnothers(t *testing.T) {
	var slow atomic.Bool
	var begun atomic.Int64
	release := make(chan struct{})
	end := sync.OnceFunc(func() { close(release) })
	f := newFixture(t, func(f *fixture) {
		f.before = func(operation string) error {
			if operation == "storage.clone" && slow.Load() {
				begun.Add(1)
				<-release
			}
			return nil
		}
		f.change = func(o *Options) {
			o.MaxStarts, o.Share = 2, func(int64) int64 { return 1 }
		}
	})
	defer end()
	slow.Store(true)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer end()
	for n := range 5 {
		k := kept(fmt.Sprintf("many-%d", n), "exec sleep 1000")
		k.Spec.Agent.Tenant = "greedy"
		waiting.Go(func() {
			if err := f.k.Keep(t.Context(), k, token); err != nil {
				t.Errorf("keep: %v", err)
			}
		})
	}
	testenv.Eventually(t, patience, func() bool { return begun.Load() == 1 }, "no start has begun")
	slow.Store(false)
	f.keep(t, kept("one", "exec sleep 1000"), token)
	if s := f.status("one"); s.Phase != jail.PhaseRunning {
		t.Errorf("the agent of another tenant is %s", s.Phase)
	}
	if n := begun.Load(); n != 1 {
		t.Errorf("%d starts of one tenant work, want one of two", n)
	}
}

// The end of a run may be told of after something else was declared, or wanted anew.
func TestTheEndOfAnEarlierRunSaysNothingAboutTheNext(t *testing.T) {
	for _, made := range []uint64{1, 2} {
		f := newFixture(t, nil)
		d := declaration{Kept: kept("bot", ""), Generation: 2}
		d.Restart = jail.RestartOnFailure
		a := newAgent(f.k, d)
		a.made = made
		a.ended(jail.Exit{Cause: jail.CauseExited})
		if !a.doomed || a.status.Exit == nil || a.rest != (made == 2) {
			t.Errorf("after the end of generation %d, rest is %v", made, a.rest)
		}
		a.rest = false
		a.ended(jail.Exit{Code: 3, Cause: jail.CauseExited})
		if again := made == 2; a.rest || (a.status.Restarts == 1) != again || a.due.IsZero() == again {
			t.Errorf("after the failure of generation %d, it was restarted %d times, and is due %v", made, a.status.Restarts, a.due)
		}
	}
}

func TestOneThatIsStartedAfterAStopStartsAlsoWithTheNextHostDaemon(t *testing.T) {
	full := false
	f := newFixture(t, func(f *fixture) {
		f.change = func(o *Options) {
			o.Room = func() error {
				if full {
					return problem.New(problem.PoolExhausted, "", "there is no room")
				}
				return nil
			}
		}
	})
	counter := filepath.Join(f.dir, "runs")
	k := kept("bot", "echo run >>"+counter)
	k.Restart = jail.RestartOnFailure
	again := func(what, runs string) {
		t.Helper()
		f.eventually(t, "bot", what, func(s jail.KeptStatus) bool { return s.Phase == jail.PhaseEnded && s.Jail == "" })
		if data, _ := os.ReadFile(counter); string(data) != runs {
			t.Errorf("%s, it ran %q", what, data)
		}
	}
	f.keep(t, k, token)
	again("ended", "run\n")
	f.stop(true)
	f.start()
	again("ended before", "run\n")
	k.Stopped = true
	f.keep(t, k, "")
	f.stop(true)
	full, k.Stopped = true, false
	f.start()
	if err := f.k.Keep(t.Context(), k, ""); problem.CodeOf(err) != problem.PoolExhausted {
		t.Fatalf("got %v", err)
	}
	f.stop(true)
	full = false
	f.start()
	again("started after a stop", "run\nrun\n")
}
