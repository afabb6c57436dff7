package jail

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// Joined is the driver's side of a program that joined a jail. It is an Execution, and drivers embed it in their own.
type Joined struct {
	Name Name               // of the jail
	Stop context.CancelFunc // asks for the end of the program and of everything that it started
	Over chan struct{}      // closed when all of that has ended
	Exit Exit               // read after Over, as is Err
	Err  error
}

// Wait implements Execution.
func (x *Joined) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-x.Over:
		return x.Exit, x.Err
	case <-ctx.Done():
		return Exit{}, ctx.Err()
	}
}

// End implements Execution.
func (x *Joined) End(ctx context.Context) error {
	x.Stop()
	_, err := x.Wait(ctx)
	return err
}

// Executions are the programs that joined a driver's jails. The zero value has none.
type Executions struct {
	mu  sync.Mutex
	all map[*Joined]bool
}

// Add adds a program.
func (e *Executions) Add(x *Joined) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all == nil {
		e.all = map[*Joined]bool{}
	}
	e.all[x] = true
}

// Remove removes one that has ended.
func (e *Executions) Remove(x *Joined) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.all, x)
}

// End ends the programs in one jail, or in all of them when it has no name.
func (e *Executions) End(ctx context.Context, name Name) error {
	e.mu.Lock()
	var all []*Joined
	for x := range e.all {
		if name == "" || x.Name == name {
			all = append(all, x)
		}
	}
	e.mu.Unlock()
	var wait sync.WaitGroup
	errs := make([]error, len(all))
	for i, x := range all {
		wait.Go(func() { errs[i] = x.End(ctx) })
	}
	wait.Wait()
	return errors.Join(errs...)
}

// Connect gives a command the files that are there: a nil *os.File in an interface would not be nil.
func Connect(cmd *exec.Cmd, stdio [3]*os.File) {
	if stdio[0] != nil {
		cmd.Stdin = stdio[0]
	}
	if stdio[1] != nil {
		cmd.Stdout = stdio[1]
	}
	if stdio[2] != nil {
		cmd.Stderr = stdio[2]
	}
}

// dialLimit bounds a connection to a jail's own network, which needs no wire.
const dialLimit = 5 * time.Second

// DialEither connects to a port of a jail: on its loopback, or else on its own address.
func DialEither(ctx context.Context, p Placement, port uint16, dial func(context.Context, netip.AddrPort) (*os.File, error)) (*os.File, error) {
	if port == 0 {
		return nil, problem.New(problem.BadRequest, "name a port between 1 and 65535", "0 is not a port")
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	var errs []error
	for _, addr := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), p.Lease.Addr} {
		if !addr.IsValid() || ctx.Err() != nil {
			break
		}
		f, err := dial(ctx, netip.AddrPortFrom(addr, port))
		if err == nil {
			return f, nil
		}
		errs = append(errs, err)
	}
	return nil, problem.Wrap(errors.Join(errs...), problem.Conflict, "see whether the program in the jail listens there",
		"nothing answers at port %d of jail %s", port, p.Name)
}
