// Package doctor finds out what a host can do for clawjail, mostly by trying it.
//
// Every check is one line of a table: it has a name that stays, looks at one facility, and ends with one sentence of
// facts and, where something can be done, a hint. A setting and the behaviour of the kernel are often two things, so
// what matters is tried with the parts that make jails: an overlay is mounted, a program eats memory in a cgroup, a
// connection is made from inside a network slot, a browser is started in a jail.
//
// It promises:
//
//   - Nothing that is tried touches an installation. Trials have an installation id of their own and folders of their
//     own below the configured ones, and are undone before Run returns, also after an error or when the context ends.
//     Leftovers of a doctor that was killed are removed by the next one.
//   - A check ends within [Bound], or [BrowserBound] where it starts a browser, one way or the other; on a slow machine these are
//     longer, as [pace.Measure] says.
//   - Without root it says what it can, and what it left out.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bound is how long one check may take on an ordinary machine.
const Bound = 10 * time.Second

// BrowserBound is how long the check that starts a browser may take there.
const BrowserBound = 2 * time.Minute

const (
	// grace is how much longer a check may take to notice that its time is up.
	grace = 2 * time.Second
	// undoBound is how long it may take there to undo what was tried.
	undoBound = 20 * time.Second
	// together is how many checks run at the same time.
	together = 6
)

// Status is how a check ended.
type Status string

// The ways in which a check ends.
const (
	OK   Status = "ok"   // as it should be
	Warn Status = "warn" // clawjail works, and something should be known
	Fail Status = "fail" // clawjail will not work as it promises
	Skip Status = "skip" // it was not looked at; the message says why
)

// Result is the outcome of one check.
type Result struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Message is one sentence of facts, lower case, without a full stop.
	Message string `json:"message"`
	// Hint says what to do, mostly a command. It may be empty.
	Hint string `json:"hint,omitempty"`
	// Facts are what was found, for programs.
	Facts map[string]any `json:"facts,omitempty"`
}

// Report is what a Run found.
type Report struct {
	// OK says that no check failed.
	OK     bool     `json:"ok"`
	Checks []Result `json:"checks"`
	// Pace is that of the options.
	Pace pace.Pace `json:"pace,omitempty"`
}

// Count is how many checks ended so.
func (r Report) Count(s Status) int {
	n := 0
	for _, c := range r.Checks {
		if c.Status == s {
			n++
		}
	}
	return n
}

// Options say what is examined.
type Options struct {
	// Config is the configuration, or the defaults when it could not be read; ConfigErr then says why.
	Config    config.Config
	ConfigErr error
	// ConfigPath is the file that it came from, empty when there is none.
	ConfigPath string
	// ControlURL is where the control plane should answer.
	ControlURL string
	// Spawn says which privilege mode programs would be spawned with without a host daemon, and why that would not work. Nil
	// where there is no such thing.
	Spawn func(context.Context) (mode string, err error)
	// Slow is told about a check that goes on after [Bound], and how long it may take. It may be called by several checks at
	// once. It may be nil.
	Slow func(check string, bound time.Duration)
	// Pace is how slow this machine is; see [pace.Measure].
	Pace pace.Pace
	// Log receives what the parts say while they are tried. Default: nothing is logged.
	Log *slog.Logger
}

// check is one line of the table.
type check struct {
	name string
	root bool // it is skipped for everybody else
	run  func(context.Context, *exam) Result
}

// bound is how long the check may take on an ordinary machine.
func (c check) bound() time.Duration {
	if c.name == rendererCheck || c.name == podCheck {
		return BrowserBound
	}
	return Bound
}

// browserTemplate is the template that sessions use by default.
const browserTemplate = "browser"

// rendererCheck is the name of the check that starts a browser.
const rendererCheck = "sandboxed_renderer"

// table lists the checks in the order in which they are shown: from the host to what runs on it.
func table() []check {
	return []check{
		{"privileges", false, privileges},
		{"kernel", false, kernel},
		{"package", false, installedPackage},
		{"configuration", false, configuration},
		{"user", false, controlUser},
		{"uid_range", false, uidRange},
		{"uid_1000", false, agentUser},
		{"memory", false, memory},
		{"disk_data", false, diskData},
		{"disk_run", false, diskRun},
		{"runtime", true, tried(runtimeRuns)},
		{"runtime_version", false, runtimeVersion},
		{"storage", true, tried(storage)},
		{"agent_state", true, tried(agentState)},
		{"workspace_roots", false, workspaceRoots},
		{"unix_sockets", true, unixSockets},
		{"cgroups", false, cgroups},
		{"seccomp", false, seccomp},
		{"apparmor", true, appArmor},
		{"user_namespaces", false, tried(userNamespaces)},
		{"subnet", false, tried(subnet)},
		{"gateway_port", true, tried(gatewayPort)},
		{"network", true, tried(network)},
		{"nft", true, tried(element)},
		{"other_firewall", false, tried(otherFirewall)},
		{rendererCheck, true, tried(renderer)},
		{"resolver", false, resolver},
		{"build_tools", false, buildTools},
		{"container_engine", false, containerEngine},
		{"keys", true, keys},
		{"certificate", false, certificate},
		{"clock", false, clock},
		{"units", false, units},
		{"host_daemon", false, hostDaemon},
		{"api", false, apiHealth},
		{"orphans", true, orphans},
	}
}

