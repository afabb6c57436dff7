// Package jail is the domain of clawjail: what a jail is, what it may do, how one is made and how it ends.
//
// A jail is a process tree whose only wires are its stdio and one policy gateway. This package holds the
// words for that (Spec, Name, Limits, Profile, State), the contract of a driver, the five parts a driver is
// composed of, and, written once for every substrate, the order of creation, the seven-step teardown and the
// reaper. It holds no operating-system code: a driver (jail/linux, jail/freebsd, …) supplies the parts.
//
// Three promises the rest of the program builds on:
//
//   - a side effect on the host is journalled before it happens, so that a process killed at any instant
//     leaves nothing that the reaper cannot find and name;
//   - every end of a jail (closed, failed, crashed, reaped) runs the same list of steps, each of which is
//     idempotent and verified by looking at the host;
//   - a jail that is not confined as its Profile declares never becomes ready.
package jail

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"time"
)

// Kind says what lives in a jail. It selects the naming prefix, the seccomp profile, the user and the
// firewall table.
type Kind string

// The kinds of jails.
const (
	KindBrowser Kind = "browser" // an ephemeral browser, under a host uid of its own
	KindAgent   Kind = "agent"   // an agent or a tool server, as 1000:1000
)

// Lifetime says what ends a jail.
type Lifetime string

const (
	// LifetimeOwner ends the jail when the process that holds its stdio is gone.
	LifetimeOwner Lifetime = "owner"
	// LifetimeKeep lets the jail outlive both daemons.
	LifetimeKeep Lifetime = "keep"
)

// Wire says how the program in the jail is connected to its stdio.
type Wire string

const (
	// WireStdio leaves stdin, stdout and stderr untouched.
	WireStdio Wire = "stdio"
	// WirePipe34 moves stdin to fd 3 and stdout to fd 4, and lets the program's own output go to stderr:
	// what Chromium's --remote-debugging-pipe expects.
	WirePipe34 Wire = "pipe34"
)

// Spec is everything that shapes a jail. Two equal Specs make jails that cannot be told apart, which is what
// lets a pool be keyed by them.
type Spec struct {
	Kind     Kind     `json:"kind"`
	Lifetime Lifetime `json:"lifetime"`
	// Template names what the jail is a clone of. A jail of a driver that makes containers has an Image instead, and one
	// that runs in a folder of the operator's has a Root.
	Template string  `json:"template,omitempty"`
	Image    string  `json:"image,omitempty"`
	Root     string  `json:"root,omitempty"`
	Program  Program `json:"program"`
	Limits   Limits  `json:"limits"`
	// Agent says whose jail it is. Jails of LifetimeKeep are always somebody's.
	Agent *Agent `json:"agent,omitempty"`
	// For is the tenant that a jail without an Agent is for. A jail for no tenant has none.
	For string `json:"for,omitempty"`
	// Admit opens the gateway's port to the jail before its program begins, so that not even its first request is refused.
	// Without it that is for Driver.Admit.
	Admit bool `json:"admit,omitempty"`
	// Mounts are folders of the operator's that the jail sees.
	Mounts []Mount `json:"mounts,omitempty"`
	// UnixSockets lets programs of the jail use UNIX sockets although it has Mounts. A sharer of those folders, another
	// jail or a program of the host, can then be connected with it past the gateway. Without Mounts they can be used anyway.
	UnixSockets bool `json:"unix_sockets,omitempty"`
	// HomeFiles are copied into the home directory before the program starts, for what a program insists
	// on reading from there (an NSS database with extra CAs). Total at most MaxHomeFiles bytes.
	HomeFiles []File `json:"home_files,omitempty"`
}

// Agent is whose jail it is, and what of it outlives the jail. Tenant and Name match [a-z0-9-]{1,40}.
type Agent struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
	// State is the size in bytes of the volume at /state. Zero is a jail without one: its /state is a tmpfs, and goes with it.
	State int64 `json:"state,omitempty"`
	// Builds lets programs run from /tmp, and from a home that is in memory: compilers and packages run what they have just made.
	Builds bool `json:"builds,omitempty"`
	// Token mounts the folder of the token at TokenDir. There is nothing in it until a Maker's Token.
	Token bool `json:"token,omitempty"`
}

