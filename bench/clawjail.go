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
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/session"
)

// testInstance is a private instance with a client.
type testInstance struct {
	*instance.Instance
	api *client.Client
}

// start starts an instance with a warm pool of that size.
func (b *bench) start(ctx context.Context, pool int) *testInstance {
	i := must(instance.New(instance.Options{Binary: b.binary, Templates: b.templates, UIDBase: uint32(1_879_600_000 + 50_000*pool),
		Settings: fmt.Sprintf("warm_pool:\n  size: %d\n%s", pool, b.site.settings())}))
	if err := i.Start(ctx); err != nil {
		check(err, i.Remove(ctx))
	}
	return &testInstance{i, must(i.Client())}
}

func (x *testInstance) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	x.api.CloseIdle()
	return errors.Join(x.Stop(ctx), x.Uninstall(ctx), x.Remove(ctx))
}

// open opens a session, and gone closes one until nothing of it is left.
func (x *testInstance) open(ctx context.Context) session.Session {
	return must(x.api.Open(ctx, session.OpenRequest{}))
}
func (x *testInstance) gone(ctx context.Context, id string) { check(x.api.Close(ctx, id, true)) }

// with opens a session for something, and closes it.
func (x *testInstance) with(ctx context.Context, do func(session string)) {
	id := x.open(ctx).ID
	check(attempt(func() { do(id) }), x.api.Close(context.WithoutCancel(ctx), id, true))
}

// starts measures each way of getting a browser that answers, next to those of Docker, where it is.
func (b *bench) starts(ctx context.Context) {
	engine, err := startDocker(ctx, filepath.Join(b.templates, "browser", "rootfs"))
	switch {
	case err != nil:
		b.leaveOut("docker run", "%v", err)
	case engine == nil:
		b.leaveOut("docker run", "Docker is not installed")
	default:
		b.atEnd(engine.stop)
	}
	x, full := b.boxes[cold], b.boxes[warm]
	const colds, warms, plains, dockers = "start: clawjail, cold", "start: clawjail, warm", "start: plain Chromium", "start: docker run"
	b.inTurn(b.runs, 2, func(t times) {
		plainStart(ctx, t, plains)
		if engine != nil {
			engine.run(ctx, t, dockers)
		}
		var s session.Session
		t.timed(colds, func() { s = x.open(ctx) })
		t.add("start: of which the clone", milliseconds(s.Timing.Clone))
		t.add("start: of which the jail", milliseconds(s.Timing.Start+s.Timing.Verify))
		t.add("start: of which the browser", milliseconds(s.Timing.Ready))
		t.timed("close: until nothing is left", func() {
			t.timed("close: returns", func() { check(x.api.Close(ctx, s.ID, false)) })
			x.gone(ctx, s.ID)
		})
		full.poolFull(ctx)
		t.timed(warms, func() { s = full.open(ctx) })
		if !s.Warm {
			check(errors.New("a session with a full pool was cold"))
		}
		full.gone(ctx, s.ID)
		full.poolFull(ctx) // its filling must not disturb the next round
	})
	r := &b.result
	limit := r.Figures[plains].P50 + 70
	if f := r.Figures[dockers]; f != nil {
		limit = min(limit, 0.45*f.P50)
	}
	r.Figures[colds].AtMost(limit)
	r.Value(colds+", p95", "ms", r.Figures[colds].P95).AtMost(400)
	r.Figures[warms].AtMost(10)
	r.Beside("plain Chromium", plains, colds, warms)
	r.Beside("docker run, same root filesystem", dockers, colds, warms)
	r.Figures["start: of which the clone"].AtMost(3)
	r.Figures["close: returns"].AtMost(20)
}

// poolFull waits until the pool is full and the machine has calmed down.
func (x *testInstance) poolFull(ctx context.Context) {
	await(30*time.Second, 20*time.Millisecond, "the warm pool is full", func() bool {
		info := must(x.api.Info(ctx))
		return info.Service.WarmReady == info.Service.WarmSize && info.Service.Closing == 0
	})
	time.Sleep(200 * time.Millisecond) // a browser goes on for a moment after its first answer
}

// memory measures idle sessions and both daemons. Most of a browser's memory is its program, mapped from the template:
// PSS divides that among those who map it, so the first session pays for all of it, like a plain Chromium does.
func (b *bench) memory(ctx context.Context) {
	const several = 10
	x := b.boxes[cold]
	ids := []string{x.open(ctx).ID}
	time.Sleep(3 * time.Second) // until it is idle
	_, jailed := x.processes()
	b.result.Value("memory: the only session, idle, PSS", "MB", megabytes(jailed, "smaps_rollup", "Pss:"))
	b.result.Value("memory: the only session, idle, private", "MB", megabytes(jailed, "smaps_rollup", "Private_Dirty:"))
	for len(ids) < several {
		ids = append(ids, x.open(ctx).ID)
	}
	time.Sleep(3 * time.Second)
	_, jailed = x.processes()
	b.result.Value("memory: each of ten idle sessions, PSS", "MB", megabytes(jailed, "smaps_rollup", "Pss:")/several).AtMost(80)
	for _, id := range ids {
		x.gone(ctx, id)
	}
	daemons, _ := x.processes()
	b.result.Value("memory: host daemon and control plane, RSS", "MB", megabytes(daemons, "status", "VmRSS:")).AtMost(80)
	b.idleDaemons(daemons)
}

