// Package host keeps the browser of the host: one that belongs to the person at this desktop and looks like it, for
// agents to use beside the person's own.
//
// It promises: the browser has a data directory of its own, and the person's profiles are never opened. It is driven
// over a pipe, so there is no debugging port, and it ends when this process does, however that ends. Nothing
// is started when the settings say so. Status costs a few file lookups, and looks at no process but the one that was
// started here.
//
// A [Keeper] decides when the browser is started. Errors are problems with a code: browser_disabled,
// browser_not_running, browser_missing, browser_failed, no_display, forbidden, and those of the operations.
package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/guard"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// ProfileName is the name of the one profile there is. The browser shows it.
const ProfileName = "clawd"

// launchLimit bounds a start. A cold one takes a few seconds on a slow disk.
const launchLimit = 15 * time.Second

// Options of a [Keeper].
type Options struct {
	Settings config.HostBrowser
	// Environment says where files belong, and whether there is a display.
	Environment config.Environment
	// Dir is where everything of the browser is kept; see [DataDir].
	Dir string
	Log *slog.Logger
	Now func() time.Time
}

// Keeper starts, watches and stops the browser. It is safe for use by many goroutines.
type Keeper struct {
	settings config.HostBrowser
	env      config.Environment
	dir      string
	log      *slog.Logger
	now      func() time.Time
	owned    *os.File // the lock of the data directory
	machine  machine

	turn  chan struct{} // held while the browser is started or stopped
	tasks sync.WaitGroup

	mu      sync.Mutex
	running *running // nil while there is none
	last    string   // why the last one is gone, unless it was stopped
}

// running is a browser that runs.
type running struct {
	process  *process
	browser  *browser.Browser
	mux      *cdp.Mux
	contexts *guard.Registry // those of all DevTools clients
	program  Program
	mode     mode
	asked    bool // somebody wants it to stop; guarded by Keeper.mu
	gone     chan struct{}
}

// New makes a keeper, and the data directory where it is missing. It refuses root, and a data directory that another
// keeper uses.
func New(o Options) (*Keeper, error) {
	if err := RefuseRoot(o.Environment); err != nil {
		return nil, err
	}
	if err := o.Settings.Validate(); err != nil {
		return nil, err
	}
	if err := private(o.Dir); err != nil {
		return nil, err
	}
	owned, err := lockFile(filepath.Join(o.Dir, "serve.lock"))
	if err != nil {
		return nil, fmt.Errorf("lock the folder of the browser: %w", err)
	}
	if owned == nil {
		return nil, problem.New(problem.Conflict, "see: clawjail browser status",
			"another clawjail serves the browser of %s", o.Dir)
	}
	return &Keeper{
		settings: o.Settings, env: o.Environment, dir: o.Dir, log: o.Log, now: o.Now, owned: owned,
		machine: thisMachine(), turn: make(chan struct{}, 1),
	}, nil
}

// Unserved says whether no keeper has a data directory.
func Unserved(dir string) (bool, error) {
	owned, err := lockFile(filepath.Join(dir, "serve.lock"))
	if err != nil || owned == nil {
		return false, err
	}
	return true, owned.Close()
}

// RefuseRoot says that root has no desktop. Chromium's own sandbox does not start as root, and without it every page
// would be as mighty as root.
func RefuseRoot(e config.Environment) error {
	if !e.Root {
		return nil
	}
	return problem.New(problem.Forbidden, "run it as the user of the desktop: sudo -u NAME clawjail browser start",
		"the host browser does not run as root: it could not have its own sandbox")
}

// Profile is where the browser keeps its state.
func (k *Keeper) Profile() string { return profileDir(k.dir) }

func profileDir(dir string) string { return filepath.Join(dir, "profile") }

// Files is the folder of downloads and uploads.
func (k *Keeper) Files() string { return filepath.Join(k.dir, "files") }

// Enabled says why the browser must not be used, if it must not.
func (k *Keeper) Enabled() error {
	if k.settings.Enabled {
		return nil
	}
	return problem.New(problem.BrowserDisabled, "set browser.enabled to true in the configuration, and start `clawjail browser serve` again",
		"Browser disabled in settings")
}

