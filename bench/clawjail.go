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
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/instance"
)

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

// startsBeside measures starts next to those of Docker, where it is.
func (b *bench) startsBeside(ctx context.Context) error {
	engine, err := startDocker(ctx, filepath.Join(b.templates, "browser", "rootfs"))
	if err != nil {
		b.leaveOut("docker run", "%v", err)
	} else if engine == nil {
		b.leaveOut("docker run", "Docker is not installed")
	}
	err = b.starts(ctx, b.cold, b.warm, engine)
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
	r := &b.result
	plain := r.Times("start: plain Chromium", plains)
	r.Times("start: clawjail, cold", colds)
	limit := plain.P50 + 70
	if engine != nil {
		limit = min(limit, 0.45*r.Times("start: docker run", dockers).P50)
	}
	r.AtMost("start: clawjail, cold", limit)
	r.Value("start: clawjail, cold, p95", "ms", r.Figures["start: clawjail, cold"].P95)
	r.AtMost("start: clawjail, cold, p95", 400)
	r.Times("start: clawjail, warm", warms)
	r.AtMost("start: clawjail, warm", 10)
	for _, how := range []string{"start: clawjail, cold", "start: clawjail, warm"} {
		r.Beside(how, "start: plain Chromium", "plain Chromium")
		r.Beside(how, "start: docker run", "docker run, same root filesystem")
	}
	r.Times("start: of which the clone", clones)
	r.AtMost("start: of which the clone", 3)
	r.Times("start: of which the jail", jails)
	r.Times("start: of which the browser", readies)
	r.Times("close: returns", closes)
	r.AtMost("close: returns", 20)
	r.Times("close: until nothing is left", teardowns)
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
			b.result.Value("memory: the only session, idle, PSS", "MB", pss)
			b.result.Value("memory: the only session, idle, private", "MB", private)
			continue
		}
		b.result.Value("memory: each of ten idle sessions, PSS", "MB", pss/several)
		b.result.AtMost("memory: each of ten idle sessions, PSS", 80)
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
	b.result.Value("memory: host daemon and control plane, RSS", "MB", rss)
	b.result.AtMost("memory: host daemon and control plane, RSS", 80)
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

// kilobytes reads one field of a file of /proc. A field that is not there is 0.
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
	b.result.Value("load: open and close, sustained", "1/s", float64(count.Load())/span.Seconds())
	b.result.AtLeast("load: open and close, sustained", 4)
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
	b.result.Value("load: twenty sessions at once, all ready", "ms", float64(time.Since(began).Milliseconds()))
	for i, id := range ids {
		if errs[i] == nil {
			errs[i] = x.api.Close(ctx, id, true)
		}
	}
	return errors.Join(errs...)
}
