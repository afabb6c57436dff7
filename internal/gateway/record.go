package gateway

import (
	"context"
	"net/netip"
	"time"
)

// Records is the audit log as the gateway writes it.
type Records interface {
	// Begin writes down what is about to leave, and returns when that survives the loss of power. On an error nothing
	// leaves. It must honour its context.
	Begin(ctx context.Context, d Decision) (Record, error)
	// Refused records a refusal. It does not wait for the record.
	Refused(d Decision)
}

// Record is an intent that waits for its outcome. End is called once, and does not wait for the record.
type Record interface {
	End(o Outcome)
}

// Outcome is what came of a request that was allowed.
type Outcome struct {
	// Code is empty when the request went well, as far as the gateway can see.
	Code string
	// Status is that of the upstream's answer; 0 for a tunnel, and when there was none.
	Status int
	// Address is what was dialled.
	Address netip.AddrPort
	// BytesOut and BytesIn are counted seen from the jail: out is what it sent.
	BytesOut, BytesIn int64
	Took              time.Duration
	// Reused says that a connection was used that an earlier request of the same caller had opened.
	Reused bool
}

// Observer counts what the gateway does. Its methods are called often, and must return at once.
type Observer interface {
	// Decided is called with every decision, and says how long it took.
	Decided(d Decision, took time.Duration)
	// Ended is called when a request or a tunnel that was allowed is over.
	Ended(d Decision, o Outcome)
	// Tunnels is called with 1 when a tunnel opens and -1 when it ends.
	Tunnels(change int)
}

// nobody is the Observer that observes nothing.
type nobody struct{}

func (nobody) Decided(Decision, time.Duration) {}
func (nobody) Ended(Decision, Outcome)         {}
func (nobody) Tunnels(int)                     {}
