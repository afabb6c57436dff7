package egress

import (
	"cmp"
	"log/slog"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of what is kept ready. Views beyond them are made again.
const (
	maxViews  = 8192
	maxWeight = 200_000 // rules
	maxBases  = 8       // that one set of rules is compiled with
)

// viewKey is a Who without its base.
type viewKey struct {
	tenant, agent, session, opener string
	confined                       bool
}

// span is the time for which something is right: of the clock on the wall, which may be set back.
type span struct {
	from  time.Time
	until time.Time // zero for always
}

func spanFrom(now time.Time) span { return span{from: now.Round(0)} } // without the monotonic clock

func (s *span) holds(now time.Time) bool { return !now.Before(s.from) && !expired(s.until, now) }

// upTo shortens it; zero is no end.
func (s *span) upTo(at time.Time) { s.until = earlier(s.until, at) }

// EffectivePolicy is what one caller may do at one moment, with all entries and settings applied. It does not change.
type EffectivePolicy struct {
	who Who
	span
	log *slog.Logger

	rules    *ruleset
	proxied  *compiledBase // nil: unread
	settings Settings
	hold     time.Duration
	// toolsFrom is the id of the settings that have the tools.
	toolsFrom string

	services map[string]*served
	names    []string // of services, sorted
	// unreadable are names of services whose entries cannot be read.
	unreadable map[string]bool
	providers  []*provided
	// missing decides in place of a service or a provider that is not there; nil, but in a closedView.
	missing *policy.Compiled
	tools   []policy.Rule
	toolFor [][]string // the services of each tool

	mu      sync.Mutex // guards what follows
	toolsOf map[string]*policy.Compiled
	// namingOf are those that [EffectivePolicy.ToolNaming] has made.
	namingOf map[string]*policy.Compiled
}

// served is a service of one caller.
type served struct {
	Service
	permit func() *policy.Compiled
}

// provided is a provider of one caller.
type provided struct {
	Provider
	permit func() *policy.Compiled
}

// closedView denies everything, in the name of a rule that says why.
func closedView(why string) *EffectivePolicy {
	closed, err := policy.Compile(policy.Only(denyAll(why)))
	if err != nil {
		closed = nil // which denies as well
	}
	return &EffectivePolicy{
		log: slog.New(slog.DiscardHandler), settings: defaults(), rules: &ruleset{damaged: true}, missing: closed,
		proxied: &compiledBase{compiled: func() *policy.Compiled { return closed }}, toolsOf: map[string]*policy.Compiled{"": closed}, namingOf: map[string]*policy.Compiled{},
	}
}

// View is the policy of a caller now. It is cheap: it is asked for with every request. The rules of w.Base must not be
// changed afterwards.
func (b *Book) View(w Who) *EffectivePolicy {
	if b.stale.Load() {
		return b.whenStale
	}
	// A caller is a jail of an agent's, or of a session's. A caller that is neither or both may reach nothing.
	if w.Tenant == "" || (w.Agent == "") == (w.Session == "") {
		return b.nobody
	}
	d, now := b.state.Load().decisions, b.o.Now()
	key := viewKey{w.Tenant, w.Agent, w.Session, w.Opener, w.Confined}
	d.mu.RLock()
	v := d.views[key]
	d.mu.RUnlock()
	if v != nil && v.holds(now) && sameBase(v.who.Base, w.Base) {
		return v
	}
	return d.make(key, w, now, b.o.Log)
}

// sameBase compares two policies, at once when they are the same in memory.
func sameBase(a, b policy.Policy) bool {
	if a.Default != b.Default || a.Advice != b.Advice || len(a.Rules) != len(b.Rules) {
		return false
	}
	return len(a.Rules) == 0 || &a.Rules[0] == &b.Rules[0] || reflect.DeepEqual(a.Rules, b.Rules)
}

func (d *decisions) make(key viewKey, w Who, now time.Time, log *slog.Logger) *EffectivePolicy {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.views) >= maxViews || d.weight > maxWeight {
		clear(d.views)
		clear(d.rulesets)
		d.weight = 0
	}
	rules := d.ruleset(w, now)
	v := &EffectivePolicy{who: w, span: spanFrom(now), log: log, rules: rules, toolsOf: map[string]*policy.Compiled{}, namingOf: map[string]*policy.Compiled{}}
	v.upTo(rules.until)
	v.decideSettings(d, now)
	mode := v.settings.Mode
	if rules.damaged {
		mode = policy.Enforce
	}
	v.proxied = rules.with(d, v.base(), mode, log)
	if w.Agent != "" {
		v.findServices(d, now)
		v.findProviders(d, now)
		v.findTools(now)
	}
	d.views[key] = v
	return v
}

