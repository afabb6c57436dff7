//go:build linux || freebsd

package freebsd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Limiter bounds jails by rules of rctl(8). They are made before the jail and outlive it, until they are removed.
//
//   - Memory: memoryuse ends the process that goes beyond (sigkill): the kernel cannot deny resident memory, "deny" is
//     accepted and only pages out (sys/kern/kern_racct.c, RACCT_RSS; rctl(8) warns of the thrashing). swapuse, which
//     counts what is reserved and not only what is swapped (sys/vm/swap_pager.c, swap_reserve_by_cred), denies twice the
//     memory, so that a jail that only reserves is bounded as well. Virtual memory is not limited: Chromium reserves
//     terabytes of it. Data in a tmpfs is not counted against the jail; each has its own size.
//   - Tasks: nthr counts threads, of which every process has at least one; maxproc bounds processes on top.
//   - Files: openfiles is the sum over a jail unless it is said to be meant for each process.
//   - CPU: pcpu throttles, in whole hundredths of one CPU.
type Limiter struct {
	o     Options
	jails jails

	mu   sync.Mutex
	peak map[jail.Name]int64 // guarded by mu, as is hit
	hit  map[jail.Name][]jail.LimitName
}

func newLimiter(o Options) *Limiter {
	return &Limiter{o: o, jails: jails{o.Commands}, peak: map[jail.Name]int64{}, hit: map[jail.Name][]jail.LimitName{}}
}

// ready looks whether the kernel counts resources at all.
func (l *Limiter) ready(ctx context.Context) error {
	_, err := l.rules(ctx, "")
	return err
}

// rule is one of rctl, "jail:NAME:resource:action=amount" with "/per" where that is not the jail.
type rule struct {
	name                  jail.Name
	resource, action, per string
	amount                int64
}

func (r rule) String() string {
	s := fmt.Sprintf("jail:%s:%s:%s=%d", r.name, r.resource, r.action, r.amount)
	if r.per != "" {
		s += "/" + r.per
	}
	return s
}

func rulesOf(name jail.Name, lim jail.Limits) []rule {
	return []rule{
		{name, "memoryuse", "sigkill", "", lim.Memory},
		{name, "swapuse", "deny", "", 2 * lim.Memory},
		{name, "maxproc", "deny", "", int64(lim.Tasks)},
		{name, "nthr", "deny", "", int64(lim.Tasks)},
		{name, "openfiles", "deny", "process", int64(lim.Files)},
		{name, "pcpu", "deny", "", int64(max(lim.MilliCPU/10, 1))},
	}
}

// Apply adds the rules, and looks whether they are there. rctl knows no sum over some of the host's jails: those of a tenant are
// bounded together by what they declare alone, which the host daemon counts.
func (l *Limiter) Apply(ctx context.Context, name jail.Name, _ string, lim jail.Limits) error {
	if err := errors.Join(l.o.check(name), lim.Validate()); err != nil {
		return err
	}
	want := rulesOf(name, lim)
	for _, r := range want {
		if _, err := l.o.Commands.Run(ctx, "rctl", "-a", r.String()); err != nil {
			return fmt.Errorf("limit jail %s: %w", name, disabled(err))
		}
	}
	have, err := l.rules(ctx, name)
	if err != nil {
		return fmt.Errorf("limit jail %s: %w", name, err)
	}
	for _, r := range want {
		if !slices.Contains(have, r) {
			return fmt.Errorf("limit jail %s: rctl took the rule %s and does not show it", name, r)
		}
	}
	return nil
}

// rules lists the rules of a jail, or those of all jails.
func (l *Limiter) rules(ctx context.Context, name jail.Name) ([]rule, error) {
	text, err := l.o.Commands.Run(ctx, "rctl")
	if err != nil {
		return nil, disabled(err)
	}
	var out []rule
	for line := range strings.Lines(text) {
		if r, ok := parseRule(strings.TrimSpace(line)); ok && (name == "" || r.name == name) {
			out = append(out, r)
		}
	}
	return out, nil
}

// parseRule reads a rule of a jail. Rules of other subjects are not ours to understand.
func parseRule(line string) (rule, bool) {
	head, tail, ok := strings.Cut(line, "=")
	f := strings.Split(head, ":")
	if !ok || len(f) != 4 || f[0] != "jail" {
		return rule{}, false
	}
	amount, per, _ := strings.Cut(tail, "/")
	if per == "jail" {
		per = ""
	}
	n, err := strconv.ParseInt(amount, 10, 64)
	return rule{jail.Name(f[1]), f[2], f[3], per, n}, err == nil
}

