package gateway

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// reviewEvery is how soon an open tunnel ends that the policy does not allow any more.
const reviewEvery = time.Second

// review decides again about every open tunnel, until ctx ends: a rule was made or removed, or its time is over. Requests need
// none of it, because each is decided when it comes.
func (g *Gateway) review(ctx context.Context) {
	every := time.NewTicker(reviewEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			g.reviewTunnels()
		}
	}
}

func (g *Gateway) reviewTunnels() {
	g.mu.Lock()
	callers := make([]*caller, 0, len(g.callers))
	for _, who := range g.callers {
		callers = append(callers, who)
	}
	g.mu.Unlock()
	for _, who := range callers {
		open := who.openTunnels()
		if len(open) == 0 {
			continue
		}
		permit := g.permit(who)
		for _, t := range open {
			t.review(permit)
		}
	}
}

// review ends the tunnel when it may not be open any more. One that a rule for one use allowed goes on without that rule,
// unless another one denies it.
func (t *tunnel) review(permit *policy.Compiled) {
	d := permit.Decide(policy.Request{Scheme: t.entered, Host: t.to.Host(), Port: t.to.Port(), Method: policy.Connect})
	switch {
	case t.once && d.Rule == "", d.Rule == policy.RuleUnknown:
		return
	case d.Allowed && d.Address == t.private && (d.Opaque || !t.opaque):
		return
	case d.Allowed:
		// It may be opened anew, to where the rules lead now and with what they let pass.
		d.Code, d.Reason = policy.HostDenied, "the rules for "+t.to.String()+" have changed"
	}
	t.cut(d)
}

// cut ends a tunnel that is open. The goroutine that carries it finds it closed, and writes down why.
func (t *tunnel) cut(why policy.Decision) {
	t.denied.Store(&why)
	_ = t.client.Close()
	_ = t.upstream.Close()
}

// forgotten is how long a tunnel must have been silent to make room for another.
const forgotten = time.Minute

// makeRoom ends the tunnel that was silent the longest, in any jail of an account that may have no more, and reports whether
// there was one: many programs leave their connections open when they need them no more.
func (g *Gateway) makeRoom(ctx context.Context, account string) bool {
	var silent *tunnel
	minimum := g.now().Sub(g.start) - forgotten
	g.mu.Lock()
	callers := slices.Collect(maps.Values(g.callers))
	g.mu.Unlock()
	for _, c := range callers {
		if c.account() != account {
			continue
		}
		for _, t := range c.openTunnels() {
			if last := time.Duration(t.meter.lastMove.Load()); last <= minimum {
				silent, minimum = t, last
			}
		}
	}
	if silent == nil {
		return false
	}
	silent.cut(policy.Decision{Code: problem.RateLimited, Reason: "it was silent, and another tunnel took its place"})
	select {
	case <-silent.ended:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *caller) openTunnels() []*tunnel {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*tunnel, 0, len(c.tunnels))
	for t := range c.tunnels {
		out = append(out, t)
	}
	return out
}

// enter has the tunnel reviewed from now on, and leave ends that.
func (t *tunnel) enter() {
	t.entered, t.opaque = t.Scheme, t.decide(t.to, "", t.Scheme).Opaque
	t.who.mu.Lock()
	defer t.who.mu.Unlock()
	if t.who.tunnels == nil {
		t.who.tunnels = make(map[*tunnel]struct{})
	}
	t.who.tunnels[t] = struct{}{}
}

func (t *tunnel) leave() {
	t.who.mu.Lock()
	defer t.who.mu.Unlock()
	delete(t.who.tunnels, t)
}
