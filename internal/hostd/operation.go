package hostd

import (
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
)

// protocolVersion is raised with every change of a request or an answer. Both halves are the same program, so
// there is nothing to be compatible with: a difference means that one of them was not restarted.
const protocolVersion = 2

// Operation is one of the things that the host daemon does for its caller. There are no others, and none of
// them takes a path, a command for the host or a number of a process.
type Operation string

// The operations.
const (
	OpInfo      Operation = "info"      // what this host daemon is
	OpHold      Operation = "hold"      // be the owner of jails, for as long as the connection is open
	OpCreate    Operation = "create"    // make a jail; its stdio comes back as descriptors
	OpAdmit     Operation = "admit"     // open the gateway to a jail
	OpWait      Operation = "wait"      // until the program of a jail has ended
	OpInspect   Operation = "inspect"   // one jail, with its usage
	OpList      Operation = "list"      // every jail
	OpDestroy   Operation = "destroy"   // end a jail
	OpReap      Operation = "reap"      // remove what should not be there
	OpTemplates Operation = "templates" // what jails can be made from
	OpTraces    Operation = "traces"    // everything that this installation has on the host
	// OpCheckpoint keeps a signed note of the audit log.
	OpCheckpoint Operation = "checkpoint"
	// OpReaped says what was removed that no owner asked to remove.
	OpReaped Operation = "reaped"
)

// Operations lists every operation.
func Operations() []Operation {
	return []Operation{OpInfo, OpHold, OpCreate, OpAdmit, OpWait, OpInspect, OpList, OpDestroy, OpReap, OpTemplates, OpTraces,
		OpCheckpoint, OpReaped}
}

// lasts says whether a call may take as long as a jail lives. Such calls leave a part of a caller's connections
// to the others, so that a jail can always be ended.
func (o Operation) lasts() bool { return o == OpHold || o == OpWait }

// The arguments of the operations. Those that take none take an empty object.
type (
	noArguments   struct{}
	holdArguments struct {
		Owner string `json:"owner"`
	}
	createArguments struct {
		Owner string    `json:"owner"`
		Spec  jail.Spec `json:"spec"`
	}
	nameArguments struct {
		Name string `json:"name"`
	}
	checkpointArguments struct {
		Note string `json:"note"` // as it is signed, without the end of its line
	}
	reapedArguments struct {
		After uint64 `json:"after"`
	}
)

// noResult is the result of an operation that only succeeds.
type noResult struct{}

// created is the result of OpCreate. Stdin, stdout and stderr come beside it as descriptors, in this order.
type created struct {
	Name   jail.Name   `json:"name"`
	Lease  jail.Lease  `json:"lease"`
	Timing jail.Timing `json:"timing"`
}

// accepted is the byte that the client answers a created jail with, once it has the descriptors. Without it the
// jail is destroyed: nobody has its stdio, so nobody could end it.
const accepted = 0x06

// Info is what a host daemon says of itself.
type Info struct {
	Version      string            `json:"version"`
	PID          int               `json:"pid"`
	Started      time.Time         `json:"started"`
	Installation jail.Installation `json:"installation"`
	Subnet       netip.Prefix      `json:"subnet"`
	// Gateway is the only address that a jail can reach. The control plane listens there.
	Gateway  netip.Addr `json:"gateway"`
	Jails    int        `json:"jails"`
	MaxJails int        `json:"max_jails"`
}

// Template is a template that jails can be made from, as much of it as shapes them.
type Template struct {
	Name    string    `json:"name"`
	Digest  string    `json:"digest"`
	Created time.Time `json:"created"`
	// TaskLimit is how many tasks a jail of this template gets when nothing else is said.
	TaskLimit int                        `json:"task_limit"`
	Programs  map[string]TemplateProgram `json:"programs"`
}

// TemplateProgram is something that can be started in a template.
type TemplateProgram struct {
	Path    string   `json:"path"` // absolute, inside the template
	Args    []string `json:"args,omitempty"`
	Version string   `json:"version,omitzero"`
}
