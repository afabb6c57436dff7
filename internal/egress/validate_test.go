package egress

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestServicesThatMakeNoSense(t *testing.T) {
	w := newFixture(t)
	for name, tt := range map[string]struct {
		change func(*Service)
		code   string
	}{
		"good":                            {func(*Service) {}, ""},
		"name":                            {func(s *Service) { s.Name = "Git Hub" }, problem.BadName},
		"dots":                            {func(s *Service) { s.Name = ".." }, problem.BadName},
		"user":                            {func(s *Service) { s.BaseURL = "https://u:p@api.example.com" }, problem.BadURL},
		"query":                           {func(s *Service) { s.BaseURL = "https://api.example.com/?a=b" }, problem.BadURL},
		"empty query":                     {func(s *Service) { s.BaseURL = "https://api.example.com/?" }, problem.BadURL},
		"fragment":                        {func(s *Service) { s.BaseURL = "https://api.example.com/#x" }, problem.BadURL},
		"scheme":                          {func(s *Service) { s.BaseURL = "ftp://api.example.com" }, problem.BadURL},
		"no host":                         {func(s *Service) { s.BaseURL = "https:///x" }, problem.BadURL},
		"relative":                        {func(s *Service) { s.BaseURL = "/x" }, problem.BadURL},
		"dot segment":                     {func(s *Service) { s.BaseURL = "https://api.example.com/a/../b" }, problem.BadURL},
		"encoded slash":                   {func(s *Service) { s.BaseURL = "https://api.example.com/a%2fb" }, problem.BadURL},
		"two slashes":                     {func(s *Service) { s.BaseURL = "https://api.example.com//b" }, problem.BadURL},
		"pattern":                         {func(s *Service) { s.BaseURL = "https://api.example.com/*/b" }, problem.BadURL},
		"host pattern":                    {func(s *Service) { s.BaseURL = "https://*.example.com/" }, problem.BadURL},
		"private literal":                 {func(s *Service) { s.BaseURL = "https://10.0.0.1/" }, problem.BadURL},
		"metadata literal":                {func(s *Service) { s.BaseURL = "http://169.254.169.254/" }, problem.BadURL},
		"metadata address":                {func(s *Service) { s.Address = netip.MustParseAddr("169.254.169.254") }, problem.BadRequest},
		"zone":                            {func(s *Service) { s.Address = netip.MustParseAddr("fe80::1%eth0") }, problem.BadRequest},
		"private address":                 {func(s *Service) { s.Address = netip.MustParseAddr("10.0.0.1") }, ""},
		"no injection":                    {func(s *Service) { s.Inject = Injection{} }, problem.BadRequest},
		"injection":                       {func(s *Service) { s.Inject = Injection{Type: "cookie"} }, problem.BadRequest},
		"header":                          {func(s *Service) { s.Inject = Injection{Type: InjectHeader, Name: "X-Api-Key"} }, ""},
		"header without name":             {func(s *Service) { s.Inject = Injection{Type: InjectHeader} }, problem.BadRequest},
		"header with a break":             {func(s *Service) { s.Inject = Injection{Type: InjectHeader, Name: "X\r\nY"} }, problem.BadRequest},
		"host header":                     {func(s *Service) { s.Inject = Injection{Type: InjectHeader, Name: "hOST"} }, problem.BadRequest},
		"length":                          {func(s *Service) { s.Inject = Injection{Type: InjectHeader, Name: "content-length"} }, problem.BadRequest},
		"connection":                      {func(s *Service) { s.Inject = Injection{Type: InjectHeader, Name: "Connection"} }, problem.BadRequest},
		"coding":                          {func(s *Service) { s.Inject = Injection{Type: InjectHeader, Name: "Transfer-Encoding"} }, problem.BadRequest},
		"own header":                      {func(s *Service) { s.Inject = Injection{Type: InjectHeader, Name: "Clawjail-Refusal"} }, problem.BadRequest},
		"query parameter":                 {func(s *Service) { s.Inject = Injection{Type: InjectQuery, Name: "api_key"} }, ""},
		"query with separator":            {func(s *Service) { s.Inject = Injection{Type: InjectQuery, Name: "a&b"} }, problem.BadRequest},
		"bearer with a name":              {func(s *Service) { s.Inject = Injection{Type: InjectBearer, Name: "X"} }, problem.BadRequest},
		"user with a colon":               {func(s *Service) { s.Inject = Injection{Type: InjectBasic, User: "a:b"} }, problem.BadRequest},
		"basic":                           {func(s *Service) { s.Inject = Injection{Type: InjectBasic, User: "a"} }, ""},
		"scrub":                           {func(s *Service) { s.Scrub = "maybe" }, problem.BadRequest},
		"compressed":                      {func(s *Service) { s.Compressed = "keep" }, problem.BadRequest},
		"what becomes of encoded slashes": {func(s *Service) { s.EncodedSlash = "maybe" }, problem.BadRequest},
		"encoded slash in a path": {func(s *Service) {
			s.EncodedSlash, s.Allow = EncodedSlashAllow, []Allowance{{Path: "/projects/group%2Fname"}}
		}, ""},
		"encoded slash that is not allowed": {func(s *Service) {
			s.EncodedSlash, s.Allow = EncodedSlashDeny, []Allowance{{Path: "/projects/group%2Fname"}}
		}, problem.BadURL},
		"encoded dot segment": {func(s *Service) {
			s.EncodedSlash, s.Allow = EncodedSlashAllow, []Allowance{{Path: "/projects/group%2F..%2Fname"}}
		}, problem.BadURL},
		"method":            {func(s *Service) { s.Allow = []Allowance{{Methods: []string{"GET "}}} }, problem.BadRequest},
		"tunnel":            {func(s *Service) { s.Allow = []Allowance{{Methods: []string{"CONNECT"}}} }, problem.BadRequest},
		"path":              {func(s *Service) { s.Allow = []Allowance{{Path: "repos"}} }, problem.BadURL},
		"path with dots":    {func(s *Service) { s.Allow = []Allowance{{Path: "/../x"}} }, problem.BadURL},
		"git":               {func(s *Service) { s.Git = "https://github.com/" }, ""},
		"git without slash": {func(s *Service) { s.Git = "https://github.com" }, problem.BadURL},
		"git with a break":  {func(s *Service) { s.Git = "https://github.com/\n[core]/" }, problem.BadURL},
		"env":               {func(s *Service) { s.Env = map[string]string{"A_URL2": "{url}"} }, ""},
		"env name":          {func(s *Service) { s.Env = map[string]string{"a": "x"} }, problem.BadRequest},
		"env digit":         {func(s *Service) { s.Env = map[string]string{"1A": "x"} }, problem.BadRequest},
		"env break":         {func(s *Service) { s.Env = map[string]string{"A": "x\ny"} }, problem.BadRequest},
		"secret":            {func(s *Service) { s.Secret = "../x" }, problem.BadName},
		"a token in the address": {func(s *Service) {
			s.BaseURL = "https://api.telegram.org/bot123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1"
		}, problem.BadSecret},
		"a token in the address, with escapes": {func(s *Service) {
			s.BaseURL = "https://api.telegram.org/bot123456789%3AAAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1"
		}, problem.BadSecret},
		"a token in a path": {func(s *Service) { s.Allow = []Allowance{{Path: "/x/ghp_abcdefghijklmnopqrst/**"}} }, problem.BadSecret},
		"a bot's address":   {func(s *Service) { s.BaseURL = "https://api.telegram.org/bot" }, ""},
		"note":              {func(s *Service) { s.Note = "a\x00b" }, problem.BadRequest},
		"past":              {func(s *Service) { s.ExpiresAt = w.clock.Now() }, problem.BadLimit},
	} {
		s := service("good")
		tt.change(&s)
		_, err := w.PutService(w.ctx, w.admin, s)
		w.wantCode(name, err, tt.code)
	}
}

