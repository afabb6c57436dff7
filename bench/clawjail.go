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

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/session"
)

// box is a private instance with a client.
type box struct {
	*instance.Instance
	api *client.Client
}

// start starts an instance with a warm pool of that size.
func (b *bench) start(ctx context.Context, pool int) (*box, error) {
	i, err := instance.New(instance.Options{Binary: b.binary, Templates: b.templates, UIDBase: uint32(1_879_600_000 + 50_000*pool),
		Settings: fmt.Sprintf("warm_pool:\n  size: %d\n%s", pool, b.site.settings())})
	if err != nil {
		return nil, err
	}
	if err := i.Start(ctx); err != nil {
		return nil, errors.Join(err, i.Remove(ctx))
	}
	c, err := i.Client()
	return &box{i, c}, err
}

func (x *box) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	x.api.CloseIdle()
	return errors.Join(x.Stop(ctx), x.Uninstall(ctx), x.Remove(ctx))
}

// open opens a session, and keeps how long that took.
func (x *box) open(ctx context.Context, t times, name string, r api.OpenRequest) (s session.Session, err error) {
	err = t.timed(name, func() error {
		s, err = x.api.Open(ctx, r)
		return err
	})
	return s, err
}

// starts measures each way of getting a browser that answers, next to those of Docker, where it is.
func (b *bench) starts(ctx context.Context) (err error) {
	engine, err := startDocker(ctx, filepath.Join(b.templates, "browser", "rootfs"))
	switch {
	case err != nil:
		b.leaveOut("docker run", "%v", err)
	case engine == nil:
		b.leaveOut("docker run", "Docker is not installed")
	default:
		defer func() { err = errors.Join(err, engine.stop()) }()
	}
	x, full := b.boxes[cold], b.boxes[warm]
	const colds, warms, plains, dockers = "start: clawjail, cold", "start: clawjail, warm", "start: plain Chromium", "start: docker run"
	_, err = b.inTurn(b.runs, 2, func(t times) error {
		if err := plainStart(ctx, t, plains); err != nil {
			return err
		}
		if engine != nil {
			if err := engine.run(ctx, t, dockers); err != nil {
				return err
			}
		}
		s, err := x.open(ctx, t, colds, api.OpenRequest{})
		if err != nil {
			return err
		}
		t.add("start: of which the clone", milliseconds(s.Timing.Clone))
		t.add("start: of which the jail", milliseconds(s.Timing.Start+s.Timing.Verify))
		t.add("start: of which the browser", milliseconds(s.Timing.Ready))
		err = t.timed("close: until nothing is left", func() error {
			err := t.timed("close: returns", func() error { return x.api.Close(ctx, s.ID, false) })
			return errors.Join(err, x.api.Close(ctx, s.ID, true))
		})
		if err = errors.Join(err, full.poolFull(ctx)); err != nil {
			return err
		}
		if s, err = full.open(ctx, t, warms, api.OpenRequest{}); err == nil && !s.Warm {
			err = errors.New("a session with a full pool was cold")
		}
		if err != nil {
			return err
		}
		return errors.Join(full.api.Close(ctx, s.ID, true), full.poolFull(ctx)) // its filling must not disturb the next round
	})
	if err != nil {
		return err
	}
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
	return nil
}

// poolFull waits until the pool is full and the machine has calmed down.
func (x *box) poolFull(ctx context.Context) error {
	err := await(30*time.Second, 20*time.Millisecond, "the warm pool is full", func() (bool, error) {
		info, err := x.api.Info(ctx)
		return err == nil && info.Service.WarmReady == info.Service.WarmSize && info.Service.Closing == 0, err
	})
	time.Sleep(200 * time.Millisecond) // a browser goes on for a moment after its first answer
	return err
}

// memory measures idle sessions and both daemons. Most of a browser's memory is its program, mapped from the template:
// PSS divides that among those who map it, so the first session pays for all of it, like a plain Chromium does.
func (b *bench) memory(ctx context.Context) error {
	const several = 10
	x := b.boxes[cold]
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
		_, jailed, err := x.processes()
		if err != nil {
			return err
		}
		pss := megabytes(jailed, "smaps_rollup", "Pss:")
		if n == 0 {
			b.result.Value("memory: the only session, idle, PSS", "MB", pss)
			b.result.Value("memory: the only session, idle, private", "MB", megabytes(jailed, "smaps_rollup", "Private_Dirty:"))
		} else {
			b.result.Value("memory: each of ten idle sessions, PSS", "MB", pss/several).AtMost(80)
		}
	}
	for _, id := range ids {
		if err := x.api.Close(ctx, id, true); err != nil {
			return err
		}
	}
	daemons, _, err := x.processes()
	b.result.Value("memory: host daemon and control plane, RSS", "MB", megabytes(daemons, "status", "VmRSS:")).AtMost(80)
	return err
}

// processes are the folders in /proc of both daemons, without the supervisor, and of all that is in the instance's jails.
func (x *box) processes() (daemons, jailed []string, err error) {
	pids, err := x.Processes()
	if err != nil {
		return nil, nil, err
	}
	for _, pid := range pids[1:] {
		daemons = append(daemons, fmt.Sprintf("/proc/%d", pid))
	}
	scope, err := x.Scope()
	if err != nil {
		return nil, nil, err
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		if info, err := os.Stat(dir); err == nil { // else it has ended
			if uid := info.Sys().(*syscall.Stat_t).Uid; uid >= scope.UIDBase && uid < scope.UIDBase+scope.UIDs {
				jailed = append(jailed, dir)
			}
		}
	}
	return daemons, jailed, err
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
func (b *bench) sustained(ctx context.Context) error {
	const span = 15 * time.Second
	x := b.boxes[cold]
	done, err := atOnce(2, during(span), func(int) error {
		s, err := x.api.Open(ctx, api.OpenRequest{})
		if err != nil {
			return err
		}
		return x.api.Close(ctx, s.ID, true)
	})
	b.result.Value("load: open and close, sustained", "1/s", float64(done)/span.Seconds()).AtLeast(4)
	return err
}

// twenty opens twenty sessions at once.
func (b *bench) twenty(ctx context.Context) error {
	x, ids := b.boxes[cold], make([]string, 20)
	began := time.Now()
	_, err := atOnce(len(ids), upTo(len(ids)), func(n int) error {
		s, err := x.api.Open(ctx, api.OpenRequest{})
		ids[n] = s.ID
		return err
	})
	b.result.Value("load: twenty sessions at once, all ready", "ms", float64(time.Since(began).Milliseconds()))
	for _, id := range ids {
		if id != "" {
			err = errors.Join(err, x.api.Close(ctx, id, true))
		}
	}
	return err
}
