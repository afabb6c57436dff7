package policy

import (
	"slices"
	"strconv"
	"strings"
)

// Decide answers a request. It depends on nothing but its two inputs.
func (p Policy) Decide(req Request) Decision {
	if req.Host.IsZero() || req.Port == 0 {
		return nowhere()
	}
	a := look(req)
	closest := missHost
	for i := range p.Rules {
		r := &p.Rules[i]
		missed := r.miss(a)
		if missed == met {
			return p.verdict(r, a)
		}
		if r.Action == Allow {
			closest = max(closest, missed)
		}
	}
	return p.unmatched(a, closest)
}

// nowhere refuses what is no request. Report mode does not allow it: there is nothing that could be done.
func nowhere() Decision {
	return Decision{Code: HostDenied, Reason: "the request names no host", Hint: "Name a host and a port."}
}

// asked is a request as rules see it.
type asked struct {
	Request
	path string // canonical; only when why is empty
	// why says why the path is not known; unseen is set when that is because it is not visible.
	why    string
	unseen bool
}

func look(req Request) asked {
	a := asked{Request: req}
	if req.Method == Connect || req.Path == "" {
		a.unseen, a.why = true, "nobody sees it"
		return a
	}
	a.path, a.why = readPath(req.Path, req.EncodedSlash)
	return a
}

func (a asked) unclear() bool { return a.why != "" }

// condition names what kept a rule from matching, in the order of checking.
type condition uint8

const (
	missHost condition = iota
	missPort
	missScheme
	missMethod
	missPath
	met
)

// miss returns the first condition of the rule that the request does not meet, or met when the rule matches.
func (r *Rule) miss(a asked) condition {
	switch {
	case r.Action != Allow && r.Action != Deny:
		return missHost
	case !r.Host.Matches(a.Host):
		return missHost
	case r.Action == Allow && a.Host.IsAddr() && r.Host.kind != exact:
		return missHost
	case !slices.ContainsFunc(r.Ports, func(pr PortRange) bool { return pr.contains(a.Port) }):
		return missPort
	case !meetsScheme(r.Action, r.Scheme, a.Scheme):
		return missScheme
	case !meetsMethod(r.Action, r.Methods, a.Method):
		return missMethod
	case !r.meetsPath(a):
		return missPath
	default:
		return met
	}
}

// The conditions below have one idea: what cannot be told for sure does not meet a rule that allows, and does meet one
// that denies.

func meetsScheme(action Action, want, have Scheme) bool {
	switch {
	case want == "":
		return true
	case have != HTTP && have != HTTPS && have != WS:
		return action == Deny
	default:
		return want == have
	}
}

func meetsMethod(action Action, want []string, have string) bool {
	switch {
	case len(want) == 0:
		return true
	case have == Connect || have == "":
		return action == Deny
	case action == Deny:
		// The letters' case is part of a method, but not every server thinks so.
		return slices.ContainsFunc(want, func(m string) bool { return strings.EqualFold(m, have) })
	default:
		return slices.Contains(want, have)
	}
}

func (r *Rule) meetsPath(a asked) bool {
	switch {
	case r.Path.IsZero():
		return true
	case a.unclear():
		return r.Action == Deny
	case r.Action == Deny:
		return slices.ContainsFunc(readings(a.path), r.Path.inOneCase().matches)
	default:
		return r.Path.matches(a.path)
	}
}

// verdict is the answer of the rule that matched.
func (p Policy) verdict(r *Rule, a asked) Decision {
	name := "rule " + strconv.Quote(r.Name)
	if r.Action == Allow {
		return Decision{
			Allowed: true,
			Rule:    r.Name,
			Opaque:  r.Opaque,
			Address: r.Address,
			Reason:  name + " allows " + a.target(),
		}
	}
	d := Decision{
		Rule:   r.Name,
		Code:   HostDenied,
		Reason: name + " denies " + a.target(),
		Hint:   "Do not retry: " + name + " would have to change. Ask the operator if the task needs " + a.Host.String() + ".",
	}
	if !r.Path.IsZero() {
		d.Code = PathDenied
		switch {
		case a.unseen:
			d.Reason = name + " denies some paths of " + a.target() + ", and in a tunnel nobody sees which one is meant"
		case a.unclear():
			d.Reason = name + " denies some paths of " + a.target() + ", and this path can be read in two ways: " + a.why
			d.Hint = "Write the path in its plain form. " + d.Hint
		default:
			d.Reason = name + " denies this path of " + a.target()
		}
	}
	return p.refuse(d)
}

// unmatched is the answer of the default. A refusal explains itself by the allow rule that came closest: it says which
// part of the request was wrong.
func (p Policy) unmatched(a asked, closest condition) Decision {
	if p.Default == Allow && !a.Host.IsAddr() {
		return Decision{Allowed: true, Reason: "the default action allows " + a.target()}
	}
	d := Decision{Code: HostDenied, Reason: "no rule allows " + a.target()}
	port := strconv.Itoa(int(a.Port))
	switch closest {
	case missPort:
		d.Code, d.Reason = PortDenied, "no rule allows port "+port+" of "+a.Host.String()
	case missScheme:
		d.Code, d.Reason = SchemeDenied, "no rule allows "+word(string(a.Scheme))+" to "+a.target()
	case missMethod:
		d.Code, d.Reason = MethodDenied, "no rule allows "+word(a.Method)+" requests to "+a.target()
	case missPath:
		d.Code = PathDenied
		switch {
		case a.unseen:
			d.Reason = "rules allow only some paths of " + a.target() + ", and in a tunnel nobody sees which one is meant"
		case a.unclear():
			d.Reason = "rules allow only some paths of " + a.target() + ", and this path can be read in two ways: " + a.why
		default:
			d.Reason = "no rule allows this path of " + a.target()
		}
	}
	d.Hint = p.hint(a, closest, port)
	return p.refuse(d)
}

func (p Policy) hint(a asked, closest condition, port string) string {
	what := a.Host.String() + ", port " + port
	switch {
	case a.Host.IsAddr() && closest == missHost:
		return "Do not retry: IP addresses are only allowed by a rule that names them. Use the host's name, or ask the operator to " +
			"allow " + what + "."
	case closest == missPath && !a.unseen && a.unclear():
		return "Write the path in its plain form, without dot segments, doubled slashes and needless escapes."
	}
	hint := "Do not retry: this is policy, not an outage. If the task needs it, ask the operator to allow host " + what
	switch {
	case closest == missPath && a.unseen:
		hint += ", with all its paths"
	case closest == missPath:
		hint += ", with this path"
	}
	if p.Advice != "" {
		hint += ": " + p.Advice
	}
	return hint + "."
}

// refuse makes of a refusal what the mode wants.
func (p Policy) refuse(d Decision) Decision {
	if p.Mode == Report {
		d.Allowed, d.Reported = true, true
	}
	return d
}

func (r Request) target() string { return r.Host.String() + " port " + strconv.Itoa(int(r.Port)) }

// word shows a word that came with a request, whatever somebody wrote there.
func word(s string) string {
	if s != "" && len(s) <= maxMethod && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" {
		return s
	}
	return strconv.Quote(clip(s))
}