// Names lists the checks in their order.
func Names() []string {
	var names []string
	for _, c := range table() {
		names = append(names, c.name)
	}
	return names
}

// table lists the checks of this configuration and operating system.
func (e *exam) table() []check {
	switch {
	case e.Config.Kubernetes.On():
		return podsTable()
	case e.System == systemFreeBSD:
		return freebsdTable()
	}
	return table()
}

// exam is what the checks of one Run share.
type exam struct {
	Options
	Host
}

// Run runs every check, undoes what was tried, and reports. When the context ends, what is still running ends as
// failed.
func Run(ctx context.Context, o Options, h Host) Report {
	e := &exam{o, h.complete()}
	return run(ctx, e, e.table())
}

func run(ctx context.Context, e *exam, checks []check) Report {
	results := make([]Result, len(checks))
	turns := make(chan struct{}, together)
	var all sync.WaitGroup
	for i, c := range checks {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			results[i] = e.examine(ctx, c)
		})
	}
	all.Wait()

	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.Pace.Longer(undoBound))
	defer cancel()
	if err := e.Undo(undo); err != nil {
		r := failed(fmt.Errorf("undo what was tried: %w", err))
		r.Name, r.Hint = "undo", cmp.Or(r.Hint, "run `sudo clawjail doctor` again: it first removes what an earlier one has left")
		results = append(results, r)
	}
	report := Report{Checks: results, Pace: e.Pace}
	report.OK = report.Count(Fail) == 0
	return report
}

// examine runs one check within its bound. A check whose time is up and that does not notice is hung in the kernel, on
// a dead network file system for example; it is left behind, and goes with the process.
func (e *exam) examine(ctx context.Context, c check) Result {
	r := skipped("it needs root").hint("sudo clawjail doctor")
	if !c.root || e.UID == 0 {
		bound := e.Pace.Longer(c.bound())
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		done := make(chan Result, 1)
		go func() { done <- c.run(ctx, e) }()
		var slow <-chan time.Time
		if e.Slow != nil && bound > Bound {
			slow = time.After(Bound)
		}
		late := time.NewTimer(bound + grace)
		defer late.Stop()
		for waiting := true; waiting; {
			select {
			case r = <-done:
				waiting = false
			case <-slow:
				e.Slow(c.name, bound)
			case <-late.C:
				r, waiting = fails("it hung: no answer within %s", bound), false
			}
		}
	}
	r.Name = c.name
	return r
}

func result(s Status, format string, args ...any) Result {
	return Result{Status: s, Message: fmt.Sprintf(format, args...)}
}

func fine(format string, args ...any) Result    { return result(OK, format, args...) }
func warning(format string, args ...any) Result { return result(Warn, format, args...) }
func fails(format string, args ...any) Result   { return result(Fail, format, args...) }
func skipped(format string, args ...any) Result { return result(Skip, format, args...) }

func (r Result) hint(format string, args ...any) Result {
	r.Hint = fmt.Sprintf(format, args...)
	return r
}

func (r Result) fact(key string, value any) Result {
	r.Facts = maps.Clone(r.Facts)
	if r.Facts == nil {
		r.Facts = map[string]any{}
	}
	r.Facts[key] = value
	return r
}

func (r Result) facts(facts Facts) Result {
	for k, v := range facts {
		r = r.fact(k, v)
	}
	return r
}

// failed is the result of a trial that went wrong.
func failed(err error) Result {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fails("it did not end in time: %v", err)
	case errors.Is(err, context.Canceled):
		return fails("it was interrupted")
	}
	if p, ok := problem.As(err); ok {
		return fails("%v", err).hint("%s", p.Hint).fact("code", p.Code)
	}
	return fails("%v", err)
}

// failed is the result of an error, except that for other users than root a file that only root may read is none.
func (e *exam) failed(err error) Result {
	if e.UID != 0 && errors.Is(err, fs.ErrPermission) {
		return skipped("only root can look: %v", err).hint("sudo clawjail doctor")
	}
	return failed(err)
}

// tried is a check that is a trial. It is skipped where there are none.
func tried(run func(context.Context, *exam) Result) func(context.Context, *exam) Result {
	return func(ctx context.Context, e *exam) Result {
		if e.Trials.Storage == nil {
			return notHere()
		}
		return run(ctx, e)
	}
}

// notHere skips a check of something that this system has no trial for.
func notHere() Result { return skipped("it can be tried on Linux only") }