// Key names the agent in paths and volumes: the name alone in the tenant default, which has no dot, and tenant.name
// elsewhere.
func (a Agent) Key() string {
	if a.Tenant == DefaultTenant {
		return a.Name
	}
	return a.Tenant + "." + a.Name
}

// TenantOf is the tenant of a [Agent.Key].
func TenantOf(key string) string {
	tenant, _, found := strings.Cut(key, ".")
	if !found {
		return DefaultTenant
	}
	return tenant
}

// Mount is a folder of the host that a jail sees. The host daemon opens it beneath one of the folders that its own
// configuration names, follows no link out of that, and makes what is missing.
type Mount struct {
	Source   string `json:"source"` // absolute and clean
	Target   string `json:"target"` // inside the jail: /workspace, or below /workspace or /mnt
	ReadOnly bool   `json:"read_only,omitempty"`
	// Make are folders that are made in it, for the jail's user: names of agents.
	Make []string `json:"make,omitempty"`
}

// Program is what runs in a jail. It is started inside the jail only, so its text needs no trust.
type Program struct {
	// Argv[0] is an absolute path inside the jail. A container without arguments runs what its image says.
	Argv []string          `json:"argv,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
	// Without are variables that it is not given, although all programs are, or its image has them.
	Without []string `json:"without,omitempty"`
	Dir     string   `json:"dir,omitempty"` // absolute inside the jail; empty is the home directory
	Wire    Wire     `json:"wire"`
}

// File is a file that is staged into a jail. Path is relative, slash-separated, without dot elements.
type File struct {
	Path string `json:"path"`
	Data []byte `json:"data"`
}

// Lease is what a jail holds alone for as long as anything of it exists on the host.
type Lease struct {
	Index int        `json:"index"` // position in the installation's pool
	Addr  netip.Addr `json:"addr"`
	UID   uint32     `json:"uid"` // host uid; also the gid
}

// Stdio is the caller's end of a jail's three pipes. The caller closes them.
type Stdio struct {
	In  *os.File // the jail's stdin
	Out *os.File // the jail's stdout
	Err *os.File // the jail's stderr
}

// Close closes all three pipes. It is safe on a nil Stdio and may be called twice.
func (s *Stdio) Close() {
	if s == nil {
		return
	}
	for _, f := range []*os.File{s.In, s.Out, s.Err} {
		if f != nil {
			_ = f.Close() // a second close reports ErrClosed, which is what is wanted
		}
	}
}

// Jail is a started jail as its creator sees it.
type Jail struct {
	Name   Name
	Lease  Lease
	Stdio  *Stdio
	Timing Timing
}

// Timing is how long the stages of a creation took.
type Timing struct {
	Clone  time.Duration `json:"clone"`
	Attach time.Duration `json:"attach"`
	Start  time.Duration `json:"start"`
	Verify time.Duration `json:"verify"`
}

// Status is what is known of one jail.
type Status struct {
	Name     Name      `json:"name"`
	State    State     `json:"state"`
	Spec     Spec      `json:"spec"`
	Lease    Lease     `json:"lease"`
	PID      int       `json:"pid,omitempty"`
	Created  time.Time `json:"created"`
	Deadline time.Time `json:"deadline"` // when the wall clock ends it
	Usage    Usage     `json:"usage"`
	Exit     *Exit     `json:"exit,omitempty"` // set once the program has ended
}

// Usage is what a jail consumes now, and which of its limits it has run into.
type Usage struct {
	MemoryBytes int64         `json:"memory_bytes"`
	MemoryPeak  int64         `json:"memory_peak_bytes"`
	CPU         time.Duration `json:"cpu"`
	Tasks       int           `json:"tasks"`
	DiskBytes   int64         `json:"disk_bytes"` // of its sized tmpfs
	OpenFiles   int           `json:"open_files"` // of the process with the most
	Hit         []LimitName   `json:"hit,omitempty"`
}

// Exit says how the program of a jail ended.
type Exit struct {
	Code   int         `json:"code"`             // exit status, or -1 when it is not known
	Signal string      `json:"signal,omitempty"` // e.g. "killed"
	Cause  Cause       `json:"cause"`
	Hit    []LimitName `json:"hit,omitempty"` // limits it had run into by then
	At     time.Time   `json:"at"`
}

// Cause is why a jail's program ended.
type Cause string

// Why a program ended.
const (
	CauseExited    Cause = "exited"     // by itself
	CauseWallClock Cause = "wall_clock" // its time was up
	CauseMemory    Cause = "memory"     // killed by its memory limit, or its tenant's
	CauseDestroyed Cause = "destroyed"  // its owner ended it
	CauseOwnerLost Cause = "owner_lost" // its owner was gone for too long
)

// Maker is a Driver that jails can be kept with.
type Maker interface {
	Driver
	// CreateFor makes a jail for an owner. deliver is called when the jail has been seen to be confined as declared, and
	// before its program begins; an error of it ends the jail. The stdio of a jail of LifetimeKeep is the Console's, and
	// nil here.
	CreateFor(ctx context.Context, owner string, spec Spec, deliver func(context.Context, *Jail) error) (*Jail, error)
	// Token puts the token into the folder at TokenDir, atomically: a reader sees the one before or this one.
	Token(ctx context.Context, name Name, token []byte) error
	// Exec starts a program in a jail that runs, as the jail's user and confined like it, with the given stdio. The
	// process and everything that it started, re-parented or not, end with Execution.End.
	Exec(ctx context.Context, name Name, p Program, stdio [3]*os.File) (Execution, error)
	// Dial connects to a port on the loopback of a jail's own network.
	Dial(ctx context.Context, name Name, port uint16) (*os.File, error)
	// Check says what would keep Create from working, before anything is made: a template or an image that is missing, a
	// mount outside the allowed folders, an engine that does not answer.
	Check(ctx context.Context, spec Spec) error
	// RemoveState removes the volume at /state of an agent that has no jail. A volume that is not there is removed already.
	RemoveState(ctx context.Context, a Agent) error
}

// Execution is a program that Exec started.
type Execution interface {
	// Wait blocks until the program has ended. Processes that it left are ended before Wait returns.
	Wait(ctx context.Context) (Exit, error)
	// End ends the program and everything that it started, removes what was staged, and returns when it is seen to be so.
	End(ctx context.Context) error
}

// Console keeps what jails of LifetimeKeep print, and takes what is typed to them.
type Console interface {
	// Open returns the jail's ends of stdin, stdout and stderr, and begins to keep what comes.
	Open(ctx context.Context, name Name, a Agent) ([3]*os.File, error)
	// Resume goes on with a jail that an earlier process opened.
	Resume(ctx context.Context, name Name, a Agent) error
	// Finish keeps what is left in the pipes and removes them. Output that was kept stays. It may be repeated.
	Finish(ctx context.Context, name Name) error
	List(ctx context.Context) ([]HostResource, error)
}

// Driver makes jails on one substrate.
//
// All methods may be called concurrently and honour their context; a Create that is cancelled leaves nothing
// behind. Errors that a user can act on are *problem.Error values with a stable code.
type Driver interface {
	// Create clones, attaches, confines and starts, then reads back what was declared. On error nothing is
	// left. The jail cannot reach the gateway until Admit.
	Create(ctx context.Context, spec Spec) (*Jail, error)
	// Admit opens the gateway, and nothing else, to the jail.
	Admit(ctx context.Context, name Name) error
	// Wait blocks until the jail's program has ended and says how. ErrNotFound when there is no such jail.
	Wait(ctx context.Context, name Name) (Exit, error)
	// Inspect reports one jail with its current usage. ErrNotFound when there is none.
	Inspect(ctx context.Context, name Name) (Status, error)
	// List reports every jail of the installation, oldest first, with no usage.
	List(ctx context.Context) ([]Status, error)
	// Destroy ends a jail in whatever state it is and returns when the host was seen to hold nothing of it.
	// Destroying what does not exist succeeds.
	Destroy(ctx context.Context, name Name) error
	// Reap compares the host with what should be there and removes the difference.
	Reap(ctx context.Context, o ReapOptions) (ReapReport, error)
}
