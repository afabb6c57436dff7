package egress

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of how many there may be.
const (
	maxRules     = 10_000 // of a tenant, and of all tenants together
	maxServices  = 200
	maxProviders = 50
	maxTools     = 200
	maxBody      = 64 << 10 // bytes of an entry

	maxText    = 1000 // bytes of what is for people
	maxURL     = 2048
	maxList    = 64 // ports, methods, services of one thing
	maxAllow   = 200
	maxModels  = 200
	maxEnv     = 32
	maxPattern = 256

	maxRate    = 1_000_000
	maxTunnels = 10_000
	maxTokens  = int64(1e12)
	maxMoney   = 1e9 // of a price or a budget
	maxHold    = 5 * time.Minute

	defaultPriority = 100
)

// flaws collects what is wrong, so that it is reported at once.
type flaws struct {
	code  string // of the whole; empty: that of the flaws, or bad_request when they differ
	many  *problem.ValidationError
	codes *[]string
	where string
}

func newFlaws() *flaws { return &flaws{} }

func (f *flaws) begin() {
	if f.many == nil {
		f.many, f.codes = &problem.ValidationError{}, &[]string{}
	}
}

// at collects into the same list, below a field.
func (f *flaws) at(field string) *flaws {
	f.begin()
	return &flaws{many: f.many, codes: f.codes, where: f.field(field)}
}

func (f *flaws) field(name string) string {
	if f.where == "" || name == "" {
		return f.where + name
	}
	return f.where + "." + name
}

func (f *flaws) add(code, field, hint, format string, args ...any) {
	f.begin()
	*f.codes = append(*f.codes, code)
	f.many.AddFlaw(problem.Flaw{Field: f.field(field), Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (f *flaws) check(good bool, field, format string, args ...any) {
	if !good {
		f.add(problem.BadRequest, field, "", format, args...)
	}
}

func (f *flaws) err() error {
	if f.many == nil {
		return nil
	}
	f.many.Code = f.code
	if f.many.Code == "" && len(*f.codes) > 0 {
		f.many.Code = (*f.codes)[0]
		if slices.ContainsFunc(*f.codes, func(c string) bool { return c != f.many.Code }) {
			f.many.Code = problem.BadRequest
		}
	}
	return f.many.Err()
}

// clean says whether a text can be shown to people and kept: UTF-8 without control characters.
func clean(text string, limit int) bool {
	return len(text) <= limit && utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
	})
}

// made says whether a text has 1 to limit bytes, all of them among these.
func made(text string, limit int, of string) bool {
	return text != "" && len(text) <= limit && strings.Trim(text, of) == ""
}

const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits = "0123456789"
)

// validName says whether a text is the name of a service, a provider or a secret. It stands in a path.
func validName(name string) bool {
	return made(name, 64, lower+digits+"._-") && !strings.ContainsAny(name[:1], "._-")
}

func (f *flaws) name(field, name string) {
	if !validName(name) {
		f.add(problem.BadName, field, "1 to 64 of a-z, 0-9, dot, _ and -, a letter or a digit first", "%q is not a name", clip(name))
	}
}

// validMeta is about what every entry has.
func validMeta(f *flaws, m Meta) {
	f.check(m.Tenant == "" || made(m.Tenant, 40, lower+digits+"-"), "tenant", "%q is not the name of a tenant", clip(m.Tenant))
	f.check(m.Agent == "" || m.Tenant != "", "agent", "an agent is one of a tenant; name the tenant")
	f.check(clean(m.Agent, 128), "agent", "is not the id of an agent")
	f.check(clean(m.ID, 128) && clean(m.CreatedBy, 200), "id", "has more than 128 bytes or control characters")
	f.check(clean(m.Note, maxText), "note", "has more than %d bytes or control characters", maxText)
}

// validExpiry is about what is decided now; what was decided before may have expired.
func validExpiry(f *flaws, at, now time.Time) {
	if !at.IsZero() && (!at.After(now) || at.After(now.AddDate(10, 0, 0))) {
		f.add(problem.BadLimit, "expires_at", "leave it out for good", "is not within the next ten years")
	}
}

// Names that rules have in policies when operators did not name them; see [Rule.policyName].
const (
	prefixRule    = "rule_" // of ids, which are the names of rules without one
	prefixOnce    = "once-"
	prefixDamaged = "damaged-"
)

