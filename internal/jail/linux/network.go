//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// NetworkConfig is what a Network needs to know.
type NetworkConfig struct {
	Installation jail.Installation
	Pool         *jail.Pool
	RunDir       string       // of the daemon, root's; namespaces are bound beneath it
	Ready        int          // slots to keep made ahead; 0 makes each when it is asked for
	Ending       bool         // jails are only ended: something else may have the pool's network by now, and the bridge's address stays as it is
	Log          *slog.Logger // nil discards
}

// Validate reports everything that is wrong at once.
func (c NetworkConfig) Validate() error {
	bad := problem.ValidationError{Code: problem.BadConfig}
	if _, err := jail.ParseInstallation(string(c.Installation)); err != nil {
		bad.Add("installation", "%v", err)
	}
	if c.Pool == nil {
		bad.Add("pool", "is missing")
	}
	if !filepath.IsAbs(c.RunDir) {
		bad.Add("run_dir", "%q is not an absolute path", c.RunDir)
	}
	if c.Ready < 0 || c.Pool != nil && c.Ready > c.Pool.Size()/2 {
		bad.Add("ready", "%d slots made ahead are not between 0 and half of the addresses", c.Ready)
	}
	return bad.Err()
}

// Network is the part of the driver that gives jails their addresses: a bridge, and on it one slot per jail.
//
// Slots are made ahead by one goroutine, Start to Close. A slot is used once: Detach destroys it, and its address
// comes back with a new one, so that nothing a jail did to its namespace can reach the next. All methods may be
// called concurrently.
type Network struct {
	pool  *jail.Pool
	ready int
	log   *slog.Logger
	slots *slots

	// One lock per slot, or for several that share it, serialises what is done to its interface and files.
	locks [64]sync.Mutex

	mu     sync.Mutex
	states map[int]slotState // of the slots that this process made
	queue  []jail.Lease      // those that are ready, oldest first
	closed bool

	wake   wake.Signal // a slot is missing in the queue
	cancel context.CancelFunc
	filler sync.WaitGroup
}

// slotState is what this process knows of a slot. Slots of an earlier process have none.
type slotState int

const (
	slotMaking   slotState = iota + 1
	slotReady              // in the queue
	slotReserved           // handed out, not yet attached to a jail
	slotAttached           // a jail's
)

var _ jail.Network = (*Network)(nil)

// OpenNetwork makes the bridge or adopts the one that is there. The pool's network must be free on this host, unless jails are
// only ended.
// Leases that are in the journal are claimed in the pool before Start, which begins to take others.
func OpenNetwork(ctx context.Context, c NetworkConfig) (*Network, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if !c.Ending {
		if err := CheckSubnet(ctx, c.Installation, c.Pool.Subnet()); err != nil {
			return nil, err
		}
	}
	dir := namespaceDir(c.RunDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the network namespaces: %w", err)
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	bridge, err := ensureBridge(host, c)
	if err != nil {
		host.Close()
		return nil, err
	}
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Network{
		pool: c.Pool, ready: c.Ready, log: log,
		slots:  &slots{id: c.Installation, gateway: c.Pool.Gateway(), dir: dir, host: host, bridge: bridge},
		states: map[int]slotState{},
		wake:   wake.New(),
	}, nil
}

// namespaceDir is where the namespaces of all slots are bound.
func namespaceDir(runDir string) string { return filepath.Join(runDir, "netns") }

// Bridge is the name of the bridge, whose address is the gateway's.
func (n *Network) Bridge() string { return bridgeName(n.slots.id) }

// Reserve hands out a lease together with a slot that is ready for it: the oldest of those made ahead, or one that
// is made now.
func (n *Network) Reserve(ctx context.Context) (jail.Lease, error) {
	if err := ctx.Err(); err != nil {
		return jail.Lease{}, err
	}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return jail.Lease{}, problem.New(problem.ShuttingDown, "wait until clawjail runs again", "the network is closed")
	}
	if len(n.queue) > 0 {
		l := n.queue[0]
		n.queue = slices.Delete(n.queue, 0, 1)
		n.states[l.Index] = slotReserved
		n.mu.Unlock()
		n.refill()
		return l, nil
	}
	n.mu.Unlock()
	n.refill()
	return n.prepare(ctx, slotReserved)
}

