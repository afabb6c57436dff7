// Package selftest is the acceptance run on the user's own machine: does everything that clawjail promises about
// browsers in jails hold here, and is the machine afterwards as it was before?
//
// It runs a private instance of the very program beside the machine's own (which need not run), with the
// machine's templates and file system, serves an HTTPS page of its own on loopback, and judges the result by
// what the page and the host say, not by what the program reports.
package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"image/png"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/selftest/website"
	"github.com/clawjail/clawjail/internal/session"
)

// Options of a run.
type Options struct {
	// Cycles of open, navigate, screenshot, close.
	Cycles int
	// Binary is the program under test.
	Binary string
	// Config is that of the machine's own installation: where its templates and its data are.
	Config config.Config
	// Verify checks the template browser against its manifest.
	Verify func(context.Context) error
	// Pace is how slow this machine is: limits of time grow with it. See [pace.Measure].
	Pace pace.Pace
	// Say is told what is being done, one sentence at a time. May be nil.
	Say func(string)
	Now func() time.Time
}

const (
	// pageLimitMS is how long a page and a picture of it may take: a machine that is slow passes too.
	pageLimitMS = 120_000
	// finishLimit bounds taking the instance away on an ordinary machine.
	finishLimit = 2 * time.Minute
)

// MaxCycles bounds a run.
const MaxCycles = 100_000

// Run makes the acceptance run. The report is complete also when it is not ok; an error means that the run could
// not be made at all.
func Run(ctx context.Context, o Options) (Report, error) {
	if os.Geteuid() != 0 {
		return Report{}, problem.New(problem.NoRoot, "run it with sudo", "the self-test makes jails of its own, which needs root")
	}
	if o.Cycles < 1 || o.Cycles > MaxCycles {
		return Report{}, problem.New(problem.BadUsage, "for example: clawjail selftest --cycles 10", "%d cycles are not between 1 and %d", o.Cycles, MaxCycles)
	}
	if o.Say == nil {
		o.Say = func(string) {}
	}
	release, err := claim(folder(o.Config.DataDir))
	if err != nil {
		return Report{}, err
	}
	defer release()
	o.Say("verifying the template")
	if err := o.Verify(ctx); err != nil {
		return Report{}, err
	}
	site, err := website.New()
	if err != nil {
		return Report{}, err
	}
	defer site.Close()
	r := &run{Options: o, site: site, times: map[string][]time.Duration{}}
	if err := r.all(ctx); err != nil {
		if ctx.Err() != nil {
			return Report{}, context.Cause(ctx)
		}
		r.fail("%v", err)
	}
	return r.report(), nil
}

// folder is where self-tests and demos keep what they need of the disk.
func folder(dataDir string) string { return filepath.Join(dataDir, "selftest") }

// claim makes the folder for one of them at a time: they have the same users and the same authority. The code is conflict while another
// runs. release removes the folder, unless something of an instance is left in it.
func claim(dir string) (release func(), err error) {
	for {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			if errors.Is(err, unix.EWOULDBLOCK) {
				err = problem.Wrap(err, problem.Conflict, "wait until it has ended", "another self-test or demo of this installation is running")
			}
			return nil, errors.Join(fmt.Errorf("claim %s: %w", dir, err), f.Close())
		}
		mine, err := f.Stat()
		if there, gone := os.Stat(dir); err != nil || gone != nil || !os.SameFile(mine, there) {
			_ = f.Close() // of a self-test that has just removed it
			continue
		}
		return func() {
			if left, err := filepath.Glob(filepath.Join(dir, "private-*")); err == nil && len(left) == 0 {
				_ = os.RemoveAll(dir) // the next self-test does it
			}
			_ = f.Close() // nothing was written to it
		}, nil
	}
}

type run struct {
	Options
	site     *website.Site
	done     int
	operated int
	times    map[string][]time.Duration
	failures []string
	residue  []inventory.HostResource
}

func (r *run) fail(format string, a ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, a...))
}

func (r *run) took(stage string, d time.Duration) { r.times[stage] = append(r.times[stage], d) }

// all uses an instance, and kills it.
func (r *run) all(ctx context.Context) error {
	return r.inInstance(ctx, func(inst *instance.Instance) error {
		if err := r.cycles(ctx, inst); err != nil {
			return err
		}
		return r.orphan(ctx, inst)
	})
}

// inInstance makes an instance, uses it, and takes it away again whatever happens. A part that cannot be taken away becomes
// residue.
func (r *run) inInstance(ctx context.Context, use func(*instance.Instance) error) (err error) {
	settings, err := r.settings()
	if err != nil {
		return err
	}
	inst, err := instance.New(instance.Options{Binary: r.Binary, Parent: folder(r.Config.DataDir),
		Templates: r.Config.TemplatesDir, UIDBase: 1_879_400_000, Settings: settings, Pace: r.Pace})
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Pace.Longer(finishLimit))
		defer cancel()
		err = errors.Join(err, r.finish(end, inst))
	}()
	r.Say("starting a private instance")
	if err := inst.Start(ctx); err != nil {
		return err
	}
	return use(inst)
}

// settings of the instance: no pool, so that every open is a cold one.
func (r *run) settings() (string, error) {
	ca := filepath.Join(folder(r.Config.DataDir), "ca.pem")
	if err := os.WriteFile(ca, r.site.CA, 0o644); err != nil {
		return "", err
	}
	return fmt.Sprintf(`extra_ca: [%s]
storage: %s
runtime: %s
apparmor: %s
warm_pool:
  size: 0
gateway:
  private_destinations:
    - host: %s
      address: 127.0.0.1
      ports: [%d]
`, ca, r.Config.Storage, r.Config.Runtime, r.Config.AppArmor, website.Host, r.site.Port), nil
}