func reserved(name string) bool {
	return name == policy.RuleUnknown || strings.HasPrefix(name, prefixRule) || strings.HasPrefix(name, prefixOnce) || strings.HasPrefix(name, prefixDamaged)
}

func validRule(f *flaws, r Rule) {
	validMeta(f, r.Meta)
	if r.Name != "" && (!made(r.Name, 64, lower+upper+digits+"._-") || reserved(r.Name)) {
		f.add(problem.BadName, "name", "1 to 64 letters, digits, dot, _ and -; rule_, once- and damaged- at the beginning are taken",
			"%q is not a name for a rule", clip(r.Name))
	}
	f.check(r.Session == "" || r.Tenant != "", "session", "a session is one of a tenant; name the tenant")
	f.check(r.Session == "" || r.Agent == "", "session", "a rule is for a session or for an agent")
	f.check(r.Session == "" || made(r.Session, 128, lower+upper+digits+"_-"), "session", "is not the id of a session")
	if r.Priority < 1 || r.Priority > 999 {
		f.add(problem.BadLimit, "priority", "1 to 999; lower comes first", "is %d", r.Priority)
	}
	if r.Action == policy.Allow && r.Scheme == policy.HTTPS && (r.Path != policy.Path{} || len(r.Methods) > 0) {
		f.add(problem.BadRequest, "path", "allow the host as a whole, or make it a tool (clawjail agent tools) or a service (clawjail service add): there the gateway speaks TLS itself",
			"a rule that allows a part of an https server allows nothing: in a tunnel nobody sees methods and paths")
	}
	f.check(!r.Once || r.Action == policy.Allow, "once", "only a rule that allows can be for one use")
	f.check(len(r.Ports) <= maxList && len(r.Methods) <= maxList, "ports", "a rule has at most %d ports and methods", maxList)
	plain := r.Rule
	if plain.Name == "" {
		plain.Name = "it"
	}
	if err := policy.Only(plain).Validate(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if _, rest, found := strings.Cut(line, "): "); found {
				line = rest
			}
			f.add(problem.BadRequest, "", "", "%s", line)
		}
	}
	f.address(r.Address)
}

// address is about where a name leads instead of looking it up.
func (f *flaws) address(a netip.Addr) {
	if a == (netip.Addr{}) {
		return
	}
	if err := netguard.CheckPrivate(a); err != nil {
		f.add(problem.BadRequest, "address", "an address of one machine, and of no metadata service", "%s", err)
	}
}

func validMethods(f *flaws, field string, methods []string) {
	f.check(len(methods) <= maxList, field, "are more than %d", maxList)
	for _, m := range methods[:min(len(methods), maxList)] {
		f.check(made(m, 32, upper) && m != policy.Connect, field, "%q is not a method in upper-case letters", clip(m))
	}
}

// endpoint is a base URL that was taken apart.
type endpoint struct {
	scheme policy.Scheme
	to     hostport.Endpoint
	path   string // without a slash at the end
}

func (e endpoint) String() string {
	return string(e.scheme) + "://" + e.to.HostHeader(string(e.scheme)) + strings.ReplaceAll(e.path, EscapedPlaceholder, Placeholder)
}

// parseBase reads a base URL, and refuses what can be read in two ways.
func parseBase(text string) (endpoint, error) {
	if !clean(text, maxURL) || strings.ContainsAny(text, `?#\ *`) {
		return endpoint{}, errors.New("a base URL has no query, fragment, pattern or blank, and at most 2048 bytes")
	}
	u, err := url.Parse(text)
	if err != nil {
		return endpoint{}, errors.New("it is not a URL")
	}
	out := endpoint{scheme: policy.Scheme(u.Scheme)}
	if out.scheme != policy.HTTP && out.scheme != policy.HTTPS {
		return endpoint{}, errors.New("it does not begin with https:// or http://")
	}
	if out.to, err = hostport.FromURL(u); err != nil {
		return endpoint{}, err
	}
	if path := u.EscapedPath(); path != "" && path != "/" {
		read, err := policy.ParsePath(path)
		if err != nil || policy.Ambiguous(path) {
			return endpoint{}, errors.New("its path can be read in two ways")
		}
		out.path = strings.TrimSuffix(read.String(), "/")
	}
	if len(out.String()) > maxURL {
		return endpoint{}, errors.New("a base URL has at most 2048 bytes, also with its escapes")
	}
	return out, nil
}