// prepare takes a lease from the pool and makes its slot. On error both are gone.
func (n *Network) prepare(ctx context.Context, then slotState) (jail.Lease, error) {
	l, err := n.pool.Take()
	if err != nil {
		return jail.Lease{}, err
	}
	n.setState(l.Index, slotMaking)
	lock := n.lock(l.Index)
	lock.Lock()
	err = n.slots.make(ctx, l)
	lock.Unlock()
	if err != nil {
		n.Release(l)
		return jail.Lease{}, err
	}
	n.setState(l.Index, then)
	return l, nil
}

// Attach returns the path of the lease's namespace. A lease that was not reserved in this process gets a new slot.
func (n *Network) Attach(ctx context.Context, name jail.Name, l jail.Lease) (string, error) {
	if err := n.check(ctx, name, l); err != nil {
		return "", err
	}
	lock := n.lock(l.Index)
	lock.Lock()
	defer lock.Unlock()
	switch state := n.state(l.Index); state {
	case slotReserved, slotAttached:
		if _, err := os.Lstat(n.slots.path(l.Index)); err != nil {
			return "", fmt.Errorf("attach %s: its namespace is gone: %w", name, err)
		}
	case slotMaking, slotReady:
		return "", fmt.Errorf("attach %s: lease %d was not handed out", name, l.Index)
	default:
		if err := n.slots.make(ctx, l); err != nil {
			return "", fmt.Errorf("attach %s: %w", name, err)
		}
	}
	n.setState(l.Index, slotAttached)
	return n.slots.path(l.Index), nil
}

// Detach destroys the slot of a lease and returns when it was seen to be gone, jail.ErrBusy when it stays.
func (n *Network) Detach(ctx context.Context, name jail.Name, l jail.Lease) error {
	if err := n.check(ctx, name, l); err != nil {
		return err
	}
	lock := n.lock(l.Index)
	lock.Lock()
	defer lock.Unlock()
	if state := n.state(l.Index); state == slotMaking || state == slotReady {
		return fmt.Errorf("detach %s: lease %d is not a jail's", name, l.Index)
	}
	if err := n.slots.remove(ctx, l); err != nil {
		return fmt.Errorf("detach %s: %w", name, err)
	}
	n.setState(l.Index, 0)
	return nil
}

// Release gives a lease back to the pool.
func (n *Network) Release(l jail.Lease) {
	n.setState(l.Index, 0)
	n.pool.Release(l.Index)
}

// Ready lists the indices of the slots that belong to this process and to no jail yet: made ahead, being made, or
// handed out and not attached. They are no orphans.
func (n *Network) Ready() []int {
	n.mu.Lock()
	defer n.mu.Unlock()
	var indices []int
	for i, state := range n.states {
		if state != slotAttached {
			indices = append(indices, i)
		}
	}
	slices.Sort(indices)
	return indices
}

// Prepared is the number of slots that Reserve can hand out without making one.
func (n *Network) Prepared() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.queue)
}

// Close stops making slots and removes those that no jail has. Slots of jails stay: they outlive the process.
// Every slot is tried, also after an error. It is called when no other call is under way.
func (n *Network) Close(ctx context.Context) error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.mu.Unlock()
	if n.cancel != nil {
		n.cancel()
	}
	n.filler.Wait()

	n.mu.Lock()
	queue := n.queue
	n.queue = nil
	n.mu.Unlock()
	var errs []error
	for _, l := range queue {
		if err := n.slots.remove(ctx, l); err != nil {
			errs = append(errs, err)
			continue // the lease stays taken: something of it is left
		}
		n.Release(l)
	}
	n.slots.host.Close()
	return errors.Join(errs...)
}

func (n *Network) check(ctx context.Context, name jail.Name, l jail.Lease) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !name.Belongs(n.slots.id) {
		return fmt.Errorf("%q is not a jail of installation %s", name, n.slots.id)
	}
	return n.pool.Check(l)
}

func (n *Network) lock(index int) *sync.Mutex { return &n.locks[index%len(n.locks)] }

func (n *Network) state(index int) slotState {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.states[index]
}

// setState records what a slot is; zero forgets it.
func (n *Network) setState(index int, s slotState) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s == 0 {
		delete(n.states, index)
		return
	}
	n.states[index] = s
}
