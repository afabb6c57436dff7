//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/inventory"
)

type bench struct {
	binary, templates string
	runs, cycles      int
	only              string      // the name of a part; empty is all
	site              *site       // what browsers load
	client            *playwright // nil when it is not installed
	result            result
}

// parts are what can be measured alone, in their order.
func parts() []string {
	return []string{"starts", "arena", "injection", "identity", "memory", "sustained", "twenty", "growth", "driving", "snapshot", "gateway", "agents", "console"}
}

// part says whether a part is to be measured.
func (b *bench) part(name string) bool { return b.only == "" || b.only == name }

// box is a private instance with a client.
type box struct {
	*instance.Instance
	api *client.Client
}

func (b *bench) start(ctx context.Context, uidBase uint32, settings string) (*box, error) {
	i, err := instance.New(instance.Options{Binary: b.binary, Templates: b.templates, UIDBase: uidBase, Settings: settings})
	if err != nil {
		return nil, err
	}
	if err := i.Start(ctx); err != nil {
		return nil, errors.Join(err, i.Remove(ctx))
	}
	c, err := i.Client()
	if err != nil {
		return nil, err
	}
	return &box{Instance: i, api: c}, nil
}

func (x *box) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	x.api.CloseIdle()
	return errors.Join(x.Stop(ctx), x.Uninstall(ctx), x.Remove(ctx))
}

// all measures everything, one thing after the other.
func (b *bench) all(ctx context.Context) (err error) {
	if b.part("gateway") {
		if err := b.gatewayPart(ctx); err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		if b.only != "" {
			return nil
		}
	}
	if b.part("agents") {
		if !b.hasTemplate("clawbot") {
			b.result.note("without agents: there is no template clawbot; run make templates")
		} else if err := b.agentsPart(ctx); err != nil {
			return fmt.Errorf("agents: %w", err)
		}
		if b.only != "" {
			return nil
		}
	}
	if b.site, err = startSite(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.site.end()) }()
	if b.part("console") {
		if err := b.consolePart(ctx); err != nil {
			return fmt.Errorf("console: %w", err)
		}
		if b.only != "" {
			return nil
		}
	}
	if b.client, err = startPlaywright(ctx); err != nil {
		return err
	}
	if b.client == nil {
		b.result.note("without Playwright: it is not installed; run scripts/clients.sh")
	} else {
		defer func() { err = errors.Join(err, b.client.end()) }()
	}
	cold, err := b.start(ctx, 1_879_600_000, "warm_pool:\n  size: 0\n"+b.site.settings())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cold.end()) }()
	if err := b.warmed(ctx, cold); err != nil {
		return err
	}
	for _, p := range []struct {
		name    string
		measure func(context.Context, *box) error
	}{
		{"identity", b.identity}, {"memory", b.memory}, {"sustained", b.sustained}, {"twenty", b.twenty}, {"growth", b.growth},
		{"driving", b.driving}, {"snapshot", b.snapshot},
	} {
		if !b.part(p.name) {
			continue
		}
		if err := p.measure(ctx, cold); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// warmed measures what has to do with a warm pool, beside the instance that has none.
func (b *bench) warmed(ctx context.Context, cold *box) (err error) {
	if !b.part("starts") && !b.part("injection") && !b.part("arena") {
		return nil
	}
	warm, err := b.start(ctx, 1_879_700_000, "warm_pool:\n  size: 2\n"+b.site.settings())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, warm.end()) }()
	if b.part("starts") {
		if err := b.startsBeside(ctx, cold, warm); err != nil {
			return err
		}
	}
	if b.part("arena") && b.client != nil {
		if err := b.arena(ctx, cold, warm); err != nil {
			return fmt.Errorf("arena: %w", err)
		}
	}
	if b.part("injection") {
		return b.warmInjection(ctx, warm)
	}
	return nil
}

// startsBeside measures starts next to those of Docker, where it is.
func (b *bench) startsBeside(ctx context.Context, cold, warm *box) error {
	engine, err := startDocker(ctx, filepath.Join(b.templates, "browser", "rootfs"))
	if err != nil {
		b.result.note("without Docker: %v", err)
	} else if engine == nil {
		b.result.note("without Docker: it is not installed")
	}
	err = b.starts(ctx, cold, warm, engine)
	if engine != nil {
		err = errors.Join(err, engine.stop())
	}
	return err
}

