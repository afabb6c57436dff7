package jail

import (
	"context"
	"errors"
	"os"

	"github.com/clawjail/clawjail/internal/problem"
)

// The five parts of a driver. Each is small, idempotent and verifies by looking at the host. Methods that
// remove something succeed when it is not there. List returns what the host holds that carries this
// installation's id, whichever process made it, and whether or not the journal knows it.

// Errors of the parts that the order of steps acts upon.
var (
	// ErrBusy is normal and retried: something still holds the resource for a moment.
	ErrBusy = errors.New("busy")
	// ErrHasDependents is final: the thing cannot go while others depend on it.
	ErrHasDependents = errors.New("has dependent clones")
)

// IsBusy says whether a step is to be tried again. It is false for a thing with dependents, also when that is busy.
func IsBusy(err error) bool { return errors.Is(err, ErrBusy) && !errors.Is(err, ErrHasDependents) }

// IsAway says whether the host daemon is not there. It is started again.
func IsAway(err error) bool { return problem.CodeOf(err) == problem.HostdUnreachable }

// Storage makes the root file system of a jail out of a template.
type Storage interface {
	// Clone returns the path of a new root file system, made of the Spec's Template or Root. It fails when one of that name
	// exists.
	Clone(ctx context.Context, name Name, s Spec) (root string, err error)
	// Mount mounts into the clone what the placement's jail has of the host: folders of the operator, the volume of its
	// state and the folder of its token. Nothing of an earlier jail is in the latter.
	Mount(ctx context.Context, p Placement) error
	// Token puts a file with the token into the folder of the token, in one step.
	Token(ctx context.Context, name Name, uid uint32, token []byte) error
	// Check says what would keep Clone and Mount from working, and makes nothing.
	Check(ctx context.Context, s Spec) error
	// RemoveState removes the volume of an agent's state.
	RemoveState(ctx context.Context, a Agent) error
	// Unmount releases the clone, and whatever is mounted beneath it, deepest first. force detaches what is
	// still held. ErrBusy when not forced and held.
	Unmount(ctx context.Context, name Name, force bool) error
	// Destroy removes the clone. ErrBusy is retried by the caller, ErrHasDependents is not.
	Destroy(ctx context.Context, name Name) error
	List(ctx context.Context) ([]HostResource, error)
}

// Network gives a jail its address behind the gateway.
type Network interface {
	// Reserve leases an address that nothing on the host uses, a prepared one where there is one.
	Reserve(ctx context.Context) (Lease, error)
	// Attach returns the network namespace (a path) that holds the lease's address.
	Attach(ctx context.Context, name Name, l Lease) (netns string, err error)
	// Detach removes the interface and the namespace, and returns when both are gone.
	Detach(ctx context.Context, name Name, l Lease) error
	// Release gives the lease back. The caller has seen that nothing of it is left.
	Release(l Lease)
	List(ctx context.Context) ([]HostResource, error)
	// RemoveResource removes an orphan that List reported.
	RemoveResource(ctx context.Context, t HostResource) error
}

// Firewall opens the gateway's address and port to the members of a table.
type Firewall interface {
	Add(ctx context.Context, table Table, l Lease) error
	Remove(ctx context.Context, table Table, l Lease) error
	// Ensure writes the rules again where somebody else has removed them (`nft flush ruleset`). Members that
	// went with them are added again by the caller, which knows them. It is cheap when nothing changed.
	Ensure(ctx context.Context) error
	List(ctx context.Context) ([]HostResource, error)
	RemoveResource(ctx context.Context, t HostResource) error
}

// Table is one of the firewall's tables of addresses.
type Table string

// The tables, named as the origin documents have them.
const (
	TableBrowsers Table = "browser_tasks"
	TableAgents   Table = "agent_jails"
)

// Table is the firewall table of this kind of jail.
func (k Kind) Table() Table {
	if k == KindAgent {
		return TableAgents
	}
	return TableBrowsers
}

