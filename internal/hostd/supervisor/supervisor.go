// Package supervisor is `clawjail up`: it makes the user of the control plane where it is missing, starts the host
// daemon and the control plane as processes of their own, starts again what dies, and ends both in their order.
//
// It promises:
//
//   - The control plane starts when the host daemon answers, and ends before it, so that it can close what it has.
//   - A process that dies is started again, after a pause that grows. One that dies again and again is given up with
//     an error, and everything else is ended.
//   - The processes end with this one: they are told to, and where the kernel can, also when this one is killed.
package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/problem"
)

// Child is one process that is kept running.
type Child struct {
	// Name stands before its lines of output.
	Name string
	// Code is the problem code of giving it up.
	Code string
	// Command makes the process, anew for every start. Its output is taken over.
	Command func() *exec.Cmd
	// Ready returns when the process with this id does its work, and an error when the context ends before.
	Ready func(ctx context.Context, pid int) error
	// Grace is how long it may take to end when it is asked to.
	Grace time.Duration
}

// Options are what Run needs. Fields without a default are required.
type Options struct {
	// Children are started in this order, each when the one before is ready, and ended in the opposite one.
	Children []Child
	// Output gets the lines that the children write, each with its child's name.
	Output io.Writer
	Log    *slog.Logger
	Now    func() time.Time // default time.Now
	// Up is called once, when all are ready.
	Up func()

	// ReadyWithin is how long a start may take on an ordinary machine. Default 60 s.
	ReadyWithin time.Duration
	// Pace says how slow this machine is now: a start may take as much longer. Default: it is an ordinary one.
	Pace func(context.Context) pace.Pace
	// FirstPause is before the first restart; every further one waits twice as long, up to LongestPause.
	// Default 250 ms and 15 s.
	FirstPause, LongestPause time.Duration
	// Lasting is how long a child must have run for its end to count as the first. Default 60 s.
	Lasting time.Duration
	// Failures is how many ends in a row give a child up. Default 5.
	Failures int
}

func (o *Options) defaults() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Up == nil {
		o.Up = func() {}
	}
	if o.Pace == nil {
		o.Pace = func(context.Context) pace.Pace { return 1 }
	}
	o.ReadyWithin = cmp.Or(o.ReadyWithin, time.Minute)
	o.FirstPause = cmp.Or(o.FirstPause, 250*time.Millisecond)
	o.LongestPause = cmp.Or(o.LongestPause, 15*time.Second)
	o.Lasting = cmp.Or(o.Lasting, time.Minute)
	o.Failures = cmp.Or(o.Failures, 5)
}

// Run keeps the children running until the context ends, and returns nil then; or until one has to be given up, and
// returns why. No child runs any more when it returns.
func Run(ctx context.Context, o Options) error {
	o.defaults()
	var output sync.Mutex
	gaveUp := make(chan error, len(o.Children))
	var running []*keeper
	defer func() {
		for i := len(running) - 1; i >= 0; i-- {
			running[i].stop()
			<-running[i].ended
		}
	}()
	for _, c := range o.Children {
		k := &keeper{Options: &o, child: c, output: &output, ready: make(chan struct{}), ended: make(chan struct{})}
		// Children are not ended by the context, but in their order.
		var own context.Context
		own, k.stop = context.WithCancel(context.WithoutCancel(ctx))
		running = append(running, k)
		go func() {
			defer close(k.ended)
			if err := k.keep(own); err != nil {
				gaveUp <- err
			}
		}()
		select {
		case <-k.ready:
		case err := <-gaveUp:
			return err
		case <-ctx.Done():
			return nil
		}
	}
	o.Up()
	select {
	case err := <-gaveUp:
		return err
	case <-ctx.Done():
		return nil
	}
}

// keeper keeps one child running.
type keeper struct {
	*Options
	child  Child
	output *sync.Mutex
	stop   context.CancelFunc
	ready  chan struct{} // closed when the child is ready for the first time
	ended  chan struct{}

	wasReady bool
}

func (k *keeper) keep(ctx context.Context) error {
	// The kernel sends the parent-death signal when the thread ends that started the child (prctl(2)), so the
	// thread has to last as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	failures, pause := 0, k.FirstPause
	for {
		began := k.Now()
		err := k.once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if k.Now().Sub(began) >= k.Lasting {
			failures, pause = 0, k.FirstPause
		}
		failures++
		if failures >= k.Failures || (!k.wasReady && explained(err)) {
			return problem.Wrap(err, k.child.Code, "its last lines above say why", "%s does not keep running", k.child.Name)
		}
		k.Log.Warn("a process has ended and is started again", "name", k.child.Name, "error", err, "pause", pause)
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil
		}
		pause = min(2*pause, k.LongestPause)
	}
}

// explained says whether a child ended by itself, with an error that it has told. When it has never been ready, to
// start it again would only tell the same again.
func explained(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() > 0
}

// once starts the child, waits until it is ready, and then for its end, which it brings about when the context ends.
func (k *keeper) once(ctx context.Context) error {
	const drain = 2 * time.Second // for descendants that still hold the output
	cmd := k.child.Command()
	out := &relay{out: k.Output, mu: k.output, prefix: k.child.Name + ": "}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, drain
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", k.child.Name, err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		out.flush()
		ended <- err
	}()
	starting, cancel := pace.Within(ctx, k.ReadyWithin, k.Pace, func(time.Duration) error { return context.DeadlineExceeded })
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- k.child.Ready(starting, cmd.Process.Pid) }()
	select {
	case err := <-ended:
		cancel()
		<-ready
		return cmp.Or(err, errors.New("it ended before it was ready"))
	case err := <-ready:
		if err != nil {
			return errors.Join(fmt.Errorf("%s is not ready: %w", k.child.Name, err), k.terminate(cmd, ended))
		}
	}
	if !k.wasReady {
		k.wasReady = true
		close(k.ready)
	}
	select {
	case err := <-ended:
		return cmp.Or(err, errors.New("it ended"))
	case <-ctx.Done():
		return k.terminate(cmd, ended)
	}
}

// terminate asks the child to end, and makes it after its grace.
func (k *keeper) terminate(cmd *exec.Cmd, ended <-chan error) error {
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	grace := time.NewTimer(k.child.Grace)
	defer grace.Stop()
	select {
	case err := <-ended:
		return err
	case <-grace.C:
	}
	k.Log.Warn("a process does not end and is killed", "name", k.child.Name, "after", k.child.Grace)
	_ = cmd.Process.Kill()
	return <-ended
}
