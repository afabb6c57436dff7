package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// defaults are the values of settings that are not set.
func defaults() Settings {
	return Settings{
		Mode: policy.Enforce, Tools: []Tool{}, Hold: "0s", Browser: BrowserRules,
		Rates: Rates{Proxy: 3000, Execute: 60, Service: 600, LLM: 120, Tunnels: 128},
	}
}

// over fills what s does not say with what is wider.
func (s Settings) over(wider Settings) Settings {
	s.Mode = cmp.Or(s.Mode, wider.Mode)
	if s.Tools == nil {
		s.Tools = wider.Tools
	}
	if s.Services == nil {
		s.Services = wider.Services
	}
	if s.MCP == nil {
		s.MCP = wider.MCP
	}
	s.Rates = Rates{
		Proxy: cmp.Or(s.Rates.Proxy, wider.Rates.Proxy), Execute: cmp.Or(s.Rates.Execute, wider.Rates.Execute),
		Service: cmp.Or(s.Rates.Service, wider.Rates.Service), LLM: cmp.Or(s.Rates.LLM, wider.Rates.LLM),
		Tunnels: cmp.Or(s.Rates.Tunnels, wider.Rates.Tunnels),
	}
	s.Budget = Budget{
		TokensPerDay: cmp.Or(s.Budget.TokensPerDay, wider.Budget.TokensPerDay),
		CostPerDay:   cmp.Or(s.Budget.CostPerDay, wider.Budget.CostPerDay),
	}
	s.Hold = cmp.Or(s.Hold, wider.Hold)
	s.Browser = cmp.Or(s.Browser, wider.Browser)
	return s
}

// setting is what is set in one scope, if anything is.
func (d *decisions) setting(of scope, now time.Time) (set Settings, until time.Time) {
	i := d.settings[of]
	if i == nil || i.expired(now) {
		return Settings{}, time.Time{}
	}
	return *i.settings, i.settings.ExpiresAt
}

// boundRates finds rates that only an admin of the installation gives: each request is on record, and what one tenant writes
// there all tenants keep. Others lower rates, and raise them to what is set for all, to what is set already, and those of an
// agent to its tenant's.
func (d *decisions) boundRates(f *flaws, s Settings, now time.Time) {
	all, _ := d.setting(scope{}, now)
	all = all.over(defaults())
	set, _ := d.setting(scope{s.Tenant, s.Agent}, now)
	wider := all
	if s.Agent != "" {
		tenant, _ := d.setting(scope{tenant: s.Tenant}, now)
		wider = tenant.over(all)
	}
	for _, rate := range []struct {
		name                 string
		is, all, set, tenant int
	}{
		{"proxy", s.Rates.Proxy, all.Rates.Proxy, set.Rates.Proxy, wider.Rates.Proxy},
		{"execute", s.Rates.Execute, all.Rates.Execute, set.Rates.Execute, wider.Rates.Execute},
		{"service", s.Rates.Service, all.Rates.Service, set.Rates.Service, wider.Rates.Service},
		{"llm", s.Rates.LLM, all.Rates.LLM, set.Rates.LLM, wider.Rates.LLM},
		{"tunnels", s.Rates.Tunnels, all.Rates.Tunnels, set.Rates.Tunnels, wider.Rates.Tunnels},
	} {
		if limit := max(rate.all, rate.set, rate.tenant); rate.is > limit {
			f.add(problem.BadLimit, "rates."+rate.name, fmt.Sprintf("at most %d; an admin of the installation may set more", limit), "is %d", rate.is)
		}
	}
}

// inEffect are settings with everything filled in.
type inEffect struct {
	Settings
	toolsFrom string // the id of the settings that have the tools
	until     time.Time
}

// effective are the settings in effect in a scope.
func (d *decisions) effective(of scope, now time.Time) (out inEffect) {
	scopes := []scope{of}
	if of.agent != "" {
		scopes = append(scopes, scope{tenant: of.tenant})
	}
	if of.tenant != "" {
		scopes = append(scopes, scope{})
	}
	for _, wider := range scopes {
		set, end := d.setting(wider, now)
		if out.Tools == nil && set.Tools != nil {
			out.toolsFrom = set.ID
		}
		out.Settings, out.until = out.over(set), earlier(out.until, end)
	}
	out.Settings = out.over(defaults())
	out.Meta = Meta{Tenant: of.tenant, Agent: of.agent}
	return out
}