func (r *run) cycles(ctx context.Context, inst *instance.Instance) error {
	c, err := inst.Client()
	if err != nil {
		return err
	}
	defer c.CloseIdle()
	scope, err := inst.Scope()
	if err != nil {
		return err
	}
	// The first session makes what all share, and is not counted.
	if err := r.cycle(ctx, c, string(config.BrowserShell), false); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	idle, err := inventory.Settled(ctx, scope)
	if err != nil {
		return err
	}
	for n := range r.Cycles {
		r.Say(fmt.Sprintf("cycle %d of %d", n+1, r.Cycles))
		if err := r.cycle(ctx, c, string(config.BrowserShell), true); err != nil {
			r.fail("cycle %d: %v", n+1, err)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		r.done++
	}
	r.Say("one cycle with the full Chromium")
	if err := r.cycle(ctx, c, string(config.BrowserFull), false); err != nil {
		r.fail("full Chromium: %v", err)
	}
	if err := r.accounts(ctx, c); err != nil {
		r.fail("accounts: %v", err)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	after, err := inventory.Settled(ctx, scope)
	if err != nil {
		return err
	}
	r.residue = append(r.residue, inventory.Added(inventory.CountSlots(idle), inventory.CountSlots(after))...)
	return nil
}

// cycle opens a session, loads the page, looks at it and closes.
func (r *run) cycle(ctx context.Context, c *client.Client, build string, counted bool) (err error) {
	began := r.Now()
	s, err := c.Open(ctx, session.OpenRequest{Browser: build, TTL: "5m"})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	opened := r.Now().Sub(began)
	closed := false
	defer func() {
		if !closed {
			err = errors.Join(err, c.Close(context.WithoutCancel(ctx), s.ID, true))
		}
	}()
	visits := r.site.Visits()
	began = r.Now()
	page, err := c.Navigate(ctx, s.ID, browser.Navigate{URL: r.site.URL("/"), TimeoutMS: pageLimitMS})
	if err != nil {
		return fmt.Errorf("navigate: %w", err)
	}
	navigated := r.Now().Sub(began)
	if page.Title != website.Title || r.site.Visits() == visits {
		return fmt.Errorf("the page has the title %q and its server saw %d visits", page.Title, r.site.Visits()-visits)
	}
	picture, err := c.Picture(ctx, s.ID, browser.Screenshot{TimeoutMS: pageLimitMS})
	if err != nil {
		return fmt.Errorf("screenshot: %w", err)
	}
	if err := looksRight(picture); err != nil {
		return err
	}
	began = r.Now()
	closed = true
	if err := c.Close(ctx, s.ID, true); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	if counted {
		ms := func(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
		r.took("clone", ms(s.Timing.Clone))
		r.took("attach", ms(s.Timing.Attach))
		r.took("start", ms(s.Timing.Start+s.Timing.Verify))
		r.took("ready", ms(s.Timing.Ready))
		r.took("open", opened)
		r.took("navigate", navigated)
		r.took("teardown", r.Now().Sub(began))
	}
	return nil
}

// looksRight finds the page's colour in the middle of a screenshot.
func looksRight(picture []byte) error {
	img, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return fmt.Errorf("the screenshot is not a picture: %w", err)
	}
	b := img.Bounds()
	got := color.NRGBAModel.Convert(img.At(b.Min.X+b.Dx()/2, b.Min.Y+b.Dy()/2)).(color.NRGBA)
	want := color.NRGBA{A: 0xff}
	want.R, want.G, want.B = website.Background()
	if got != want {
		return fmt.Errorf("the screenshot shows %v where the page is %v", got, want)
	}
	return nil
}

// orphan kills every process of the instance while a browser runs, and lets the reaper clean up twice.
func (r *run) orphan(ctx context.Context, inst *instance.Instance) error {
	r.Say("orphaning a jail")
	c, err := inst.Client()
	if err != nil {
		return err
	}
	defer c.CloseIdle()
	if _, err := c.Open(ctx, session.OpenRequest{}); err != nil {
		return fmt.Errorf("open a session to orphan: %w", err)
	}
	if err := inst.Kill(); err != nil {
		return fmt.Errorf("kill the instance: %w", err)
	}
	for attempt := range 2 {
		out, err := inst.Run(ctx, "reap", "--json")
		if err != nil {
			return fmt.Errorf("reap: %w", err)
		}
		var report jail.ReapReport
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			return fmt.Errorf("reap printed %q: %w", out, err)
		}
		switch {
		case attempt == 0 && len(report.Findings) == 0:
			r.fail("the reaper did not find the orphaned jail")
		case attempt == 1 && len(report.Findings) > 0:
			r.fail("the reaper found %d things in its second run", len(report.Findings))
		}
	}
	return nil
}

// finish stops and removes the instance and looks at what is left of it.
func (r *run) finish(ctx context.Context, inst *instance.Instance) error {
	r.Say("comparing the host with what it was")
	errs := []error{inst.Stop(ctx)}
	scope, err := inst.Scope()
	errs = append(errs, err, inst.Uninstall(ctx))
	left, err := inventory.Settled(ctx, scope)
	errs = append(errs, err)
	r.residue = append(r.residue, left...)
	if len(left) == 0 {
		errs = append(errs, inst.Remove(ctx))
	}
	return errors.Join(errs...)
}
