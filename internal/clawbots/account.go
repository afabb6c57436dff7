package clawbots

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxAccounts is how many one agent may have.
const maxAccounts = 64

// Account is one that the agent may use in its sessions, without a grant each time.
type Account struct {
	Domain string       `json:"domain"`
	Access grant.Access `json:"access,omitempty" enum:"tools,cdp"`       // tools when nothing is said
	Ask    grant.Ask    `json:"ask,omitempty" enum:"never,first,always"` // never when nothing is said
	Hours  grant.Hours  `json:"hours,omitempty" is:"hours"`
	// EgressDomains are what its sessions may reach besides; nil: those that are kept with the account. In
	// order.
	EgressDomains []string `json:"egress_domains,omitzero" is:"host" most:"50 names"`
}

// accounts reads them: a domain, or a map with more.
func (f *file) accounts(m *yamldoc.Map) []Account {
	const key = "accounts"
	if !f.few(m.Field()+"."+key, "accounts", m.Length(key), maxAccounts) {
		m.Ignore(key)
		return nil
	}
	var out []Account
	add := func(a Account) error {
		err := a.check(out)
		out = append(out, a) // also when it is wrong, so that others have their place in the file
		return err
	}
	m.Mixed(key, func(_ string, v yamldoc.Value) error { return add(Account{Domain: v.Text}) }, func(m *yamldoc.Map) {
		var a Account
		m.Struct(&a, f.value)
		m.Need("add domain: example.com", "an account needs a domain", "domain")
		if err := add(a); m.Has("domain") {
			f.wrong(m.Field(), err)
		}
	})
	return out
}

// check looks at the domain of an account that comes behind others, and writes it as it is registered.
func (a *Account) check(before []Account) error {
	domain, err := cookies.RegistrableDomain(a.Domain)
	switch {
	case err != nil:
		return problem.New(problem.BadDomain, "write the domain of the account, such as example.com", "%.80q is not a registrable domain", a.Domain)
	case !strings.EqualFold(domain, a.Domain):
		return problem.New(problem.BadDomain, "accounts belong to whole domains: write "+domain, "%.80q is a subdomain", a.Domain)
	case slices.ContainsFunc(before, func(o Account) bool { return o.Domain == domain }):
		return problem.New(problem.BadRequest, "say it once", "the account of %s is there twice", domain)
	}
	a.Domain = domain
	return nil
}

// tidy writes the other domains in one form, in order.
func (a *Account) tidy() {
	kept := a.EgressDomains[:0]
	for _, name := range a.EgressDomains {
		if host, err := hostport.ParseHost(name); err == nil { // what is none has a flaw
			kept = append(kept, host.Name())
		}
	}
	slices.Sort(kept)
	a.EgressDomains = slices.Compact(kept)
}

// validHost is about a host below a domain that somebody can register.
func validHost(name string) error {
	if _, err := cookies.RegistrableDomain(name); err != nil {
		return problem.New(problem.BadDomain, "write a domain or a host, such as cdn.example.net", "%.80q is not below a registrable domain", name)
	}
	return nil
}

// String is the account in words.
func (a Account) String() string {
	var more []string
	for _, part := range []string{string(a.Access), string(a.Hours)} {
		if part != "" {
			more = append(more, part)
		}
	}
	if a.Ask != "" {
		more = append(more, "ask "+string(a.Ask))
	}
	if a.EgressDomains != nil {
		more = append(more, "with "+cmp.Or(strings.Join(a.EgressDomains, " "), "no other domain"))
	}
	if len(more) == 0 {
		return a.Domain
	}
	return fmt.Sprintf("%s (%s)", a.Domain, strings.Join(more, ", "))
}