// MCPServers are the names of the MCP servers that the settings of an agent offer it. It does no I/O.
func (b *Book) MCPServers(tenant, agent string) []string {
	if b.stale.Load() || tenant == "" || agent == "" {
		return nil
	}
	return slices.Clone(b.state.Load().decisions.effective(scope{tenant, agent}, b.o.Now()).MCP)
}

// decideSettings finds the settings of a caller. A session has those of its tenant's sessions; what opened it may only
// make it stricter, but for what its browser may reach, which is the opener's.
func (v *EffectivePolicy) decideSettings(d *decisions, now time.Time) {
	settings := d.effective(scope{v.who.Tenant, v.who.Agent}, now)
	v.upTo(settings.until)
	if v.who.Session != "" && v.who.Opener != "" {
		own, until := d.setting(scope{v.who.Tenant, v.who.Opener}, now)
		v.upTo(until)
		if own.Mode == policy.Enforce {
			settings.Mode = policy.Enforce
		}
		// Those of the tenant, which are in settings, are there for an agent that has none.
		settings.Browser = cmp.Or(own.Browser, settings.Browser)
	}
	if v.who.Confined {
		settings.Mode = policy.Enforce
	}
	v.settings, v.toolsFrom = settings.Settings, settings.toolsFrom
	if v.who.Agent != "" {
		v.hold, _ = holdTime(settings.Hold)
	}
}

// policyName is what the tool is called in policies; i is its place. One for one use has a name that finds it again.
func (t Tool) policyName(settings string, i int) string {
	if t.Once {
		return prefixOnce + settings + toolMark + t.ID
	}
	return fmt.Sprintf("tool-%d", i+1)
}

// toolMark stands between the ids of settings and of a tool.
const toolMark = "."

// ShowSettings returns what is set for an agent by name, for a tenant (agent ""), or for all (both ""), and what is in
// effect. An agent that names none means itself.
func (b *Book) ShowSettings(ctx context.Context, by identity.Principal, tenant, agent string) (set, effective Settings, err error) {
	of, err := b.scopeOf(ctx, by, identity.SettingsRead, by.Among(tenant), agent)
	if err != nil {
		return Settings{}, Settings{}, err
	}
	d, err := b.current(ctx)
	if err != nil {
		return Settings{}, Settings{}, err
	}
	now := b.o.Now()
	set, _ = d.setting(of, now)
	effective = d.effective(of, now).Settings
	if set.ID == "" {
		set.Meta = effective.Meta
	}
	return set, effective, nil
}

// scopeOf finds the agent of a name, if the caller may do the operation with it. A caller who may not is told the same as
// about an agent that does not exist.
func (b *Book) scopeOf(ctx context.Context, by identity.Principal, op identity.Operation, tenant, agent string) (scope, error) {
	if by.Kind == identity.KindAgent {
		if agent == "" || agent == by.Name && tenant == by.Tenant {
			return scope{tenant, by.ID}, b.mayWith(ctx, by, op, scope{tenant, by.ID}, noAgent())
		}
		// Nothing is looked up: another agent does not exist for it.
		if err := b.mayWith(ctx, by, op, scope{tenant: tenant}, noAgent()); err != nil {
			return scope{}, err
		}
		return scope{}, noAgent()
	}
	if err := b.mayWith(ctx, by, op, scope{tenant: tenant}, noAgent()); err != nil || agent == "" {
		return scope{tenant: tenant}, err
	}
	a, err := b.o.Store.Agent(ctx, tenant, agent)
	if errors.Is(err, store.ErrNotFound) {
		return scope{}, noAgent()
	}
	return scope{tenant, a.ID}, err
}

// PutSettings replaces what is set; Meta.Agent is the agent's id. With a Version it refuses (conflict) to replace
// another one. Services and MCP servers that s leaves out stay as they are; see [Book.DeclareSettings].
func (b *Book) PutSettings(ctx context.Context, by identity.Principal, s Settings) (Settings, error) {
	return b.putSettings(ctx, by, s, true)
}

// DeclareSettings is PutSettings for a caller that gives all fields: nil Services and MCP are the wider setting's again.
func (b *Book) DeclareSettings(ctx context.Context, by identity.Principal, s Settings) (Settings, error) {
	return b.putSettings(ctx, by, s, false)
}

