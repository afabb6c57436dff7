package store

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"strings"
	"time"
)

// NodeAlive is how long a node is taken to be there after it was last heard of. It says so more than three times as often.
const NodeAlive = 7500 * time.Millisecond

// Node is a control plane that uses the database. Its times are the database's, so that they can be compared whatever the clocks of
// the machines say.
type Node struct {
	Name string // [a-z0-9-]{1,40}
	// Run is random for each start of a control plane.
	Run     string
	Version string
	Address string // where its API listens
	// PeerAddress is where other nodes reach it; empty for nowhere.
	PeerAddress string
	// StartedAt, SeenAt and StoppedAt are when the run began, was last heard of, and ended in order; the last is zero while it runs.
	StartedAt time.Time
	SeenAt    time.Time
	StoppedAt time.Time
	// LostAt is when the others gave the run up, which then ends; zero otherwise.
	LostAt time.Time
	// DrainingAt is since when the run opens no new sessions; zero while it does.
	DrainingAt time.Time
	// ReadAt is when the row was read.
	ReadAt time.Time
}

// Silence is how long a node that has not stopped has not been heard of.
func (n Node) Silence() time.Duration { return n.ReadAt.Sub(n.SeenAt) }

// Lost says whether a node has been silent for so long, without stopping, that it is taken for gone.
func (n Node) Lost() bool {
	return n.StoppedAt.IsZero() && (!n.LostAt.IsZero() || n.Silence() > NodeAlive)
}

// Duty is a task that one of the nodes does for all. Its number rises when another run takes it, so that a run that has lost it without
// noticing changes nothing any more. The zero Duty is none.
type Duty struct {
	Name   string
	Number int64
}

// AuditKey is the public half of a key that a node signs with in the audit log. Keys stay when their node is gone: so does what it
// has signed.
type AuditKey struct {
	ID     string
	Public []byte
	// Voucher is a signature with the secret that all nodes share. Nodes ignore a row without it.
	Voucher []byte
}

// Nodes of the database.
type Nodes interface {
	// StartNode notes that a run begins; its times are set. It returns ErrExists while another run of that name goes on: one that has
	// not stopped, is not lost, was heard of less than alive ago, and is not the former one, of which the caller knows that it has ended.
	StartNode(ctx context.Context, n Node, former string, alive time.Duration) error
	// SeeNode notes that a run goes on. It returns ErrNotFound when it has stopped, is lost, or another one has its name.
	SeeNode(ctx context.Context, name, run string) error
	// StopNode notes that a run has ended in order. A run that does not have its name any more changes nothing.
	StopNode(ctx context.Context, name, run string) error
	// DrainNode notes that a run is to open no new sessions, or to open them again. It returns ErrNotFound when no run of that name
	// goes on.
	DrainNode(ctx context.Context, name string, drain bool) error
	// LoseNode gives a run up of which nothing was heard for as long. It returns ErrNotFound when there is none.
	LoseNode(ctx context.Context, name, run string, silent time.Duration) error
	// ReleaseLostLeases gives back every lease of a run that is lost, and none of one that has followed it.
	ReleaseLostLeases(ctx context.Context, name, run string) error
	// TakeDuty has a run do a duty for as long, or longer when it has it already. It returns ErrExists while another run has it that
	// goes on.
	TakeDuty(ctx context.Context, name, node, run string, term time.Duration) (Duty, error)
	// PutAuditKey keeps a key, in place of one with the same id.
	PutAuditKey(ctx context.Context, k AuditKey) error
	// ListAuditKeys by id.
	ListAuditKeys(ctx context.Context) ([]AuditKey, error)
	// ListNodes by name.
	ListNodes(ctx context.Context) ([]Node, error)
	// DeleteNodesSilent removes those that have not been heard of for longer, and says how many.
	DeleteNodesSilent(ctx context.Context, longer time.Duration) (int, error)
}

// Validate returns everything that is wrong with the row, as ErrInvalid. Every Store asks before it writes.
func (n Node) Validate() error {
	return errors.Join(slug("node", n.Name), present("run", n.Run), Text(n.Run, n.Version, n.Address, n.PeerAddress))
}

// NodeTag is what the ids of a node's sessions begin with, so that an id says which node has the session.
func NodeTag(node string) string {
	sum := sha256.Sum256([]byte("clawjail node " + node))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:nodeTagLength])
}

// nodeTagLength gives 25 bits. Two of a hundred nodes have the same tag in one of 7000 databases; the second gets an error then.
const nodeTagLength = 5
