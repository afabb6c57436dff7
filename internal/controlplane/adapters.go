package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/hostport"
	"github.com/clawjail/clawjail/internal/gateway/netguard"
	"github.com/clawjail/clawjail/internal/gateway/policy"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcp"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// way is the gateway as sessions see it.
type way struct{ *gateway.Gateway }

// Admit implements session.Gateway.
func (w way) Admit(addr netip.Addr, who session.Caller) error {
	return w.Gateway.Admit(addr, gateway.Caller{Jail: string(who.Jail), Session: who.Session, Tenant: who.Tenant, Opener: who.Opener,
		Actor: who.Actor, Policy: who.Policy, Confined: who.Confined, Vet: who.Vet})
}

// LastActivity implements session.Gateway.
func (w way) LastActivity(addr netip.Addr) time.Time {
	// An address that is not admitted did nothing, and its zero Activity says so.
	a, _ := w.Gateway.Activity(addr)
	return a.Last
}

// lateAccounts are accounts that are opened after what asks for them. Nobody is served before.
type lateAccounts struct{ *credential.Service }

// ownBrowsers are the sessions of this control plane as MCP sees browsers. There is no host browser here: that one is
// the desktop user's.
type ownBrowsers struct{ *session.Service }

// List implements mcp.Backend.
func (o ownBrowsers) List(ctx context.Context, by identity.Principal) ([]session.Session, error) {
	return o.Service.List(ctx, by, "", false)
}

// Drive implements mcp.Backend.
func (o ownBrowsers) Drive(ctx context.Context, by identity.Principal, t mcp.Target, op browser.Operation) (any, error) {
	if t.Host {
		return nil, problem.New(problem.Unsupported, "use the target session; `clawjail mcp` on a desktop has the host browser", "there is no host browser here")
	}
	return o.Service.Drive(ctx, by, t.Session, op)
}

// Host implements mcp.Backend.
func (ownBrowsers) Host() bool { return false }

// installed is the host daemon's list of templates as sessions see it.
type installed struct{ host *hostd.Client }

// Template implements session.Templates.
func (i installed) Template(ctx context.Context, name string) (session.Template, error) {
	all, err := i.host.Templates(ctx)
	if err != nil {
		return session.Template{}, err
	}
	for _, t := range all {
		if t.Name != name {
			continue
		}
		out := session.Template{Digest: t.Digest, Programs: make(map[string]string, len(t.Programs))}
		for program, p := range t.Programs {
			out.Programs[program] = p.Path
		}
		return out, nil
	}
	return session.Template{}, problem.New(problem.TemplateMissing, "build it: sudo clawjail template build "+name, "there is no template %s", name)
}

// reach is what the jails of clean sessions may reach: the policy that decides by name, and the guard that decides by
// address.
type reach struct {
	policy policy.Policy
	guard  netguard.Guard
}

// reachOf makes it of the configuration. A private destination is a rule that lets its name and ports pass, and says
// where they lead.
func reachOf(c config.Config) (reach, error) {
	var out reach
	var rules []policy.Rule
	var errs []error
	seen := make(map[hostport.Endpoint]bool)
	for n, d := range c.Gateway.PrivateDestinations {
		host, err := destinationHost(d.Host)
		if err != nil {
			errs = append(errs, fmt.Errorf("gateway.private_destinations[%d]: %w", n, err))
			continue
		}
		rules = append(rules, policy.Rule{Name: fmt.Sprintf("private-destination-%d", n+1), Action: policy.Allow,
			Host: policy.ExactHost(host), Ports: policy.Ports(d.Ports...), Address: d.Address})
		fail := func(err error) { errs = append(errs, fmt.Errorf("gateway.private_destinations[%d]: %w", n, err)) }
		if err := netguard.CheckPrivate(d.Address); err != nil {
			fail(err)
		} else if host.IsAddr() && host.Addr() != d.Address.Unmap() {
			fail(fmt.Errorf("the host is one address and the destination %s another", d.Address))
		}
		for _, port := range d.Ports {
			e, err := hostport.NewEndpoint(host, port)
			if err != nil {
				fail(fmt.Errorf("port %d: %w", port, err))
			} else if seen[e] {
				fail(fmt.Errorf("port %d is listed twice for this host", port))
			}
			seen[e] = true
		}
	}
	out.policy = policy.PublicWeb(rules...)
	errs = append(errs, out.policy.Validate(), out.guard.Validate())
	if err := errors.Join(errs...); err != nil {
		return reach{}, problem.Wrap(err, problem.BadConfig, "correct gateway.private_destinations", "the private destinations are not valid")
	}
	return out, nil
}

func destinationHost(text string) (hostport.Host, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return hostport.FromAddr(addr)
	}
	return hostport.ParseHost(text)
}