// idleDaemons measures what each daemon uses without a session, for long enough to see a look of the host daemon at its
// templates.
func (b *bench) idleDaemons(daemons []string) {
	const span = 2 * time.Minute
	before := make([]float64, len(daemons))
	for i := range daemons {
		before[i] = ticks(daemons[i : i+1])
	}
	time.Sleep(span)
	for i, dir := range daemons {
		used := (ticks(daemons[i:i+1]) - before[i]) / span.Seconds()
		if strings.Contains(string(must(os.ReadFile(filepath.Join(dir, "cmdline")))), "\x00hostd\x00") {
			b.result.Value("idle: host daemon", "% of a core", used).AtMost(0.3)
		} else {
			b.result.Value("idle: control plane", "% of a core", used)
		}
	}
}

// processes are the folders in /proc of both daemons, without the supervisor, and of all that is in the instance's jails.
func (x *testInstance) processes() (daemons, jailed []string) {
	for _, pid := range must(x.Processes())[1:] {
		daemons = append(daemons, fmt.Sprintf("/proc/%d", pid))
	}
	scope := must(x.Scope())
	for _, dir := range must(filepath.Glob("/proc/[0-9]*")) {
		if info, err := os.Stat(dir); err == nil { // else it has ended
			if uid := info.Sys().(*syscall.Stat_t).Uid; uid >= scope.UIDBase && uid < scope.UIDBase+scope.UIDs {
				jailed = append(jailed, dir)
			}
		}
	}
	return daemons, jailed
}

// megabytes adds up one field of a file that processes have in /proc. One that has ended has nothing.
func megabytes(processes []string, file, field string) (sum float64) {
	for _, dir := range processes {
		text, _ := os.ReadFile(filepath.Join(dir, file))
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == field {
				n, _ := strconv.ParseFloat(f[1], 64) // the kernel writes a number
				sum += n / 1000
			}
		}
	}
	return sum
}

// sustained opens and closes from two sides for fifteen seconds.
func (b *bench) sustained(ctx context.Context) {
	const span = 15 * time.Second
	x := b.boxes[cold]
	done := atOnce(2, during(span), func(int) { x.gone(ctx, x.open(ctx).ID) })
	b.result.Value("load: open and close, sustained", "1/s", float64(done)/span.Seconds()).AtLeast(4)
}

// twenty opens twenty sessions at once.
func (b *bench) twenty(ctx context.Context) {
	x, ids := b.boxes[cold], make([]string, 20)
	began := time.Now()
	atOnce(len(ids), upTo(len(ids)), func(n int) { ids[n] = x.open(ctx).ID })
	b.result.Value("load: twenty sessions at once, all ready", "ms", float64(time.Since(began).Milliseconds()))
	for _, id := range ids {
		x.gone(ctx, id)
	}
}

// holding is what must not grow.
type holding struct{ rss, descriptors, things, files float64 }

func (x *testInstance) holding(ctx context.Context) (h holding) {
	daemons, _ := x.processes()
	h.rss = megabytes(daemons, "status", "VmRSS:")
	for _, pid := range must(x.Processes()) {
		h.descriptors += float64(len(must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)))))
	}
	h.things = float64(len(inventory.CountSlots(must(inventory.Settled(ctx, must(x.Scope()))))))
	for _, dir := range []string{x.Config.DataDir, x.Config.RunDir} {
		check(filepath.Walk(dir, func(_ string, _ os.FileInfo, err error) error {
			if err == nil {
				h.files++
			}
			return nil // what goes away while walking is not there
		}))
	}
	return h
}

// rememberedSessions is how many that have ended are remembered for a while: until there are so many, memory grows.
const rememberedSessions = 300

// growth opens, uses and closes many sessions, and compares what the program holds.
func (b *bench) growth(ctx context.Context) {
	if b.cycles == 0 {
		return
	}
	x := b.boxes[cold]
	cycle := func(int) {
		x.with(ctx, func(session string) { must(x.api.Navigate(ctx, session, browser.Navigate{URL: "about:blank"})) })
	}
	atOnce(2, upTo(min(rememberedSessions, b.cycles)), cycle)
	before, began := x.holding(ctx), time.Now()
	atOnce(2, upTo(b.cycles), cycle)
	took, after := time.Since(began), x.holding(ctx)
	r, over := &b.result, fmt.Sprintf(", over %d cycles", b.cycles)
	r.Value("growth: memory of the daemons"+over, "MB", after.rss-before.rss).AtMost(5)
	r.Value("growth: descriptors"+over, "", after.descriptors-before.descriptors).AtMost(0)
	r.Value("growth: mounts, interfaces, groups"+over, "", after.things-before.things).AtMost(0)
	r.Value("growth: files"+over, "", after.files-before.files).AtMost(0)
	r.Value("load: open, navigate, close until gone, two at a time", "1/s", float64(b.cycles)/took.Seconds())
}