// disabled says in the user's words that the kernel counts nothing. The texts are those of usr.bin/rctl/rctl.c.
func disabled(err error) error {
	switch {
	case hostcmd.Says(err, "present, but disabled"):
		return problem.Wrap(err, problem.Unsupported, `add kern.racct.enable=1 to /boot/loader.conf and restart the host`,
			"this host counts no resources, so jails could not be limited")
	case hostcmd.Says(err, "support not present in kernel"):
		return problem.Wrap(err, problem.Unsupported, "run a GENERIC kernel, or build one with RACCT and RCTL",
			"this kernel cannot limit resources")
	}
	return err
}

// Remove removes the rules. A jail that lives keeps them: ErrBusy.
func (l *Limiter) Remove(ctx context.Context, name jail.Name) error {
	if err := l.o.check(name); err != nil {
		return err
	}
	have, err := l.rules(ctx, name)
	if err != nil {
		return fmt.Errorf("remove the limits of jail %s: %w", name, err)
	}
	if len(have) > 0 {
		if p, there, err := l.jails.find(ctx, name); err != nil || there && !p.dying {
			return errors.Join(err, fmt.Errorf("remove the limits of jail %s: it is still there: %w", name, jail.ErrBusy))
		}
		_, failed := l.o.Commands.Run(ctx, "rctl", "-r", "jail:"+string(name))
		if have, err = l.rules(ctx, name); err != nil || len(have) > 0 {
			return fmt.Errorf("remove the limits of jail %s: %w", name, errors.Join(err, failed, jail.ErrBusy))
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.peak, name)
	delete(l.hit, name)
	return nil
}

// Usage reports what rctl has counted. rctl does not count refusals: a limit was hit when the jail was seen at it.
func (l *Limiter) Usage(ctx context.Context, name jail.Name, _ jail.Process) (jail.Usage, error) {
	if err := l.o.check(name); err != nil {
		return jail.Usage{}, err
	}
	text, err := l.o.Commands.Run(ctx, "rctl", "-u", "jail:"+string(name))
	if err != nil {
		return jail.Usage{}, fmt.Errorf("measure jail %s: %w", name, disabled(err))
	}
	use := map[string]int64{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				use[k] = n
			}
		}
	}
	have, err := l.rules(ctx, name)
	if err != nil {
		return jail.Usage{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peak[name] = max(l.peak[name], use["memoryuse"])
	for _, r := range have {
		if r.per == "" && r.amount > 0 && use[r.resource] >= r.amount {
			if n := limitNames()[r.resource]; n != "" && !slices.Contains(l.hit[name], n) {
				l.hit[name] = append(l.hit[name], n)
			}
		}
	}
	return jail.Usage{MemoryBytes: use["memoryuse"], MemoryPeak: l.peak[name], CPU: time.Duration(use["cputime"]) * time.Second,
		Tasks: int(max(use["nthr"], use["maxproc"])), Hit: slices.Clone(l.hit[name])}, nil
}

func limitNames() map[string]jail.LimitName {
	return map[string]jail.LimitName{"memoryuse": jail.LimitMemory, "swapuse": jail.LimitMemory, "nthr": jail.LimitTasks, "maxproc": jail.LimitTasks}
}

// enforced reads the limits back.
func (l *Limiter) enforced(ctx context.Context, name jail.Name, o *jail.Observed) error {
	have, err := l.rules(ctx, name)
	if err != nil {
		return err
	}
	for _, r := range have {
		switch [3]string{r.resource, r.action, r.per} {
		case [3]string{"memoryuse", "sigkill", ""}:
			o.Memory = r.amount
		case [3]string{"nthr", "deny", ""}:
			o.Tasks = int(r.amount)
		case [3]string{"openfiles", "deny", "process"}:
			o.Files = int(r.amount)
		case [3]string{"pcpu", "deny", ""}:
			o.MilliCPU = int(r.amount) * 10
		}
	}
	return nil
}

// List reports the jails of this installation that have rules.
func (l *Limiter) List(ctx context.Context) ([]jail.HostResource, error) {
	all, err := l.rules(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list limits: %w", err)
	}
	var out []jail.HostResource
	for _, r := range all {
		t := jail.HostResource{Kind: jail.ResourceCgroup, Name: r.name, Index: -1, ID: "rctl jail:" + string(r.name)}
		if r.name.Belongs(l.o.Installation) && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out, nil
}
