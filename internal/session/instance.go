package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// connectLimit bounds how long a browser may take to its first answer on an ordinary machine. One that starts twenty at once
	// needs seconds; a slow machine has more time, pace.Most times as much at most.
	connectLimit = 60 * time.Second
	// exitLimit bounds how long it takes to learn how a browser ended.
	exitLimit = 2 * time.Second
	// destroyLimit bounds one teardown. The host daemon has its own bounds below it, and its reaper goes on after it.
	destroyLimit = 60 * time.Second
)

// instance is a started jail with a browser in it. Its holder ends it with destroy.
type instance struct {
	jail    *jail.Jail
	browser Browser // nil until it has answered
	tail    texts.Tail
	drained chan struct{} // closed when stderr is read to its end
	// suspected has a token when the browser has printed that a process of its own is gone which it cannot do without.
	suspected wake.Signal
	born      time.Time
	// answered is when its browser did for the first time.
	answered time.Time
	shape    jailOptions
	key      string // of its jailSpec
}

func (i *instance) name() jail.Name  { return i.jail.Name }
func (i *instance) addr() netip.Addr { return i.jail.Lease.Addr }

// gone says whether the browser of an instance that has answered has ended.
func (i *instance) gone() bool {
	return wake.Closed(i.browser.Done())
}

// create makes a jail. Its browser starts, and cannot reach anything yet.
func (svc *Service) create(ctx context.Context, b jailSpec) (*instance, error) {
	j, err := svc.Driver.Create(ctx, b.spec)
	if err != nil {
		return nil, err
	}
	i := &instance{jail: j, drained: make(chan struct{}), suspected: wake.New(), born: svc.Now(), shape: b.shape, key: b.key}
	svc.tasks.Go(func() {
		defer close(i.drained)
		i.drain(j.Stdio.Err)
	})
	return i, nil
}

// dial waits for the browser's first answer. On error the jail is still there, and its browser says why in the error.
func (svc *Service) dial(ctx context.Context, i *instance) error {
	within, cancel := pace.Within(ctx, connectLimit, svc.Pace, func(limit time.Duration) error {
		return problem.New(problem.Timeout, "try again when the machine has less to do", "the browser did not answer within %s", limit)
	})
	defer cancel()
	b, err := svc.Connect(within, i.jail.Stdio)
	if err != nil {
		if within.Err() != nil {
			return context.Cause(within)
		}
		return svc.deadOnArrival(ctx, i, err)
	}
	i.browser, i.answered = b, svc.Now()
	// The headless shell has neither policies nor most of what they are about. Hosts whose jails do not let a browser have a
	// sandbox of its own do not deliver any.
	if i.shape.build == config.BrowserFull && !svc.Unsandboxed {
		if err := b.Administered(within); err != nil {
			if within.Err() != nil {
				return context.Cause(within)
			}
			return err
		}
	}
	return nil
}

// deadOnArrival says why a browser ended before it answered.
func (svc *Service) deadOnArrival(ctx context.Context, i *instance, err error) error {
	ctx, cancel := context.WithTimeout(ctx, exitLimit)
	defer cancel()
	exit, waitErr := svc.Driver.Wait(ctx, i.name())
	if waitErr != nil {
		return problem.Wrap(errors.Join(err, waitErr), problem.JailFailed, "try again; `clawjail doctor` tries the parts",
			"the browser could not be reached")
	}
	code, hint := problem.JailFailed, "`clawjail template verify` and `clawjail doctor` look for the reason"
	if cause(exit) == CauseMemory {
		code, hint = problem.LimitMemory, "open it with a larger limits.memory"
	}
	return problem.Wrap(err, code, hint, "the browser ended before it answered: %s%s", exit.Words(), lastWords(i)).
		With("stderr", i.lines())
}

// lastWords is the last line that a browser printed, as a part of a sentence.
func lastWords(i *instance) string {
	lines := i.lines()
	if len(lines) == 0 {
		return ""
	}
	return "; its last words were: " + lines[len(lines)-1]
}

// hangUp closes the pipe, which ends the browser. It does not wait for that, and may be called more than once.
func (i *instance) hangUp() error {
	var err error
	if i.browser != nil {
		err = i.browser.Close()
	}
	// Closed here as well for a browser that never answered: its connector may not have got as far as owning them.
	for _, f := range []*os.File{i.jail.Stdio.In, i.jail.Stdio.Out} {
		if f != nil {
			err = errors.Join(err, ignoreClosed(f.Close()))
		}
	}
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// destroy ends an instance and returns when the driver has seen that nothing of it is left. It goes on when the
// caller's context ends: half a teardown leaves resources behind.
func (svc *Service) destroy(ctx context.Context, i *instance) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyLimit)
	defer cancel()
	hung := i.hangUp()
	err := svc.destroyJail(ctx, i.name())
	// The jail's end is closed with the jail; closing ours ends the reader in any case.
	closed := ignoreClosed(i.jail.Stdio.Err.Close())
	<-i.drained
	if err != nil {
		err = fmt.Errorf("end jail %s: %w", i.name(), err)
	}
	return errors.Join(err, hung, closed)
}

// destroyJail asks for the end of a jail until the host daemon is there to hear it, unless clawjail is being stopped:
// then the host daemon ends it by itself, because its owner is gone. When this gives up, the host daemon's client goes on.
func (svc *Service) destroyJail(ctx context.Context, name jail.Name) error {
	pauses, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(svc.background, cancel)()
	return wake.Retry(pauses, 50*time.Millisecond, 5*time.Second, jail.IsAway, func() error { return svc.Driver.Destroy(ctx, name) })
}

// forget cuts an instance off from the gateway. It only logs an error: the gateway has cut the address off,
// the firewall closes with the jail, and the next session with the address calls Forget again first.
func (svc *Service) forget(i *instance) {
	if err := svc.Gateway.Forget(i.addr(), string(i.name())); err != nil {
		svc.Log.Error("close a jail's connections", "jail", i.name(), "address", i.addr(), "error", err)
	}
}

// cause is what an exit means for a session.
func cause(x jail.Exit) Cause {
	switch x.Cause {
	case jail.CauseMemory:
		return CauseMemory
	case jail.CauseWallClock:
		return CauseWallClock
	case jail.CauseOwnerLost:
		return CauseOwnerLost
	}
	return CauseBrowserExited
}
