// Package policy decides which hosts and ports a jail may talk to.
//
// A [Policy] is data: a list of rules, read from the top, and a default. The
// first rule that matches decides; when none does, the default decides, and the
// default that is not set denies. There are no regular expressions and no
// inheritance, so a person can follow a decision with a finger, and every
// [Decision] names the rule that made it.
//
// Deciding does no I/O and knows no addresses: whether a name leads to a public
// address is the business of the gateway's address guard, after this package
// has said yes. An IP address written by the client is only ever allowed by a
// rule that names that very address.
package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/policy/hostport"
)

// Action is what a rule, or the default, does.
type Action string

// The actions. The zero Action is not valid in a rule, and denies as a default.
const (
	Allow Action = "allow"
	Deny  Action = "deny"
)

// Scheme is what travels to the host, as far as the gateway can see it.
type Scheme string

// The schemes. WebSockets inside TLS cannot be told from other HTTPS and count
// as HTTPS; WS is the unencrypted kind.
const (
	HTTP  Scheme = "http"
	HTTPS Scheme = "https"
	WS    Scheme = "ws"
)

// RuleUnknown is the name of the rule by which everything is denied while the rules are not known, because the database does
// not answer. Nothing new begins then; what is open is not ended by it.
const RuleUnknown = "database-unavailable"

// Connect is the method of a request that opens a tunnel.
const Connect = "CONNECT"

// Rule is one line of a policy. It matches a request when all its conditions do.
//
// A property of a request that is not known, because it is not visible or because it can be read in two ways, does not meet a
// condition of a rule that allows, and meets one of a rule that denies.
//
// In JSON the fields that are not set are left out, and ports are texts: see [PortRange].
type Rule struct {
	// Name is unique in its policy; logs and refusals show it.
	Name   string `json:"name,omitempty"`
	Action Action `json:"action,omitempty"`
	// Host is required. See [Pattern].
	Host Pattern `json:"host,omitzero"`
	// Ports is required: see [Ports] and [AnyPort].
	Ports []PortRange `json:"ports,omitempty"`
	// Scheme is a condition when it is set.
	Scheme Scheme `json:"scheme,omitempty"`
	// Methods, upper-case, is a condition when it is not empty. Requests inside
	// a tunnel cannot be seen: there an allow rule with methods does not match,
	// and a deny rule with methods does, because neither can be proven.
	Methods []string `json:"methods,omitempty"`
	// Path is a condition when it is set. See [Path]. In a tunnel, and where the path of a request can be read in two
	// ways, an allow rule with a path does not match, and a deny rule with one does.
	Path Path `json:"path,omitzero"`
	// Address makes the host of an allow rule a private destination: requests for it go to that address, without DNS.
	// The host must be exact. See netguard.CheckPrivate for what an address may be.
	Address netip.Addr `json:"address,omitzero"`
	// Opaque lets a tunnel that this rule allows carry something that is neither
	// TLS nor HTTP. Such a tunnel is not inspected, so nothing then ties what
	// travels in it to the host's name; only its address is certain.
	Opaque bool `json:"opaque,omitempty"`
}

// Mode says what becomes of refusals.
type Mode string

// The modes. The zero Mode enforces. In report mode a request that would be refused is allowed, and its Decision says
// what would have happened; addresses are checked all the same.
const (
	Enforce Mode = "enforce"
	Report  Mode = "report"
)

// Policy is an ordered list of rules; the first that matches decides.
type Policy struct {
	Rules []Rule
	Mode  Mode
	// Default applies when no rule matches. Even Allow does not cover requests
	// to IP addresses.
	Default Action
	// Advice is how an operator would allow one more host, as the end of a hint; may be empty.
	Advice string
}

// Request is what is asked for.
type Request struct {
	Scheme Scheme
	Host   hostport.Host
	Port   uint16
	// Method is upper-case; [Connect] for a tunnel.
	Method string
	// Path is the path as it was sent, with its escapes; empty in a tunnel, where it is not visible. It is "/" for an absolute
	// URL without a path.
	Path string
	// EncodedSlash says that the server takes an encoded slash (%2F) for a part of a segment, as [Canonical] has it.
	EncodedSlash bool
}

// Code says in one stable word why a request was refused.
type Code string

// The codes of refusals. An allowed Decision has none.
const (
	HostDenied   Code = "host_denied"
	PortDenied   Code = "port_denied"
	SchemeDenied Code = "scheme_denied"
	MethodDenied Code = "method_denied"
	PathDenied   Code = "path_denied"
)

// Decision is the answer to one Request.
type Decision struct {
	Allowed bool
	// Rule is the name of the rule that decided; "" when the default did.
	Rule string
	// Opaque is copied from the rule that allowed the request.
	Opaque bool
	// Address is that of the private destination that the rule allowed; not valid for all others.
	Address netip.Addr
	// Reported is true when a request is allowed only because the policy is in report mode; Code, Reason and Hint are
	// those of the refusal.
	Reported bool
	// Code is empty when the request is allowed.
	Code Code
	// Reason is one sentence that names the host and the rule.
	Reason string
	// Hint says what would allow the request; empty when it is allowed.
	Hint string
}

