package jail

import (
	"context"
	"time"
)

// State is how far a jail has come. Each is journalled before the side effect that follows it, so the state
// on disk is never ahead of the host: a record that says "cloned" means that the clone is there and that an
// interface may be.
type State string

// The states, in their order.
const (
	StateReserved State = "reserved" // name, address and uid are taken; a clone may follow
	StateCloned   State = "cloned"   // the root file system is there; an interface may follow
	StateAttached State = "attached" // the interface is there; limits and processes may follow
	StateStarted  State = "started"  // its owner has it, and the program runs; table membership may follow
	StateReady    State = "ready"    // the gateway is open to it
	StateStopping State = "stopping" // the teardown has begun
)

// Record is the journal's entry of one jail.
type Record struct {
	Version int    `json:"version"`
	Name    Name   `json:"name"`
	State   State  `json:"state"`
	Owner   string `json:"owner,omitempty"` // the jail ends with it; see Registry.Lost
	Spec    Spec   `json:"spec"`
	Lease   Lease  `json:"lease"`
	// OwnUser is missing of agents that an earlier version started: their user is the same one on the host.
	OwnUser bool `json:"own_user,omitempty"`
	// AppArmor is missing of jails that were started without a profile of AppArmor.
	AppArmor bool      `json:"apparmor,omitempty"`
	Process  Process   `json:"process"`
	Root     string    `json:"root,omitempty"`
	NetNS    string    `json:"netns,omitempty"`
	Created  time.Time `json:"created"`
	Deadline time.Time `json:"deadline"`
	Exit     *Exit     `json:"exit,omitempty"`
}

// TimeIsUp says whether the jail has been there for longer than it may be. Without a limit it never has, whatever the clock said when it
// was made.
func (r *Record) TimeIsUp(now time.Time) bool {
	return r.Spec.Limits.WallClock < MaxWallClock && now.After(r.Deadline)
}

// recordVersion is raised when a field changes its meaning.
const recordVersion = 1

// Journal keeps one record per jail. Put returns when the record survives the death of the process; a jail
// does not survive a reboot of the host unless it is LifetimeKeep, and then neither may its record be lost.
type Journal interface {
	Put(ctx context.Context, r Record) error
	Delete(ctx context.Context, name Name) error
	// Load returns every record that can be read, and the names of those that cannot.
	Load(ctx context.Context) (records []Record, damaged []Name, err error)
}
