package hostd

import (
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
)

// protocolVersion is raised with every change of a request or an answer. Both halves are the same program, so
// there is nothing to be compatible with: a difference means that one of them was not restarted.
const protocolVersion = 7

// Operation is one of the things that the host daemon does for its caller. There are no others, and none of
// them takes a command for the host or a number of a process. The only paths of the host are those of folders that a jail is
// to see: they are opened beneath folders of the host daemon's own configuration.
type Operation string

// The operations.
const (
	OpInfo          Operation = "info"      // what this host daemon is
	OpHold          Operation = "hold"      // be the owner of jails, for as long as the connection is open
	OpCreate        Operation = "create"    // make a jail; its stdio comes back as descriptors
	OpAdmit         Operation = "admit"     // open the gateway to a jail
	OpWait          Operation = "wait"      // until the program of a jail has ended
	OpInspect       Operation = "inspect"   // one jail, with its usage
	OpList          Operation = "list"      // every jail
	OpDestroy       Operation = "destroy"   // end a jail
	OpReap          Operation = "reap"      // remove what should not be there
	OpTemplates     Operation = "templates" // what jails can be made from
	OpHostResources Operation = "traces"    // everything that this installation has on the host
	// OpCheckpoint keeps a signed note of the audit log.
	OpCheckpoint Operation = "checkpoint"
	// OpReaped says what was removed that no owner asked to remove.
	OpReaped Operation = "reaped"
	// OpShare says how many tenants share the host, and answers with what they have of it.
	OpShare Operation = "share"

	// The operations of jail.Keeper.
	OpKeep     Operation = "keep"      // declare a jail that is kept running
	OpDrop     Operation = "drop"      // end it and forget it
	OpKept     Operation = "kept"      // what is declared, when it has changed
	OpCheck    Operation = "check"     // what would keep jails from being made
	OpSetToken Operation = "set_token" // replace the token of an agent
	OpHasToken Operation = "has_token" // whether there is one, and is in its jail
	OpRestart  Operation = "restart"   // make a new jail of an agent
	OpReadLog  Operation = "read_log"  // what an agent's jails have printed
	OpVolumes  Operation = "volumes"   // how large what agents keep may become
	OpType     Operation = "type"      // write to the stdin of an agent
	OpExec     Operation = "exec"      // start a program in a jail; its stdio comes back as descriptors
	OpDial     Operation = "dial"      // connect to a port in a jail; the connection comes back as a descriptor

	OpComposed Operation = "composed" // which containers of docker-compose reach the gateway, when that has changed
)

// Operations lists every operation.
func Operations() []Operation {
	return []Operation{OpInfo, OpHold, OpCreate, OpAdmit, OpWait, OpInspect, OpList, OpDestroy, OpReap, OpTemplates, OpHostResources,
		OpCheckpoint, OpReaped, OpShare, OpKeep, OpDrop, OpKept, OpCheck, OpSetToken, OpHasToken, OpRestart, OpReadLog, OpVolumes, OpType, OpExec, OpDial, OpComposed}
}

// lasts says whether a call may take as long as a jail lives, or waits for news. Such calls leave a part of a caller's
// connections to the others, so that a jail can always be ended.
func (o Operation) lasts() bool {
	return o == OpHold || o == OpWait || o == OpKept || o == OpReadLog || o == OpExec || o == OpComposed
}

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
	shareArguments struct {
		Tenants int `json:"tenants"`
	}
	reapedArguments struct {
		After uint64 `json:"after"`
	}
	keepArguments struct {
		Kept  jail.Kept `json:"kept"`
		Token string    `json:"token,omitempty"`
	}
	agentArguments struct {
		Tenant string `json:"tenant"`
		Name   string `json:"name"`
	}
	dropArguments struct {
		agentArguments
		Options jail.DropOptions `json:"options"`
	}
	// Behind goes on with a list behind an entry; see page.
	listArguments struct {
		Behind string `json:"behind,omitempty"`
	}
	keptArguments struct {
		After  uint64 `json:"after"`
		Usage  bool   `json:"usage,omitempty"`
		Behind string `json:"behind,omitempty"`
	}
	checkArguments struct {
		All []jail.Kept `json:"all"`
	}
	tokenArguments struct {
		agentArguments
		Token string `json:"token"`
	}
	typeArguments struct {
		agentArguments
		Data []byte `json:"data"`
	}
	execArguments struct {
		Name    string       `json:"name"`
		Program jail.Program `json:"program"`
	}
	composedArguments struct {
		After uint64 `json:"after"`
	}
	dialArguments struct {
		Name string `json:"name"`
		Port uint16 `json:"port"`
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

// The results of the operations of jail.Keeper.
type (
	listResult struct {
		All  []jail.Status `json:"all"`
		Next string        `json:"next,omitempty"`
	}
	keptResult struct {
		Version uint64            `json:"version"`
		All     []jail.KeptStatus `json:"all"`
		Next    string            `json:"next,omitempty"`
	}
	checkResult struct {
		Errors []*wireError `json:"errors"` // null where nothing is in the way
	}
	hasTokenResult struct {
		Has bool `json:"has"`
	}
	// typeResult says how much fit, also beside an error.
	typeResult struct {
		Written int        `json:"written"`
		Error   *wireError `json:"error,omitzero"`
	}
	composedResult struct {
		Version uint64          `json:"version"`
		All     []jail.Composed `json:"all"`
	}
	// execResult is the second answer to OpExec: the first has the descriptors.
	execResult struct {
		Exit jail.Exit `json:"exit"`
	}
)

// accepted is the byte that the client answers a created jail with, once it has the descriptors. Without it the
// jail is destroyed: without its stdio the client could not end it.
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
	// Unsandboxed: browsers cannot have a sandbox of their own in the jails of this host.
	Unsandboxed bool `json:"unsandboxed,omitempty"`
	// AppArmor: jails are made with profiles of AppArmor, or not at all.
	AppArmor bool `json:"apparmor,omitempty"`
	// ContainerGateway is what Gateway is for agents in containers; it is not there while no container was asked for.
	ContainerGateway netip.Addr `json:"container_gateway,omitzero"`
	// Beside are the control planes that make jails in the same place, with the same volumes, by the names of their nodes.
	Beside []string `json:"beside,omitempty"`
}

// Template is a template that jails can be made from, as much of it as shapes them.
type Template struct {
	Name    string    `json:"name"`
	Digest  string    `json:"digest"`
	Created time.Time `json:"created"`
	// TaskLimit is how many tasks a jail of this template gets when nothing else is said.
	TaskLimit int                        `json:"task_limit"`
	Programs  map[string]TemplateProgram `json:"programs"`
	// Again is the command that builds it again, for one from packages.
	Again string `json:"again,omitempty"`
	// Problem is why no jails are made of it: it is not as it was built. Empty for a good one.
	Problem string `json:"problem,omitempty"`
}

// TemplateProgram is something that can be started in a template.
type TemplateProgram struct {
	Path    string   `json:"path"` // absolute, inside the template
	Args    []string `json:"args,omitempty"`
	Version string   `json:"version,omitzero"`
}
