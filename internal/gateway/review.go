package gateway

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// reviewEvery is the time between two reviews.
const reviewEvery = time.Second

// review decides again about everything that is under way, until ctx ends: a rule was made or removed, or its time is over.
func (g *Gateway) review(ctx context.Context) {
	every := time.NewTicker(reviewEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			g.reviewUnderWay()
		}
	}
}

// reviewUnderWay holds no lock that a request waits for.
func (g *Gateway) reviewUnderWay() {
	for x := range g.underWay.Range {
		x.(*exchange).review()
	}
}

// permitNow is what would decide about the exchange if it began now.
func (x *exchange) permitNow() *policy.Compiled {
	if x.errand != nil {
		return x.errand()
	}
	return x.gateway.permit(x.who)
}

// review ends the exchange when it may not be under way any more. One that a rule for one use allowed goes on without that rule,
// unless another one denies it.
func (x *exchange) review() {
	permit := x.permitNow()
	if permit == x.permit {
		return // by which it was allowed
	}
	d := x.decide(permit, x.Scheme)
	switch {
	case x.once && d.Rule == "", d.Rule == policy.RuleUnknown:
		return
	case d.Allowed && d.Address == x.private && (d.Opaque || !x.opaque):
		return
	case d.Allowed:
		// It may be opened anew, to where the rules lead now and with what they let pass.
		d.Code, d.Reason, d.Hint = policy.HostDenied, "the rules for "+x.Host.String()+" have changed", "Retry once."
	}
	x.cut(d)
}

// deniedSince is what a review that has ended the exchange tells its caller, in place of err; nil when none has.
func (x *exchange) deniedSince(err error) *problem.Error {
	d := x.denied.Load()
	if d == nil {
		return nil
	}
	p := problem.Wrap(err, string(d.Code), d.Hint, "%s", d.Reason).With("host", x.Host.String()).With("port", x.Port)
	if d.Rule != "" {
		p = p.With("rule", d.Rule)
	}
	return p
}

// forgotten is how long a tunnel must have been silent to make room for another.
const forgotten = time.Minute

// makeRoom ends the tunnel that was silent the longest, in any jail of an account that may have no more, and reports whether
// there was one: many programs leave their connections open when they need them no more.
func (g *Gateway) makeRoom(ctx context.Context, account string) bool {
	var silent *tunnel
	minimum := g.now().Sub(g.start) - forgotten
	for x := range g.underWay.Range {
		t := x.(*exchange).tunnel
		if t == nil || t.who.account() != account {
			continue
		}
		if last := time.Duration(t.meter.lastMove.Load()); last <= minimum {
			silent, minimum = t, last
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