// below is the pattern of a path below the base URL; "" is all of it.
func (e endpoint) below(path string, slashes bool) (policy.Path, error) {
	if path == "" {
		path = "/**"
	}
	if !strings.HasPrefix(path, "/") {
		return policy.Path{}, errors.New("the path does not begin with a slash")
	}
	if slashes {
		return policy.ParsePathWithSlashes(e.path + path)
	}
	return policy.ParsePath(e.path + path)
}

// rule allows what is below the base URL of an upstream.
func (e endpoint) rule(name string, a Allowance, address netip.Addr, slashes bool) (policy.Rule, error) {
	path, err := e.below(a.Path, slashes)
	return policy.Rule{
		Name: name, Action: policy.Allow, Host: policy.ExactHost(e.to.Host()), Ports: policy.Ports(e.to.Port()), Scheme: e.scheme,
		Methods: a.Methods, Path: path, Address: address,
	}, err
}

// withoutSecret refuses an address with a secret in it: everybody who may list addresses reads it there, and so does the log.
// It is asked of what is new alone.
func (f *flaws) withoutSecret(field, address string) {
	text, err := url.PathUnescape(address)
	if err != nil {
		text = address
	}
	if secret.Within(text) {
		f.add(problem.BadSecret, field, "keep it with `clawjail secret set NAME`, and have the gateway put it in: into a header, the query, or the path, "+
			"where {secret} stands in the URL of a service (secret, inject)", "has what looks like a secret in it, and addresses are listed and logged")
	}
}

func validUpstream(f *flaws, u Upstream) {
	base, err := parseBase(u.BaseURL)
	if err != nil {
		f.add(problem.BadURL, "base_url", "such as https://api.example.com/v1", "%s", err)
	} else if to := base.to.Host(); to.IsAddr() && !u.Address.IsValid() {
		if err := netguard.Check(to.Addr()); err != nil {
			f.add(problem.BadURL, "base_url", "an admin of the installation may lead a name there, with address", "%s", err)
		}
	}
	f.address(u.Address)
	if u.Secret != "" {
		f.name("secret", u.Secret)
	}
}

// notInjected are headers that decide about the message itself. A credential in one of them would be lost, or change
// what is sent.
func notInjected(name string) bool {
	switch textproto.CanonicalMIMEHeaderKey(name) {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Trailers",
		"Transfer-Encoding", "Upgrade", "Host", "Content-Length", "Content-Encoding", "Content-Type", "Content-Range", "Expect",
		"Accept-Encoding", "Range", "Http2-Settings":
		return true
	}
	return strings.HasPrefix(http.CanonicalHeaderKey(name), "Clawjail-")
}

func validInjection(f *flaws, i Injection, required bool) {
	switch i.Type {
	case "":
		f.check(!required, "type", "is missing: none, bearer, basic, header, query or path")
		f.check(i.Name == "" && i.User == "", "type", "is missing, and there is a name or a user")
		return
	case InjectNone, InjectBearer, InjectBasic, InjectPath:
		f.check(i.Name == "", "name", "%s has no name to choose", i.Type)
	case InjectHeader:
		f.check(made(i.Name, 64, lower+upper+digits+"-_") && !notInjected(i.Name), "name",
			"%q is not the name of a header that can hold a credential", clip(i.Name))
	case InjectQuery:
		f.check(made(i.Name, 64, lower+upper+digits+"-_."), "name", "%q is not the name of a query parameter", clip(i.Name))
	default:
		f.check(false, "type", "%q is none of none, bearer, basic, header, query and path", clip(string(i.Type)))
	}
	f.check(i.User == "" || i.Type == InjectBasic, "user", "only basic has a user")
	f.check(clean(i.User, 128) && !strings.Contains(i.User, ":"), "user", "has a colon, control characters, or more than 128 bytes")
}