// starts measures each way of getting a browser that answers, in turn, so that all see the same noise.
func (b *bench) starts(ctx context.Context, cold, warm *box, engine *docker) error {
	var plains, dockers, colds, warms, clones, jails, readies, closes, teardowns []time.Duration
	ms := func(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
	for n := range b.runs + 2 {
		counted := n >= 2 // the first two fill the caches
		fmt.Fprintf(os.Stderr, "\rround %d of %d ", n+1, b.runs+2)
		p, err := b.plain(ctx)
		if err != nil {
			return fmt.Errorf("plain: %w", err)
		}
		var d time.Duration
		if engine != nil {
			if d, err = engine.run(ctx); err != nil {
				return err
			}
		}
		began := time.Now()
		s, err := cold.api.Open(ctx, api.OpenRequest{})
		if err != nil {
			return fmt.Errorf("cold: %w", err)
		}
		opened := time.Since(began)
		began = time.Now()
		if err := cold.api.Close(ctx, s.ID, false); err != nil {
			return err
		}
		closed := time.Since(began)
		if err := cold.api.Close(ctx, s.ID, true); err != nil {
			return err
		}
		gone := time.Since(began)
		if err := warm.poolFull(ctx); err != nil {
			return err
		}
		began = time.Now()
		w, err := warm.api.Open(ctx, api.OpenRequest{})
		if err != nil {
			return fmt.Errorf("warm: %w", err)
		}
		warmed := time.Since(began)
		if !w.Warm {
			return errors.New("a session with a full pool was cold")
		}
		if err := warm.api.Close(ctx, w.ID, true); err != nil {
			return err
		}
		if err := warm.poolFull(ctx); err != nil { // its filling must not disturb the next round
			return err
		}
		if counted {
			plains, colds, warms = append(plains, p), append(colds, opened), append(warms, warmed)
			clones, jails, readies = append(clones, ms(s.Timing.Clone)), append(jails, ms(s.Timing.Start+s.Timing.Verify)), append(readies, ms(s.Timing.Ready))
			closes, teardowns = append(closes, closed), append(teardowns, gone)
			if engine != nil {
				dockers = append(dockers, d)
			}
		}
	}
	fmt.Fprintln(os.Stderr)
	r := &b.result
	plain := r.times("start: plain Chromium", plains)
	r.times("start: clawjail, cold", colds)
	limit := plain.P50 + 70
	if engine != nil {
		limit = min(limit, 0.45*r.times("start: docker run", dockers).P50)
	}
	r.floor("start: clawjail, cold", limit, false)
	r.value("start: clawjail, cold, p95", "ms", r.Figures["start: clawjail, cold"].P95)
	r.floor("start: clawjail, cold, p95", 400, false)
	r.times("start: clawjail, warm", warms)
	r.floor("start: clawjail, warm", 10, false)
	r.times("stage: clone", clones)
	r.floor("stage: clone", 3, false)
	r.times("stage: jail", jails)
	r.times("stage: browser", readies)
	r.times("close returns", closes)
	r.floor("close returns", 20, false)
	r.times("close until gone", teardowns)
	return nil
}

// poolFull waits until the pool is full and the machine has calmed down.
func (x *box) poolFull(ctx context.Context) error {
	for range 600 {
		info, err := x.api.Info(ctx)
		if err != nil {
			return err
		}
		if info.Service.WarmReady == info.Service.WarmSize && info.Service.Closing == 0 {
			time.Sleep(100 * time.Millisecond) // a browser that has just started is not idle yet
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("the pool does not get full")
}

// memory measures idle sessions and both daemons. Most of a browser's memory is its program, mapped from the template:
// PSS divides that among those who map it, so the first session pays for all of it, like a plain Chromium does.
func (b *bench) memory(ctx context.Context, x *box) error {
	const several = 10
	var ids []string
	for n := range several {
		s, err := x.api.Open(ctx, api.OpenRequest{})
		if err != nil {
			return err
		}
		ids = append(ids, s.ID)
		if n > 0 && n < several-1 {
			continue
		}
		time.Sleep(3 * time.Second) // until they are idle
		pss, private, err := x.sessionsMemory()
		if err != nil {
			return err
		}
		if n == 0 {
			b.result.value("memory: the only session, idle, PSS", "MB", pss)
			b.result.value("memory: the only session, idle, private", "MB", private)
			continue
		}
		b.result.value("memory: each of ten idle sessions, PSS", "MB", pss/several)
		b.result.floor("memory: each of ten idle sessions, PSS", 80, false)
	}
	for _, id := range ids {
		if err := x.api.Close(ctx, id, true); err != nil {
			return err
		}
	}
	rss, err := x.daemons()
	if err != nil {
		return err
	}
	b.result.value("memory: host daemon and control plane, RSS", "MB", rss)
	b.result.floor("memory: host daemon and control plane, RSS", 80, false)
	return nil
}

// sessionsMemory is what all processes of the instance's jails have: their proportional share, and what is theirs alone,
// in megabytes.
func (x *box) sessionsMemory() (pss, private float64, err error) {
	scope, err := x.Scope()
	if err != nil {
		return 0, 0, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, 0, err
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil {
			continue // it has ended
		}
		uid := info.Sys().(*syscall.Stat_t).Uid
		if uid < scope.UIDBase || uid >= scope.UIDBase+scope.UIDs {
			continue
		}
		rollup := filepath.Join(dir, "smaps_rollup")
		pss += float64(kilobytes(rollup, "Pss:")) / 1000
		private += float64(kilobytes(rollup, "Private_Dirty:")) / 1000
	}
	return pss, private, nil
}

// daemons is the resident memory of both halves, without the supervisor, in megabytes.
func (x *box) daemons() (float64, error) {
	pids, err := x.Processes()
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, pid := range pids[1:] {
		sum += kilobytes(fmt.Sprintf("/proc/%d/status", pid), "VmRSS:")
	}
	return float64(sum) / 1000, nil
}

// kilobytes reads one field of a file of /proc. What is not there is 0.
func kilobytes(path, field string) int64 {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == field {
			n, _ := strconv.ParseInt(f[1], 10, 64) // the kernel writes a number
			return n
		}
	}
	return 0
}

// sustained opens and closes from two sides for fifteen seconds.
func (b *bench) sustained(ctx context.Context, x *box) error {
	const span = 15 * time.Second
	end := time.Now().Add(span)
	var count atomic.Int64
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i := range errs {
		both.Go(func() {
			for time.Now().Before(end) && errs[i] == nil {
				s, err := x.api.Open(ctx, api.OpenRequest{})
				if err == nil {
					err = x.api.Close(ctx, s.ID, true)
				}
				errs[i] = err
				count.Add(1)
			}
		})
	}
	both.Wait()
	b.result.value("sustained open and close", "1/s", float64(count.Load())/span.Seconds())
	b.result.floor("sustained open and close", 4, true)
	return errors.Join(errs...)
}

// twenty opens twenty sessions at once.
func (b *bench) twenty(ctx context.Context, x *box) error {
	errs := make([]error, 20)
	began := time.Now()
	var all sync.WaitGroup
	ids := make([]string, len(errs))
	for i := range errs {
		all.Go(func() {
			s, err := x.api.Open(ctx, api.OpenRequest{})
			ids[i], errs[i] = s.ID, err
		})
	}
	all.Wait()
	b.result.value("twenty sessions at once, all ready", "ms", float64(time.Since(began).Milliseconds()))
	for i, id := range ids {
		if errs[i] == nil {
			errs[i] = x.api.Close(ctx, id, true)
		}
	}
	return errors.Join(errs...)
}

// holding is what must not grow.
type holding struct {
	rss          float64
	descriptors  int
	things       int
	bytes, files int64
}

func (x *box) holding(ctx context.Context) (h holding, err error) {
	if h.rss, err = x.daemons(); err != nil {
		return h, err
	}
	pids, err := x.Processes()
	if err != nil {
		return h, err
	}
	for _, pid := range pids {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return h, err
		}
		h.descriptors += len(fds)
	}
	scope, err := x.Scope()
	if err != nil {
		return h, err
	}
	things, err := inventory.Settled(ctx, scope)
	h.things = len(inventory.CountSlots(things))
	if err != nil {
		return h, err
	}
	for _, dir := range []string{x.Config.DataDir, x.Config.RunDir} {
		err = errors.Join(err, filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
			if err == nil {
				h.files++
				h.bytes += info.Size()
			}
			return nil // what goes away while walking is not there
		}))
	}
	return h, err
}

