package egress

import (
	"cmp"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/store"
)

// state is all entries as they were at one revision. It does not change.
type state struct {
	revision int64
	items    map[string]*item // by id
	asked    []*item          // requests for access
	*decisions
	// changed is closed when another state takes the place of this one.
	changed chan struct{}
}

// decisions are all entries but the questions of agents, so that asking changes no policy.
type decisions struct {
	from     []*item
	rules    map[string][]ranked // by tenant, each with those of all tenants; in order
	services map[string][]*item  // by tenant, and those of all tenants under ""
	provided map[string][]*item  // providers, as services
	settings map[scope]*item
	// Agents and sessions that have rules of their own. Those that have none share what is compiled.
	agents, sessions map[string]bool

	mu       sync.RWMutex // guards what follows
	views    map[viewKey]*EffectivePolicy
	rulesets map[rulesetKey]*ruleset
	weight   int // rules in rulesets and of what they were compiled with
}

// ranked is a rule with its place.
type ranked struct {
	*Rule
	fixed   bool
	damaged bool
}

// compare orders rules as the documentation of [Rule] says.
func compare(a, b ranked) int {
	return cmp.Or(
		// A rule that stands for a damaged entry comes first of all: whatever that was, nothing passes it.
		last(!a.damaged, !b.damaged),
		cmp.Compare(a.Priority, b.Priority),
		last(!a.fixed, !b.fixed),
		last(a.Action != policy.Deny, b.Action != policy.Deny),
		cmp.Compare(a.narrowness(), b.narrowness()),
		a.CreatedAt.Compare(b.CreatedAt),
		strings.Compare(a.ID, b.ID),
	)
}

// last puts what is true behind what is not.
func last(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func (r *Rule) narrowness() int {
	switch {
	case r.Session != "":
		return 0
	case r.Agent != "":
		return 1
	case r.Tenant != "":
		return 2
	}
	return 3
}

// reader makes states.
type reader struct {
	seed  maphash.Seed
	fixed []Rule
	log   *slog.Logger
}

// next makes the state of these entries. Items that have not changed are taken over from the state before, which may be nil.
func (r *reader) next(before *state, revision int64, entries []store.Entry) *state {
	s := &state{revision: revision, items: make(map[string]*item, len(entries)), changed: make(chan struct{})}
	from := make([]*item, 0, len(entries))
	for _, e := range entries {
		if e.Kind == grant.KindPermission {
			s.items[e.ID] = &item{entry: store.Entry{ID: e.ID, Kind: e.Kind, Tenant: e.Tenant, Agent: e.Agent, ExpiresAt: e.ExpiresAt}} // whether it is there
		}
		if ofOthers(e.Kind) {
			continue
		}
		i := r.read(before, e)
		s.items[e.ID] = i
		switch {
		case i.entry.Kind != kindAccess:
			from = append(from, i)
		case i.access != nil:
			s.asked = append(s.asked, i)
		}
	}
	if before != nil && slices.Equal(from, before.from) {
		s.decisions = before.decisions
		return s
	}
	s.decisions = r.decide(from)
	return s
}

func (r *reader) read(before *state, e store.Entry) *item {
	if before != nil {
		if old := before.items[e.ID]; old != nil && old.sum == maphash.Bytes(r.seed, e.Body) {
			same := e
			same.Body = nil
			if sameEntry(old.entry, same) {
				return old
			}
		}
	}
	i := read(e, r.seed)
	if i.damaged != nil {
		r.log.Error("an entry cannot be read", "entry", e.ID, "kind", clip(e.Kind), "tenant", clip(e.Tenant), "agent", clip(e.Agent),
			"denies_its_scope", i.rule != nil, "error", i.damaged)
	}
	return i
}

func sameEntry(a, b store.Entry) bool {
	return a.Kind == b.Kind && a.Tenant == b.Tenant && a.Agent == b.Agent && a.Name == b.Name && a.Version == b.Version &&
		a.CreatedAt.Equal(b.CreatedAt) && a.UpdatedAt.Equal(b.UpdatedAt) && a.ExpiresAt.Equal(b.ExpiresAt)
}

func (r *reader) decide(from []*item) *decisions {
	d := &decisions{
		from: from, rules: map[string][]ranked{}, services: map[string][]*item{}, provided: map[string][]*item{}, settings: map[scope]*item{},
		agents: map[string]bool{}, sessions: map[string]bool{},
		views: map[viewKey]*EffectivePolicy{}, rulesets: map[rulesetKey]*ruleset{},
	}
	for n := range r.fixed {
		d.rule(ranked{Rule: &r.fixed[n], fixed: true})
	}
	for _, i := range from {
		if i.rule != nil {
			d.rule(ranked{Rule: i.rule, damaged: i.damaged != nil})
		}
		switch i.entry.Kind {
		case kindService:
			d.services[i.entry.Tenant] = append(d.services[i.entry.Tenant], i)
		case kindProvider:
			d.provided[i.entry.Tenant] = append(d.provided[i.entry.Tenant], i)
		case kindSettings:
			if i.damaged == nil {
				d.settings[i.scope()] = i
			}
		}
	}
	everybody := d.rules[""]
	slices.SortStableFunc(everybody, compare)
	for tenant, rules := range d.rules {
		if tenant != "" {
			rules = append(rules, everybody...)
			slices.SortStableFunc(rules, compare)
			d.rules[tenant] = rules
		}
	}
	return d
}

func (d *decisions) rule(r ranked) {
	d.rules[r.Tenant] = append(d.rules[r.Tenant], r)
	switch {
	case r.Session != "":
		d.sessions[r.Session] = true
	case r.Agent != "":
		d.agents[r.Agent] = true
	}
}

// rulesOf are the rules that can be about a tenant, in order.
func (d *decisions) rulesOf(tenant string) []ranked {
	if rules, own := d.rules[tenant]; own {
		return rules
	}
	return d.rules[""]
}