func validService(f *flaws, s Service) {
	validMeta(f, s.Meta)
	f.name("name", s.Name)
	validUpstream(f, s.Upstream)
	f.check(len(s.Allow) <= maxAllow, "allow", "has more than %d lines", maxAllow)
	base, err := parseBase(s.BaseURL)
	for i, a := range s.Allow[:min(len(s.Allow), maxAllow)] {
		at := f.at(fmt.Sprintf("allow.%d", i))
		validMethods(at, "methods", a.Methods)
		if err != nil {
			continue // which is reported already
		}
		if _, err := base.below(a.Path, s.EncodedSlash == EncodedSlashAllow); err != nil {
			at.add(problem.BadURL, "path", "such as /repos/**", "%s", err)
		}
	}
	validInjection(f.at("inject"), s.Inject, true)
	if err == nil {
		validPlaceholder(f, base, s.Inject)
	}
	f.check(s.Scrub == ScrubRedact || s.Scrub == ScrubBlock || s.Scrub == ScrubOff, "scrub", "%q is none of redact, block and off", clip(string(s.Scrub)))
	f.check(s.Compressed == CompressedDecode || s.Compressed == CompressedRefuse, "compressed",
		"%q is neither decode nor refuse", clip(string(s.Compressed)))
	f.check(s.EncodedSlash == "" || s.EncodedSlash == EncodedSlashDeny || s.EncodedSlash == EncodedSlashAllow, "encoded_slash",
		"%q is neither deny nor allow", clip(string(s.EncodedSlash)))
	if s.Git != "" {
		if _, err := parseBase(s.Git); err != nil || !strings.HasSuffix(s.Git, "/") {
			f.add(problem.BadURL, "git", "such as https://github.com/", "is not the beginning of a URL, up to a slash")
		}
	}
	f.check(len(s.Env) <= maxEnv, "env", "has more than %d variables", maxEnv)
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		f.check(made(name, 64, upper+digits+"_") && !strings.ContainsAny(name[:1], digits), "env",
			"%q is not the name of a variable: A-Z, 0-9 and _", clip(name))
		f.check(clean(s.Env[name], maxText), "env", "the text of %q has more than %d bytes or control characters", clip(name), maxText)
	}
}

func validModel(f *flaws, field, pattern string) {
	f.check(pattern != "" && clean(pattern, maxPattern) && !strings.ContainsAny(pattern, " \t"), field,
		"%q is not a model, or a pattern in which * stands for any text", clip(pattern))
}

func validProvider(f *flaws, p Provider) {
	validMeta(f, p.Meta)
	f.name("name", p.Name)
	validUpstream(f, p.Upstream)
	f.check(p.Wire == WireOpenAI || p.Wire == WireAnthropic || p.Wire == WireOllama, "wire",
		"%q is none of openai, anthropic and ollama", clip(string(p.Wire)))
	f.check(len(p.Models) > 0 && len(p.Models) <= maxModels, "models", "are none, or more than %d", maxModels)
	for _, m := range p.Models[:min(len(p.Models), maxModels)] {
		validModel(f, "models", m)
	}
	if p.Priority < 1 || p.Priority > 999 {
		f.add(problem.BadLimit, "priority", "1 to 999; lower comes first", "is %d", p.Priority)
	}
	validInjection(f.at("inject"), p.Inject, false)
	f.check(p.Inject.Type != InjectPath, "inject.type", "path is for services")
	validHosted(f, p.Hosted)
	f.check(len(p.Prices) <= maxModels, "prices", "are more than %d", maxModels)
	for _, price := range p.Prices[:min(len(p.Prices), maxModels)] {
		validModel(f, "prices", price.Model)
		ok := money(price.Input) && money(price.Output)
		for _, a := range price.amounts() {
			ok = ok && (*a.amount == nil || money(**a.amount))
		}
		if !ok {
			f.add(problem.BadLimit, "prices", "0 to 1000000000", "a price of %q is not an amount", clip(price.Model))
		}
	}
}

func validHosted(f *flaws, names []string) {
	f.check(len(names) <= maxModels, "hosted", "are more than %d", maxModels)
	for _, name := range names[:min(len(names), maxModels)] {
		f.check(name != "" && len(name) <= 64 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == "", "hosted",
			"%q is not the name of what a provider does, such as web_search", clip(name))
	}
}

// money says whether a number is an amount. It is false for what is no number.
func money(x float64) bool { return x >= 0 && x <= maxMoney && !math.IsInf(x, 0) }