func (b *Book) putSettings(ctx context.Context, by identity.Principal, s Settings, keep bool) (Settings, error) {
	if err := b.mayChange(ctx, by, identity.SettingsChange, s.Tenant, false); err != nil {
		return Settings{}, err
	}
	s.CreatedBy = by.Actor()
	s.Tools = slices.Clone(s.Tools)
	for i := range s.Tools {
		s.Tools[i].Methods = upperAll(s.Tools[i].Methods)
	}
	f := newFlaws()
	validSettings(f, s)
	validExpiry(f, s.ExpiresAt, b.o.Now())
	if err := f.err(); err != nil {
		return Settings{}, err
	}
	of := scope{s.Tenant, s.Agent}
	if err := b.agentOf(ctx, of); err != nil {
		return Settings{}, err
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	// Another process may have set some a moment ago.
	d, err := b.current(ctx)
	if err != nil {
		return Settings{}, failure(err)
	}
	if by.Tenant != "" {
		d.boundRates(f, s, b.o.Now())
		if err := f.err(); err != nil {
			return Settings{}, err
		}
	}
	if keep {
		set, _ := d.setting(of, b.o.Now())
		if s.Services == nil {
			s.Services = set.Services
		}
		if s.MCP == nil {
			s.MCP = set.MCP
		}
	}
	fields := audit.Fields{"services": len(s.Services), "services_set": s.Services != nil, "mcp": strings.Join(s.MCP, " "), "mcp_set": s.MCP != nil, "mode": string(s.Mode), "hold": s.Hold, "browser": string(s.Browser), "tools": len(s.Tools), "tools_set": s.Tools != nil,
		"budget_units_per_day": s.Budget.TokensPerDay, "cost_per_day": s.Budget.CostPerDay}
	err = b.change(ctx, step{by: by, op: identity.SettingsChange, of: of, target: theSettings, fields: fields}, func() error {
		e, err := b.put(ctx, kindSettings, theSettings, &s.Meta, "set_", func() (store.Entry, error) { return s.entry() }, 0)
		s.Meta = metaOf(e, s.Meta)
		return err
	})
	if err != nil {
		return Settings{}, err
	}
	return s, nil
}

// put makes an entry, or replaces the one of the same scope and name: m gets what the row will have. A tenant
// gets no new one beyond limit entries, if that is not 0.
func (b *Book) put(ctx context.Context, kind, name string, m *Meta, prefix string, entry func() (store.Entry, error), limit int) (store.Entry, error) {
	wanted := m.Version
	old, count, err := b.find(ctx, kind, name, scope{m.Tenant, m.Agent})
	if err != nil {
		return store.Entry{}, err
	}
	now := b.now()
	switch {
	case old.ID == "" && wanted != 0, old.ID != "" && wanted != 0 && wanted != old.Version:
		return store.Entry{}, problem.New(problem.Conflict, "look at what there is now, and try again", "somebody else changed the entry meanwhile")
	case old.ID == "" && limit > 0 && count >= limit:
		return store.Entry{}, problem.New(problem.BadLimit, "remove some that are not needed", "there are %d entries already, the most there may be", count)
	}
	m.ExpiresAt = store.Microsecond(m.ExpiresAt)
	if old.ID == "" {
		m.ID, m.Version, m.CreatedAt, m.UpdatedAt = newID(prefix), 1, now, now
	} else {
		m.ID, m.Version, m.CreatedAt, m.UpdatedAt = old.ID, old.Version, old.CreatedAt, now
	}
	e, err := entry()
	if err != nil {
		return store.Entry{}, err
	}
	if old.ID == "" {
		return e, failure(b.o.Store.CreateEntry(ctx, e))
	}
	if err := b.o.Store.UpdateEntry(ctx, e); err != nil {
		return store.Entry{}, failure(err)
	}
	e.Version++
	return e, nil
}

// find looks an entry up by name, and counts those of its tenant.
func (b *Book) find(ctx context.Context, kind, name string, of scope) (found store.Entry, count int, err error) {
	entries, err := b.o.Store.ListEntries(ctx, kind)
	for _, e := range entries {
		if e.Tenant != of.tenant {
			continue
		}
		count++
		if e.Agent == of.agent && e.Name == name && found.ID == "" {
			found = e
		}
	}
	return found, count, err
}

func upperAll(words []string) []string {
	if words == nil {
		return nil
	}
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = strings.ToUpper(w)
	}
	return out
}