func TestRulesProvidersAndSettingsThatMakeNoSense(t *testing.T) {
	w := newFixture(t)
	addRule := func(f func(*Rule)) error {
		r := rule(policy.Allow, "a.example").of("acme", "")
		f(&r)
		return second2(w.AddRule(w.ctx, w.admin, r))
	}
	putProvider := func(f func(*Provider)) error {
		p := provider("p", WireOpenAI, "*")
		f(&p)
		return second2(w.PutProvider(w.ctx, w.admin, p))
	}
	put := func(s Settings) error { return second2(w.PutSettings(w.ctx, w.admin, s)) }
	tool := func(t Tool) error { return put(Settings{Tools: []Tool{t}}) }
	for _, tt := range []struct {
		name string
		err  error
		code string
	}{
		{"rule", addRule(func(*Rule) {}), ""},
		{"rule that does nothing", addRule(func(r *Rule) { r.Action = "" }), problem.BadRequest},
		{"rule without host", addRule(func(r *Rule) { r.Host = policy.Pattern{} }), problem.BadRequest},
		{"rule without ports", addRule(func(r *Rule) { r.Ports = nil }), problem.BadRequest},
		{"priority", addRule(func(r *Rule) { r.Priority = 1000 }), problem.BadLimit},
		{"negative priority", addRule(func(r *Rule) { r.Priority = -1 }), problem.BadLimit},
		{"metadata", addRule(func(r *Rule) { r.Address = netip.MustParseAddr("169.254.169.254") }), problem.BadRequest},
		{"pattern with an address", addRule(func(r *Rule) { r.Host, r.Address = policy.AnyHost(), netip.MustParseAddr("10.0.0.1") }), problem.BadRequest},
		{"session of nobody", addRule(func(r *Rule) { r.Tenant, r.Session = "", "s_1" }), problem.BadRequest},
		{"session and agent", addRule(func(r *Rule) { r.Agent, r.Session = w.bot.ID, "s_1" }), problem.BadRequest},
		{"agent of nobody", addRule(func(r *Rule) { r.Tenant, r.Agent = "", w.bot.ID }), problem.BadRequest},
		{"unknown agent", addRule(func(r *Rule) { r.Agent = "ag_x" }), problem.NotFound},
		{"unknown tenant", addRule(func(r *Rule) { r.Tenant = "gamma" }), problem.NotFound},
		{"deny once", addRule(func(r *Rule) { r.Action, r.Once = policy.Deny, true }), problem.BadRequest},
		{"past", addRule(func(r *Rule) { r.ExpiresAt = w.clock.Now().Add(-time.Hour) }), problem.BadLimit},
		{"far", addRule(func(r *Rule) { r.ExpiresAt = w.clock.Now().AddDate(11, 0, 0) }), problem.BadLimit},
		{"provider", putProvider(func(*Provider) {}), ""},
		{"wire", putProvider(func(p *Provider) { p.Wire = "other" }), problem.BadRequest},
		{"no models", putProvider(func(p *Provider) { p.Models = nil }), problem.BadRequest},
		{"model", putProvider(func(p *Provider) { p.Models = []string{"a b"} }), problem.BadRequest},
		{"price", putProvider(func(p *Provider) { p.Prices = []Price{{Model: "*", Input: -1}} }), problem.BadLimit},
		{"no number", putProvider(func(p *Provider) { p.Prices = []Price{{Model: "*", Input: math.NaN()}} }), problem.BadLimit},
		{"times", putProvider(func(p *Provider) { p.Prices = []Price{{Model: "*", Priority: new(-1.0)}} }), problem.BadLimit},
		{"endless", putProvider(func(p *Provider) { p.Prices = []Price{{Model: "*", Output: math.Inf(1)}} }), problem.BadLimit},
		{"settings", put(Settings{Rates: Rates{Proxy: 1}, Hold: "5m", Budget: Budget{TokensPerDay: 1, CostPerDay: 0.01}}), ""},
		{"mode", put(Settings{Mode: "off"}), problem.BadRequest},
		{"rate", put(Settings{Rates: Rates{LLM: -1}}), problem.BadLimit},
		{"tunnels", put(Settings{Rates: Rates{Tunnels: maxTunnels + 1}}), problem.BadLimit},
		{"tokens", put(Settings{Budget: Budget{TokensPerDay: -1}}), problem.BadLimit},
		{"cost", put(Settings{Budget: Budget{CostPerDay: math.NaN()}}), problem.BadLimit},
		// Rounded it would be 0, which is none.
		{"tiny cost", put(Settings{Budget: Budget{CostPerDay: 1e-9}}), problem.BadLimit},
		{"hold", put(Settings{Hold: "6m"}), problem.BadLimit},
		{"negative hold", put(Settings{Hold: "-1s"}), problem.BadLimit},
		{"hold text", put(Settings{Hold: "soon"}), problem.BadLimit},
		{"tool", tool(Tool{URL: "https://*.example.com/x/**", Methods: []string{"GET"}}), ""},
		{"tool without methods", tool(Tool{URL: "https://a.example"}), problem.BadRequest},
		{"tool without scheme", tool(Tool{URL: "a.example", Methods: []string{"GET"}}), problem.BadURL},
		{"tool anywhere", tool(Tool{URL: "https://*/x", Methods: []string{"GET"}}), problem.BadURL},
		{"tool with expression", tool(Tool{URL: "https://a.example/(a|b)", Methods: []string{"GET"}}), problem.BadURL},
		{"tool of a service", tool(Tool{URL: "https://a.example", Methods: []string{"GET"}, Services: []string{"A B"}}), problem.BadName},
		{"too many tools", put(Settings{Tools: make([]Tool, maxTools+1)}), problem.BadRequest},
	} {
		w.wantCode(tt.name, tt.err, tt.code)
	}
}