func validTool(f *flaws, t Tool) {
	_, err := t.rule("it")
	if err != nil {
		f.add(problem.BadURL, "url", "such as https://api.example.com/v1/**", "%s", err)
	}
	f.check(len(t.Methods) > 0, "methods", "are missing; name those that the tool needs")
	validMethods(f, "methods", t.Methods)
	f.check(len(t.Services) <= maxList, "services", "are more than %d", maxList)
	for _, name := range t.Services[:min(len(t.Services), maxList)] {
		f.name("services", name)
	}
	f.check(t.ID == "" || made(t.ID, 64, lower+digits+"_"), "id", "is not an id")
	f.check(!t.Once || t.ID != "", "once", "only a tool that was approved is for one use")
}

// rule is the tool as a rule that allows it.
func (t Tool) rule(name string) (policy.Rule, error) {
	if !strings.Contains(t.URL, "://") {
		return policy.Rule{}, errors.New("it is not an absolute URL")
	}
	r, err := policy.ParseURL(t.URL)
	if err != nil {
		return policy.Rule{}, err
	}
	if r.Host == policy.AnyHost() {
		return policy.Rule{}, errors.New("the host is any host; a credential would go wherever the agent says")
	}
	r.Name, r.Action, r.Methods = name, policy.Allow, t.Methods
	return r, nil
}

func validSettings(f *flaws, s Settings) {
	validMeta(f, s.Meta)
	f.check(s.Mode == "" || s.Mode == policy.Enforce || s.Mode == policy.Report, "mode", "%q is neither enforce nor report", clip(string(s.Mode)))
	f.check(len(s.Tools) <= maxTools, "tools", "are more than %d", maxTools)
	f.check(len(s.Services) <= maxServices, "services", "are more than %d", maxServices)
	for _, name := range s.Services[:min(len(s.Services), maxServices)] {
		f.name("services", name)
	}
	f.check(len(s.MCP) <= maxList, "mcp", "are more than %d", maxList)
	for _, name := range s.MCP[:min(len(s.MCP), maxList)] {
		f.name("mcp", name)
	}
	ids := map[string]bool{}
	for i, t := range s.Tools[:min(len(s.Tools), maxTools)] {
		validTool(f.at(fmt.Sprintf("tools.%d", i)), t)
		f.check(t.ID == "" || !ids[t.ID], "tools", "two have the id %q", clip(t.ID))
		ids[t.ID] = true
	}
	for _, rate := range []struct {
		name      string
		is, limit int
	}{
		{"proxy", s.Rates.Proxy, maxRate}, {"execute", s.Rates.Execute, maxRate}, {"service", s.Rates.Service, maxRate},
		{"llm", s.Rates.LLM, maxRate}, {"tunnels", s.Rates.Tunnels, maxTunnels},
	} {
		if rate.is < 0 || rate.is > rate.limit {
			f.add(problem.BadLimit, "rates."+rate.name, fmt.Sprintf("1 to %d, or 0 for the wider setting", rate.limit), "is %d", rate.is)
		}
	}
	if s.Budget.TokensPerDay < 0 || s.Budget.TokensPerDay > maxTokens {
		f.add(problem.BadLimit, "budget.tokens_per_day", "1 to 1000000000000, or 0 for the wider setting", "is %d", s.Budget.TokensPerDay)
	}
	if !money(s.Budget.CostPerDay) || s.Budget.CostPerDay > 0 && microCost(s.Budget.CostPerDay) == 0 {
		f.add(problem.BadLimit, "budget.cost_per_day", "0.000001 to 1000000000, or 0 for the wider setting", "is not an amount")
	}
	switch s.Browser {
	case "", BrowserRules, BrowserOpen:
	default:
		f.add(problem.BadRequest, "browser", "rules or open", "%q is not what a browser may reach", clip(string(s.Browser)))
	}
	if _, ok := holdTime(s.Hold); !ok {
		f.add(problem.BadLimit, "hold", "such as 30s; at most 5m", "%q is not a time to wait", clip(s.Hold))
	}
}

// holdTime reads a time to wait.
func holdTime(text string) (time.Duration, bool) {
	if text == "" {
		return 0, true
	}
	d, err := texts.Duration(text)
	return d, err == nil && len(text) <= 32 && d >= 0 && d <= maxHold
}

// clip shortens what somebody has written, for a message.
func clip(text string) string { return texts.Clip(text, 80) }