// Start starts the browser, if it does not run. headless is what the caller wants, nil when that is left to the
// settings. With attach_only it refuses; see [Keeper.StartByHand].
func (k *Keeper) Start(ctx context.Context, headless *bool) error {
	if err := k.Enabled(); err != nil {
		return err
	}
	if k.settings.AttachOnly && k.current() == nil {
		return problem.New(problem.BadRequest, "start it yourself: clawjail browser serve --start",
			"browser.attach_only is set: the browser is only used where it runs already")
	}
	return k.StartByHand(ctx, headless)
}

// StartByHand is Start for the person whose desktop it is, who may start the browser also with attach_only.
func (k *Keeper) StartByHand(ctx context.Context, headless *bool) error {
	if err := k.Enabled(); err != nil {
		return err
	}
	if err := k.take(ctx); err != nil {
		return err
	}
	defer k.release()
	if k.current() != nil {
		return nil
	}
	// A caller who leaves does not leave half a browser.
	launching, cancel := context.WithTimeout(context.WithoutCancel(ctx), launchLimit)
	defer cancel()
	r, err := k.launch(launching, headless)
	if err != nil {
		k.log.Warn("the browser did not start", "error", err)
		return err
	}
	k.mu.Lock()
	k.running, k.last = r, ""
	k.mu.Unlock()
	k.tasks.Go(func() { k.watch(r) })
	k.log.Info("the browser runs", "pid", r.process.pid(), "version", r.browser.Version().Product,
		"program", r.program.Path, "headless", r.mode.headless, "headless_source", r.mode.source)
	return nil
}

// watch waits until a browser is gone, and takes away what is left of it.
func (k *Keeper) watch(r *running) {
	defer close(r.gone)
	select {
	case <-r.process.exited:
	case <-r.browser.Done():
	}
	k.mu.Lock()
	asked := r.asked
	if k.running == r {
		k.running = nil
	}
	if !asked {
		k.last = "the browser ended by itself"
	}
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), launchLimit)
	defer cancel()
	// The pipe is gone in any case, so what these two have to say is not news.
	_ = r.mux.Close()
	_ = r.browser.Close(ctx)
	r.process.end()
	if !asked {
		text := r.process.epitaph()
		k.mu.Lock()
		k.last = text
		k.mu.Unlock()
		k.log.Warn("the browser ended by itself", "how", text)
	}
}

// Stop ends the browser: asked to, then told to, then killed. It says whether there was one. With attach_only it refuses:
// the person who started the browser ends it.
func (k *Keeper) Stop(ctx context.Context) (bool, error) {
	if k.settings.AttachOnly && k.current() != nil {
		return false, problem.New(problem.BadRequest, "close its window, or end `clawjail browser serve`",
			"browser.attach_only is set: the person who started the browser ends it")
	}
	return k.stop(ctx)
}

func (k *Keeper) stop(ctx context.Context) (bool, error) {
	if err := k.take(ctx); err != nil {
		return false, err
	}
	defer k.release()
	k.mu.Lock()
	r := k.running
	if r != nil {
		r.asked = true
	}
	k.mu.Unlock()
	if r == nil {
		return false, nil
	}
	// Asking is the browser's chance to write down cookies and logins. If it does not take it, watch ends it.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
	defer cancel()
	if err := r.browser.Close(asking); err != nil {
		k.log.Warn("the browser does not close", "error", err)
	}
	<-r.gone // bounded by the signals that watch sends
	k.log.Info("the browser was stopped")
	return true, nil
}

// Close stops the browser and gives the data directory back.
func (k *Keeper) Close(ctx context.Context) error {
	_, err := k.stop(context.WithoutCancel(ctx))
	k.tasks.Wait()
	return errors.Join(err, k.owned.Close())
}

func (k *Keeper) take(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return problem.Wrap(context.Cause(ctx), problem.Timeout, "try again",
			"the browser is still being started or stopped")
	}
}

func (k *Keeper) release() { <-k.turn }

func (k *Keeper) current() *running {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.running
}

// settled is the browser that runs, after a start or stop that is under way.
func (k *Keeper) settled(ctx context.Context) (*running, error) {
	if r := k.current(); r != nil {
		return r, nil
	}
	if err := k.take(ctx); err != nil {
		return nil, err
	}
	defer k.release()
	return k.current(), nil
}