func TestEverythingWrongIsReportedAtOnce(t *testing.T) {
	w := newFixture(t)
	_, err := w.PutService(w.ctx, w.admin, Service{Name: "A", Upstream: Upstream{BaseURL: "x"}, Scrub: "x", Env: map[string]string{"a": ""}})
	for _, text := range []string{"name", "base_url", "scrub", "inject.type", "env"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s is not reported: %v", text, err)
		}
	}
	w.wantCode("all of it", err, problem.BadRequest)
	if _, err := Open(w.ctx, Options{Fixed: []Rule{{}}}); err == nil || strings.Count(err.Error(), "\n") < 5 {
		t.Errorf("options: %v", err)
	}
	bad := rule(policy.Allow, "a.example")
	bad.Name, bad.Once = "x", true
	for name, fixed := range map[string][]Rule{"once": {bad}, "no name": {rule(policy.Deny, "a.example")}} {
		o := w.options
		o.Fixed = fixed
		if b, err := Open(w.ctx, o); err == nil {
			b.Close()
			t.Errorf("%s: a bad rule of the configuration is taken", name)
		}
	}
}

func TestThereAreOnlySoManyOfEach(t *testing.T) {
	w := newFixture(t)
	var entries []store.Entry
	w.store.alter = func(real []store.Entry) []store.Entry { return append(real, entries...) }
	now := w.clock.Now()
	add := func(n int, kind string, of func(i int) (store.Entry, error)) {
		for i := range n {
			e, err := of(i)
			w.must(err)
			e.ID, e.Kind, e.Tenant, e.Version, e.CreatedAt = fmt.Sprintf("%s_%d", kind, i), kind, "acme", 1, now
			entries = append(entries, e)
		}
	}
	full := rule(policy.Allow, "a.example")
	full.Priority = 1
	add(maxRules, kindRule, func(int) (store.Entry, error) { return full.entry() })
	s := service("x")
	s.Scrub, s.Compressed = ScrubRedact, CompressedDecode
	add(maxServices, kindService, func(i int) (store.Entry, error) { s.Name = fmt.Sprintf("x%d", i); return s.entry() })
	p := provider("x", WireOpenAI, "*")
	add(maxProviders, kindProvider, func(i int) (store.Entry, error) { p.Name = fmt.Sprintf("x%d", i); return p.entry() })
	w.must(w.db.CreateEntry(w.ctx, store.Entry{ID: "x", Kind: "access", Body: []byte("{}"), CreatedAt: now})) // another revision
	w.must(w.load(w.ctx))
	own := service("one-more")
	own.Tenant = "acme"
	one := provider("one-more", WireOpenAI, "*")
	one.Tenant = "acme"
	w.wantCode("rule", second2(w.AddRule(w.ctx, w.operator, rule(policy.Allow, "b.example").of("acme", ""))), problem.BadLimit)
	w.wantCode("service", second2(w.PutService(w.ctx, w.operator, own)), problem.BadLimit)
	w.wantCode("provider", second2(w.PutProvider(w.ctx, w.operator, one)), problem.BadLimit)
	own.Env, own.Allow = map[string]string{}, nil
	for i := range maxEnv {
		own.Env[fmt.Sprintf("A%d", i)] = strings.Repeat("x", maxText)
	}
	for range maxAllow {
		own.Allow = append(own.Allow, Allowance{Path: "/" + strings.Repeat("y", 500)})
	}
	w.wantCode("bytes", second2(w.PutService(w.ctx, w.admin, own)), problem.BadLimit)
	w.must(second2(w.AddRule(w.ctx, w.admin, rule(policy.Allow, "b.example").of("beta", ""))))
}