// PublicWeb is the policy of a browser that may see the public web: any host
// name on ports 80 and 443. The extra rules come before, in their order.
func PublicWeb(extra ...Rule) Policy {
	web := Rule{Name: "public-web", Action: Allow, Host: AnyHost(), Ports: Ports(80, 443)}
	return Policy{Rules: append(slices.Clone(extra), web), Default: Deny}
}

// Only is the policy that allows what these rules allow and nothing else.
func Only(rules ...Rule) Policy {
	return Policy{Rules: slices.Clone(rules), Default: Deny}
}

// Clone returns a copy that shares nothing with p.
func (p Policy) Clone() Policy {
	p.Rules = slices.Clone(p.Rules)
	for i := range p.Rules {
		p.Rules[i].Ports = slices.Clone(p.Rules[i].Ports)
		p.Rules[i].Methods = slices.Clone(p.Rules[i].Methods)
	}
	return p
}

// Validate reports everything that is wrong with the policy at once.
func (p Policy) Validate() error {
	var errs []error
	if p.Default != Allow && p.Default != Deny {
		errs = append(errs, fmt.Errorf("default action %q: want %q or %q", clip(string(p.Default)), Allow, Deny))
	}
	if p.Mode != "" && p.Mode != Enforce && p.Mode != Report {
		errs = append(errs, fmt.Errorf("mode %q: want %q or %q", clip(string(p.Mode)), Enforce, Report))
	}
	if len(p.Rules) > maxRules {
		return errors.Join(append(errs, fmt.Errorf("%d rules: at most %d", len(p.Rules), maxRules))...)
	}
	seen := make(map[string]bool, len(p.Rules))
	for i, r := range p.Rules {
		for _, err := range r.problems() {
			errs = append(errs, fmt.Errorf("rule %d (%q): %w", i+1, clip(r.Name), err))
		}
		if r.Name != "" && seen[r.Name] {
			errs = append(errs, fmt.Errorf("rule %d (%q): name is used twice", i+1, clip(r.Name)))
		}
		seen[r.Name] = true
	}
	return errors.Join(errs...)
}

// Limits of a policy and of one rule.
const (
	maxRules   = 100_000
	maxName    = 200 // bytes
	maxRanges  = 64
	maxMethods = 32
	maxMethod  = 32 // bytes
)

func (r *Rule) problems() []error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case strings.TrimSpace(r.Name) == "":
		fail("name is missing")
	case len(r.Name) > maxName:
		fail("name is longer than %d bytes", maxName)
	case strings.ContainsFunc(r.Name, unicode.IsControl) || !utf8.ValidString(r.Name):
		fail("name has a control character, or is not UTF-8")
	}
	if r.Action != Allow && r.Action != Deny {
		fail("action %q: want %q or %q", clip(string(r.Action)), Allow, Deny)
	}
	if r.Host == (Pattern{}) {
		fail("host is missing")
	}
	switch {
	case len(r.Ports) == 0:
		fail("ports are missing")
	case len(r.Ports) > maxRanges:
		fail("%d ranges of ports: at most %d", len(r.Ports), maxRanges)
	default:
		for _, pr := range r.Ports {
			if !pr.valid() {
				fail("ports %d-%d: not a range from 1 to 65535", pr.First, pr.Last)
			}
		}
	}
	switch r.Scheme {
	case "", HTTP, HTTPS, WS:
	default:
		fail("scheme %q: want http, https or ws", clip(string(r.Scheme)))
	}
	if len(r.Methods) > maxMethods {
		fail("%d methods: at most %d", len(r.Methods), maxMethods)
	} else {
		for _, m := range r.Methods {
			if m == "" || len(m) > maxMethod || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
				fail("method %q: want upper-case letters", clip(m))
			}
		}
	}
	if r.Opaque && r.Action == Deny {
		fail("opaque has no meaning in a deny rule")
	}
	return append(errs, r.addressProblems()...)
}

// addressProblems is about the form only; whether an address may be a destination is for netguard.CheckPrivate.
func (r *Rule) addressProblems() []error {
	if r.Address == (netip.Addr{}) {
		return nil
	}
	var errs []error
	if r.Action != Allow {
		errs = append(errs, errors.New("address has a meaning only in an allow rule"))
	}
	if r.Address.Zone() != "" {
		errs = append(errs, fmt.Errorf("address %s: zones are not allowed", r.Address))
	}
	switch {
	case r.Host.kind != exact:
		errs = append(errs, errors.New("address needs a host that is named exactly"))
	case r.Host.host.IsAddr() && r.Host.host.Addr() != r.Address.WithZone("").Unmap():
		errs = append(errs, fmt.Errorf("host is one address and the destination %s another", r.Address))
	}
	return errs
}