// growth opens, uses and closes many sessions, and compares what the program holds.
func (b *bench) growth(ctx context.Context, x *box) error {
	if b.cycles == 0 {
		return nil
	}
	cycle := func() error {
		s, err := x.api.Open(ctx, api.OpenRequest{})
		if err != nil {
			return err
		}
		if _, err := x.api.Navigate(ctx, s.ID, browser.Navigate{URL: "about:blank"}); err != nil {
			return err
		}
		return x.api.Close(ctx, s.ID, true)
	}
	for range min(300, b.cycles) { // ended sessions are remembered for a while: until that is full, memory grows
		if err := cycle(); err != nil {
			return err
		}
	}
	before, err := x.holding(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	for n := range b.cycles {
		if n%50 == 0 {
			fmt.Fprintf(os.Stderr, "\rcycle %d of %d ", n, b.cycles)
		}
		if err := cycle(); err != nil {
			return fmt.Errorf("cycle %d: %w", n, err)
		}
	}
	fmt.Fprintln(os.Stderr)
	took := time.Since(began)
	after, err := x.holding(ctx)
	if err != nil {
		return err
	}
	r := &b.result
	name := fmt.Sprintf("growth over %d cycles: ", b.cycles)
	r.value(name+"memory of the daemons", "MB", after.rss-before.rss)
	r.floor(name+"memory of the daemons", 5, false)
	r.value(name+"descriptors", "", float64(after.descriptors-before.descriptors))
	r.floor(name+"descriptors", 0, false)
	r.value(name+"mounts, interfaces, groups", "", float64(after.things-before.things))
	r.floor(name+"mounts, interfaces, groups", 0, false)
	r.value(name+"files", "", float64(after.files-before.files))
	r.floor(name+"files", 0, false)
	r.value("one cycle of open, navigate, close until gone", "ms", float64(took.Milliseconds())/float64(b.cycles))
	return nil
}