// base is what stands behind the rules. A browser that an agent opened reaches what the agent does, unless somebody said
// that it has the public web: otherwise it would be the agent's way around its own rules.
func (v *EffectivePolicy) base() policy.Policy {
	if v.who.Session == "" || v.who.Opener == "" || v.who.Confined {
		return v.who.Base
	}
	if v.settings.Browser == BrowserOpen {
		out := v.who.Base
		out.Advice = "" // which says how to get here
		return out
	}
	out := policy.Only(onlyDeny(v.who.Base.Rules)...)
	out.Advice = v.who.Base.Advice
	return out
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// rulesetKey names what callers share: it is empty where a caller has no rules of its own.
type rulesetKey struct {
	tenant, agent, session, opener string
	inSession, confined            bool
}

// ruleset are the rules that some callers have alike, with names that are unique.
type ruleset struct {
	span
	rules   []policy.Rule
	taken   map[string]bool
	damaged bool // one of them stands for what could not be read
	bases   []*compiledBase
}

// compiledBase are the rules with a base, compiled when somebody asks.
type compiledBase struct {
	base     policy.Policy
	mode     policy.Mode
	compiled func() *policy.Compiled
}

func (d *decisions) ruleset(w Who, now time.Time) *ruleset {
	key := rulesetKey{tenant: w.Tenant, inSession: w.Session != "", confined: w.Confined}
	if d.agents[w.Agent] {
		key.agent = w.Agent
	}
	if d.sessions[w.Session] {
		key.session = w.Session
	}
	if d.agents[w.Opener] {
		key.opener = w.Opener
	}
	if known := d.rulesets[key]; known != nil && known.holds(now) {
		return known
	}
	out := &ruleset{span: spanFrom(now), taken: map[string]bool{}}
	for _, r := range d.rulesOf(w.Tenant) {
		if !r.appliesTo(w) || expired(r.ExpiresAt, now) {
			continue
		}
		out.upTo(r.ExpiresAt)
		out.damaged = out.damaged || r.damaged
		plain := r.Rule.Rule
		plain.Name = unique(out.taken, r.policyName(), r.ID)
		out.rules = append(out.rules, plain)
	}
	d.rulesets[key] = out
	d.weight += len(out.rules)
	return out
}

// policyName is what the rule is called in policies. A rule for one use has a name that finds it again.
func (r *Rule) policyName() string {
	switch {
	case r.Once:
		return prefixOnce + r.ID
	case r.Name == "":
		return r.ID
	}
	return r.Name
}

// unique makes a name one that no other rule has.
func unique(taken map[string]bool, name, otherwise string) string {
	out := name
	for n := 1; taken[out]; n++ {
		out = name + "-" + cmp.Or(otherwise, "fixed")
		if n > 1 {
			out += "-" + strconv.Itoa(n)
		}
	}
	taken[out] = true
	return out
}

// appliesTo says whether the rule is for a caller; see [Rule].
func (r *Rule) appliesTo(w Who) bool {
	switch {
	case r.Tenant != "" && r.Tenant != w.Tenant:
		return false
	case w.Confined && r.Action != policy.Deny:
		return false
	case w.Session == "":
		return r.Session == "" && (r.Agent == "" || r.Agent == w.Agent)
	case r.Session != "":
		return r.Session == w.Session
	case r.Agent != "":
		return r.Agent == w.Opener
	}
	return true
}

// with is what decides when a base stands behind the rules.
func (s *ruleset) with(d *decisions, base policy.Policy, mode policy.Mode, log *slog.Logger) *compiledBase {
	for _, known := range s.bases {
		if known.mode == mode && sameBase(known.base, base) {
			return known
		}
	}
	out := &compiledBase{base: base, mode: mode, compiled: sync.OnceValue(func() *policy.Compiled {
		p := policy.Policy{Rules: slices.Clone(s.rules), Mode: mode, Default: base.Default, Advice: base.Advice}
		p.Rules = append(p.Rules, s.named("base-", base.Rules)...)
		return compile(p, log)
	})}
	if len(s.bases) < maxBases {
		s.bases = append(s.bases, out)
	}
	d.weight += len(s.rules) + len(base.Rules)
	return out
}

// named returns rules with names that none of the set has, and that mean nothing to [Book.Used].
func (s *ruleset) named(prefix string, rules []policy.Rule) []policy.Rule {
	taken := make(map[string]bool, len(rules))
	out := slices.Clone(rules)
	for i := range out {
		name := out[i].Name
		for s.taken[name] || taken[name] || reserved(name) {
			name = prefix + name
		}
		taken[name] = true
		out[i].Name = name
	}
	return out
}

// allowing decides with the rules that deny, those of the base among them, and then with what is allowed.
func (v *EffectivePolicy) allowing(allow []policy.Rule) *policy.Compiled {
	rules := onlyDeny(v.rules.rules)
	rules = append(rules, v.rules.named("base-", onlyDeny(v.who.Base.Rules))...)
	taken := make(map[string]bool, len(rules)+len(allow))
	for _, r := range rules {
		taken[r.Name] = true
	}
	for _, r := range allow {
		r.Name = unique(taken, r.Name, "allowed")
		rules = append(rules, r)
	}
	return compile(policy.Only(rules...), v.log)
}

func onlyDeny(rules []policy.Rule) []policy.Rule {
	var out []policy.Rule
	for _, r := range rules {
		if r.Action == policy.Deny {
			out = append(out, r)
		}
	}
	return out
}

// compile returns nil, which denies, when that is no policy.
func compile(p policy.Policy, log *slog.Logger) *policy.Compiled {
	out, err := policy.Compile(p)
	if err != nil {
		log.Error("a policy cannot be used and denies all", "error", texts.Clip(err.Error(), 1000))
		return nil
	}
	return out
}

// Proxy decides about tunnels and plain requests.
func (v *EffectivePolicy) Proxy() *policy.Compiled { return v.proxied.compiled() }

// ToolNaming decides what the credential of a service may go with: the tools that name the service, after all rules that
// deny. A tool that names none is for requests without a credential. Nil denies.
func (v *EffectivePolicy) ToolNaming(service string) *policy.Compiled {
	if v.services[service] == nil {
		return nil
	}
	var allow []policy.Rule
	for i, r := range v.tools {
		if slices.Contains(v.toolFor[i], service) {
			allow = append(allow, r)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	out, made := v.namingOf[service]
	if !made {
		out = v.allowing(allow)
		v.namingOf[service] = out
	}
	return out
}

// Tool decides about execute for a service, or for none: the tools, after all rules that deny. Nil denies.
func (v *EffectivePolicy) Tool(service string) *policy.Compiled {
	if v.unreadable[service] {
		return nil // only the service says where its credential goes in
	}
	if v.services[service] == nil && service != "" && !v.mayUse(service) {
		return nil
	}
	leads := v.leads(service)
	// All services that no tool names have the same, unless they are at a private address.
	if leads == nil && !slices.ContainsFunc(v.toolFor, func(names []string) bool { return slices.Contains(names, service) }) {
		service = ""
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	out, made := v.toolsOf[service]
	if !made {
		var allow []policy.Rule
		for i, r := range v.tools {
			if len(v.toolFor[i]) == 0 || service != "" && slices.Contains(v.toolFor[i], service) {
				if leads != nil && r.Host.String() == leads.host && len(r.Ports) == 1 && r.Ports[0] == (policy.PortRange{First: leads.port, Last: leads.port}) {
					r.Address = leads.address
				}
				allow = append(allow, r)
			}
		}
		out = v.allowing(allow)
		v.toolsOf[service] = out
	}
	return out
}

// destination is where an operator leads a host.
type destination struct {
	host    string
	port    uint16
	address netip.Addr
}

// leads is where the operator leads the host of a service: what execute does with its credential goes there too. Nil
// when the host is looked up.
func (v *EffectivePolicy) leads(service string) *destination {
	s := v.services[service]
	if s == nil || !s.Address.IsValid() {
		return nil
	}
	u, err := url.Parse(s.BaseURL)
	if err != nil {
		return nil // which validation has refused
	}
	e, err := hostport.FromURL(u)
	if err != nil {
		return nil
	}
	return &destination{e.Host().String(), e.Port(), s.Address}
}

// findTools makes rules of the tools.
func (v *EffectivePolicy) findTools(now time.Time) {
	for i, t := range v.settings.Tools {
		if expired(t.ExpiresAt, now) {
			continue
		}
		v.upTo(t.ExpiresAt)
		r, err := t.rule(t.policyName(v.toolsFrom, i))
		if err != nil || len(t.Methods) == 0 {
			continue // which validation has refused
		}
		services := t.Services
		if len(services) == 0 && t.ID != "" {
			if services = v.livesAt(r); len(services) == 0 {
				continue
			}
		}
		v.tools = append(v.tools, r)
		v.toolFor = append(v.toolFor, services)
	}
}

// livesAt are the services of the caller that are where a tool leads to. An agent that asks for a tool and names no service
// gets it with their credentials: approving a URL does not allow sending credentials of other services there.
func (v *EffectivePolicy) livesAt(tool policy.Rule) []string {
	var out []string
	for _, name := range v.names {
		base, err := parseBase(v.services[name].BaseURL)
		if err == nil && base.scheme == tool.Scheme && tool.Host.Matches(base.to.Host()) && slices.Equal(tool.Ports, policy.Ports(base.to.Port())) {
			out = append(out, name)
		}
	}
	return out
}

// Service finds a service by name, and what decides about requests to it: what it allows, after all rules that deny.
func (v *EffectivePolicy) Service(name string) (Service, *policy.Compiled, bool) {
	s := v.services[name]
	if s == nil {
		return Service{}, v.missing, false
	}
	return s.Service, s.permit(), true
}

// Services are all that the caller has, by name.
func (v *EffectivePolicy) Services() []Service {
	out := make([]Service, 0, len(v.names))
	for _, name := range v.names {
		out = append(out, v.services[name].Service)
	}
	return out
}

// Provider finds who serves a model on a wire, and what decides about requests to it.
func (v *EffectivePolicy) Provider(wire Wire, model string) (Provider, *policy.Compiled, bool) {
	if !clean(model, maxPattern) {
		return Provider{}, nil, false
	}
	for _, p := range v.providers {
		if p.Wire == wire && slices.ContainsFunc(p.Models, func(pattern string) bool { return matchModel(pattern, model) }) {
			return p.Provider, p.permit(), true
		}
	}
	return Provider{}, v.missing, false
}

// Providers are all that the caller has, in the order in which they are asked.
func (v *EffectivePolicy) Providers() []Provider {
	out := make([]Provider, len(v.providers))
	for i, p := range v.providers {
		out[i] = p.Provider
	}
	return out
}

// Settings are what is decided for the caller, with every default filled in.
func (v *EffectivePolicy) Settings() Settings { return v.settings }

// Hold is how long a refused request waits for an operator; 0 for not at all.
func (v *EffectivePolicy) Hold() time.Duration { return v.hold }

// budget is what the caller may use of models on one day, and whether that is known.
func (v *EffectivePolicy) budget() (Budget, error) {
	if v.rules.damaged {
		return Budget{}, problem.New(problem.BudgetExceeded, "Do not retry: tell the operator that clawjail's log names an entry that cannot be read.",
			"an entry that decides about this agent cannot be read, so it may not use models")
	}
	return v.settings.Budget, nil
}