// A kept entry is read back as it was, and nothing else is in it.
func TestEntriesAreReadBack(t *testing.T) {
	w := newFixture(t)
	r := rule(policy.Allow, "*.a.example").of("acme", w.bot.ID)
	r.Methods, r.Path, r.Note, r.ExpiresAt = []string{"GET"}, policy.MustParsePath("/a/**"), "why", w.clock.Now().Add(time.Hour)
	made := w.add(r)
	s := service("a")
	s.Env, s.Git, s.Inject = map[string]string{"A": "{url}"}, "https://github.com/", Injection{Type: InjectBasic, User: "x"}
	service, err := w.PutService(w.ctx, w.admin, s)
	w.must(err)
	p := provider("a", WireOpenAI, "gpt-*")
	p.Prices = []Price{{Model: "gpt-*", Input: 1.25, Output: 10}}
	provider, err := w.PutProvider(w.ctx, w.admin, p)
	w.must(err)
	set, err := w.PutSettings(w.ctx, w.admin, Settings{Tools: []Tool{}, Hold: "3s"})
	w.must(err)
	asked := w.ask(w.bot, AccessHost, "a.example")
	b := w.another()
	items := b.state.Load().items
	for name, pair := range map[string][2]any{
		"rule": {made, *items[made.ID].rule}, "service": {service, *items[service.ID].service}, "provider": {provider, *items[provider.ID].provider},
		"settings": {set, *items[set.ID].settings}, "access": {asked, *items[asked.ID].access},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s: made %+v\nread %+v", name, pair[0], pair[1])
		}
	}
}