// Limiter bounds what a jail consumes. Apply comes before Start, so that not even the first instruction of
// the program runs without limits.
type Limiter interface {
	// Apply sets the limits of a jail. They count against the tenant's share, too, where the substrate can bound jails
	// together; the tenant is empty for a jail of none.
	Apply(ctx context.Context, name Name, tenant string, l Limits) error
	// Remove removes the limits and returns when they are gone. ErrBusy while processes are left.
	Remove(ctx context.Context, name Name) error
	// Usage reports what the jail consumes and which limits it ran into. Fields that cannot be measured (on
	// this substrate, or because proc has ended) are zero; Hit is kept until Remove.
	Usage(ctx context.Context, name Name, proc Process) (Usage, error)
	List(ctx context.Context) ([]HostResource, error)
}

// Placement is where a jail was put: the outcome of the steps before Start.
type Placement struct {
	Name    Name
	Spec    Spec
	Lease   Lease
	Profile Profile
	Root    string // path of the clone
	NetNS   string // path of the network namespace
}

// Process is the first process of a jail. Started tells it from a later process with the same number.
type Process struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // kernel start time in its own unit; 0 when the substrate has none
}

// Runtime starts and ends the processes of a jail.
type Runtime interface {
	// Start stages what the program needs, starts the jail with the given stdio (the jail's ends) and returns
	// its first process, which is confined and waits for Begin to become the program. It does not keep the
	// files.
	Start(ctx context.Context, p Placement, stdio [3]*os.File) (Process, error)
	// Observe reads from the host how the jail is really confined.
	Observe(ctx context.Context, p Placement, proc Process) (Observed, error)
	// Begin lets the program begin. A process that has ended is no error.
	Begin(ctx context.Context, p Placement, proc Process) error
	// Exec starts a program beside the first process; see Maker.Exec.
	Exec(ctx context.Context, p Placement, proc Process, prog Program, stdio [3]*os.File) (Execution, error)
	// Dial connects to a port on the loopback of the jail's network; see Maker.Dial.
	Dial(ctx context.Context, p Placement, proc Process, port uint16) (*os.File, error)
	// Wait blocks until the process has ended. code is -1 when it cannot be known (the process was adopted
	// after a restart).
	Wait(ctx context.Context, name Name, proc Process) (code int, signal string, err error)
	// Terminate asks every process of the jail to end.
	Terminate(ctx context.Context, name Name, proc Process) error
	// Kill ends every process of the jail and returns when none is left. ErrBusy when some remain after a
	// bounded wait.
	Kill(ctx context.Context, name Name, proc Process) error
	// Stop removes the runtime's state and everything that Start staged.
	Stop(ctx context.Context, name Name) error
	List(ctx context.Context) ([]HostResource, error)
}

// HostResource is one thing that a jail left, or has, on the host. The kinds are the inventory of everything that
// can be left behind.
type HostResource struct {
	Kind ResourceKind `json:"kind"`
	// Name is the jail it belongs to; empty when the thing itself does not tell (an address in a table).
	Name Name `json:"name,omitempty"`
	// Index is the lease it belongs to, or -1.
	Index int `json:"index"`
	// ID identifies the thing to the part that listed it: a path, an interface, an address.
	ID string `json:"id"`
}

// ResourceKind is a kind of thing that can be left behind.
type ResourceKind string

// The inventory. A part that can leave something else adds a line here, and the test that plants a leak of
// each kind fails until it covers it.
const (
	ResourceProcess      ResourceKind = "process"
	ResourceCgroup       ResourceKind = "cgroup" // or the rules of rctl(8)
	ResourceMount        ResourceKind = "mount"
	ResourceClone        ResourceKind = "clone"
	ResourceInterface    ResourceKind = "interface"
	ResourceNamespace    ResourceKind = "namespace"
	ResourceTableMember  ResourceKind = "table_member"
	ResourceRuntimeState ResourceKind = "runtime_state"
	ResourceStaged       ResourceKind = "staged"
	ResourceRecord       ResourceKind = "record"
)

// ResourceKinds lists the inventory.
func ResourceKinds() []ResourceKind {
	return []ResourceKind{ResourceProcess, ResourceCgroup, ResourceMount, ResourceClone, ResourceInterface, ResourceNamespace,
		ResourceTableMember, ResourceRuntimeState, ResourceStaged, ResourceRecord}
}
