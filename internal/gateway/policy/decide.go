package policy

import (
	"fmt"
	"slices"
)

// Decide answers a request. It depends on nothing but its two inputs.
func (p Policy) Decide(req Request) Decision {
	if req.Host.IsZero() || req.Port == 0 {
		return Decision{Code: HostDenied, Reason: "the request names no host", Hint: "Name a host and a port."}
	}
	for _, r := range p.Rules {
		if r.miss(req) != "" {
			continue
		}
		if r.Action == Allow {
			return Decision{
				Allowed: true,
				Rule:    r.Name,
				Exact:   r.Host.kind == exact,
				Opaque:  r.Opaque,
				Address: r.Address,
				Reason:  fmt.Sprintf("rule %q allows %s", r.Name, req.target()),
			}
		}
		return Decision{
			Rule:   r.Name,
			Code:   HostDenied,
			Reason: fmt.Sprintf("rule %q denies %s", r.Name, req.target()),
			Hint:   fmt.Sprintf("Do not retry: rule %q would have to change. Ask the operator if the task needs %s.", r.Name, req.Host),
		}
	}
	if p.Default == Allow && !req.Host.IsAddr() {
		return Decision{Allowed: true, Reason: "the default action allows " + req.target()}
	}
	return p.unmatched(req)
}

// condition names what kept a rule from matching, in the order of checking.
type condition string

const (
	missHost   condition = "host"
	missPort   condition = "port"
	missScheme condition = "scheme"
	missMethod condition = "method"
)

// miss returns the first condition of the rule that the request does not meet,
// or "" when the rule matches.
func (r Rule) miss(req Request) condition {
	switch {
	case r.Action != Allow && r.Action != Deny:
		return missHost
	case !r.Host.Matches(req.Host):
		return missHost
	case r.Action == Allow && req.Host.IsAddr() && r.Host.kind != exact:
		return missHost
	case !slices.ContainsFunc(r.Ports, func(pr PortRange) bool { return pr.First <= req.Port && req.Port <= pr.Last }):
		return missPort
	case r.Scheme != "" && r.Scheme != req.Scheme:
		return missScheme
	case !r.meetsMethod(req.Method):
		return missMethod
	default:
		return ""
	}
}

func (r Rule) meetsMethod(method string) bool {
	if len(r.Methods) == 0 {
		return true
	}
	if method == Connect {
		return r.Action == Deny
	}
	return slices.Contains(r.Methods, method)
}

// unmatched explains a refusal by default: the allow rule that came closest says
// which part of the request was wrong.
func (p Policy) unmatched(req Request) Decision {
	far := []condition{missHost, missPort, missScheme, missMethod}
	closest := 0
	for _, r := range p.Rules {
		if r.Action == Allow {
			closest = max(closest, slices.Index(far, r.miss(req)))
		}
	}
	d := Decision{}
	switch far[closest] {
	case missPort:
		d.Code, d.Reason = PortDenied, fmt.Sprintf("no rule allows port %d of %s", req.Port, req.Host)
	case missScheme:
		d.Code, d.Reason = SchemeDenied, fmt.Sprintf("no rule allows %s to %s", req.Scheme, req.target())
	case missMethod:
		d.Code, d.Reason = MethodDenied, fmt.Sprintf("no rule allows %s requests to %s", req.Method, req.target())
	default:
		d.Code, d.Reason = HostDenied, "no rule allows "+req.target()
	}
	d.Hint = fmt.Sprintf("Do not retry: this is policy, not an outage. If the task needs it, ask the operator to allow host %s, port %d", req.Host, req.Port)
	if p.Advice != "" {
		d.Hint += ": " + p.Advice
	}
	d.Hint += "."
	if req.Host.IsAddr() {
		d.Hint = fmt.Sprintf("Do not retry: IP addresses are only allowed by a rule that names them. Use the host's name, or ask the operator to allow %s, port %d.", req.Host, req.Port)
	}
	return d
}

func (r Request) target() string { return fmt.Sprintf("%s port %d", r.Host, r.Port) }