func TestModelsMatchPatterns(t *testing.T) {
	for _, tt := range []struct {
		pattern, model string
		want           bool
	}{
		{"gpt-4", "gpt-4", true}, {"gpt-4", "gpt-4o", false}, {"gpt-*", "gpt-4o", true}, {"gpt-*", "gpt-", true}, {"*", "", true}, {"*", "x", true},
		{"*-mini", "gpt-mini", true}, {"*-mini", "gpt-mini-2", false}, {"a*b*c", "abc", true}, {"a*b*c", "acb", false}, {"a*a", "a", false}, {"a*bc*c", "abc", false},
		{"gpt-4.", "gpt-4x", false}, {"[a-z]", "a", false}, {"a**b", "ab", true}, {"a*b", "aXbYb", true},
	} {
		if got := matchModel(tt.pattern, tt.model); got != tt.want {
			t.Errorf("%q has %q: %t", tt.pattern, tt.model, got)
		}
	}
}

// Whatever is in the database, reading it neither fails nor allows more than was written.
func FuzzReadEntry(f *testing.F) {
	for _, kind := range []string{kindRule, kindService, kindProvider, kindSettings, kindAccess} {
		f.Add(kind, `{"action":"deny","host":"a.example","ports":["443"],"priority":1}`)
		f.Add(kind, `{"name":"a","base_url":"https://a.example","allow":[{"path":"/**"}],"inject":{"type":"none"},"scrub":"off","compressed":"decode"}`)
		f.Add(kind, `{"name":"a","base_url":"https://a.example","wire":"openai","models":["*"],"priority":1}`)
		f.Add(kind, `{"tools":[{"url":"https://a.example/**","methods":["GET"]}],"mode":"report"}`)
		f.Add(kind, `{"kind":"host","target":"a.example","reason":"x","state":"pending"}`)
		f.Add(kind, `[`)
	}
	seed := maphash.MakeSeed()
	f.Fuzz(func(t *testing.T, kind, body string) {
		e := store.Entry{ID: "e_1", Kind: kind, Tenant: "acme", Agent: "ag_1", Name: "a", Body: []byte(body), Version: 1, CreatedAt: time.Unix(1, 0)}
		i := read(e, seed)
		if i.damaged != nil {
			if i.service != nil || i.provider != nil || i.settings != nil || i.access != nil || i.rule != nil && i.rule.Action != policy.Deny {
				t.Fatalf("a damaged entry says something: %+v", i)
			}
			var said struct{ Action string }
			if (kind == kindRule && json.Unmarshal([]byte(body), &said) != nil || kind == kindSettings) && i.rule == nil {
				t.Fatal("nothing stands for what cannot be read")
			}
			return
		}
		r := reader{seed: seed, log: closedView("x").log}
		s := r.next(nil, 1, []store.Entry{e})
		v := s.make(viewKey{}, Who{Tenant: "acme", Agent: "ag_1", Base: policy.Only()}, time.Unix(2, 0), r.log)
		if v.Proxy() == nil || v.Tool("a") == nil {
			t.Fatal("what is valid does not compile")
		}
		if s, permit, found := v.Service("a"); found && permit == nil {
			t.Fatalf("what is valid does not compile: %+v", s)
		}
		for _, p := range v.providers {
			if p.permit() == nil {
				t.Fatalf("what is valid does not compile: %+v", p.Provider)
			}
		}
	})
}

// The one form of a target is its own one form, and a rule that allows nothing but one host.
func FuzzReadTarget(f *testing.F) {
	for _, target := range []string{"a.example", "a.example:8443", "https://A.example./x", "[2001:db8::1]:443", "GET https://a.example/x/**", "Example.com cdp", "get http://a.example:8080", "github",
		"GET https://a.example/" + strings.Repeat("é", 200)} {
		for _, kind := range []AccessKind{AccessHost, AccessTool, AccessService, AccessAccount} {
			f.Add(string(kind), target)
		}
	}
	f.Fuzz(func(t *testing.T, kind, target string) {
		once, err := readTarget(AccessKind(kind), target)
		if err != nil {
			return
		}
		if twice, err := readTarget(AccessKind(kind), once); err != nil || twice != once {
			t.Fatalf("%q becomes %q, and that %q: %v", target, once, twice, err)
		}
		if AccessKind(kind) == AccessHost {
			r, err := hostRule(once)
			if err != nil || strings.Contains(r.Host.String(), "*") || len(r.Ports) > 2 || policy.Only(policy.Rule{Name: "x", Action: r.Action, Host: r.Host, Ports: r.Ports}).Validate() != nil {
				t.Fatalf("%q becomes the rule %+v: %v", once, r, err)
			}
		}
	})
}

func FuzzParseBase(f *testing.F) {
	for _, text := range []string{"https://a.example", "http://a.example:8080/v1/", "https://A.example./%61", "https://[2001:db8::1]/x", "https://a.example/" + strings.Repeat("é", 500)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		base, err := parseBase(text)
		if err != nil {
			return
		}
		again, err := parseBase(base.String())
		if err != nil || again != base {
			t.Fatalf("%q becomes %q: %+v, %v", text, base, again, err)
		}
		if _, err := base.below("", false); err != nil && len(text) < 1000 && strings.Count(text, "/") < 60 {
			t.Fatalf("%q has nothing below: %v", text, err)
		}
	})
}
