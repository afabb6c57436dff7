package grant

import (
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// domain is the canonical form of a host name that has a registrable domain, and that domain; or what is wrong, and
// a hint. Wildcards, suffixes such as "com" or "co.uk", and addresses have none.
func (i *Issuer) domain(text string) (name, registrable, wrong, hint string) {
	if strings.Contains(text, "*") {
		return "", "", "is a wildcard", "name the domain itself; its sub-domains are part of it"
	}
	if strings.HasPrefix(text, ".") {
		return "", "", "begins with a dot", "write " + strings.TrimLeft(text, ".") + "; its sub-domains are part of it"
	}
	host, err := hostport.ParseHost(text)
	switch {
	case err != nil:
		return "", "", "is no domain: " + err.Error(), "write it like example.com, without a scheme, port or path"
	case host.IsAddr():
		return "", "", "is an IP address", "accounts belong to domains, such as example.com"
	}
	registrable, err = i.o.RegistrableDomain(host.Name())
	if err != nil || registrable == "" {
		return "", "", "is not below a public suffix, or is one itself", "name a registrable domain, such as example.com"
	}
	return host.Name(), registrable, "", ""
}

// domains checks the domains of a request: sorted, each once. Those of egress may be hosts below a registrable
// domain, because scripts and pictures come from such hosts, and the rest of that domain need not be open.
func (i *Issuer) domains(m *problem.ValidationError, field string, list []string, limit int, egress bool) []string {
	if len(list) > limit {
		m.Add(field, "are %d, and may be %d", len(list), limit)
		return nil
	}
	out := make([]string, 0, len(list))
	for _, text := range list {
		name, registrable, wrong, hint := i.domain(text)
		if wrong == "" && !egress && name != registrable {
			wrong, hint = "is a host of "+registrable, "write "+registrable+": cookies are kept for whole registrable domains"
		}
		if wrong != "" {
			m.AddFlaw(problem.Flaw{Field: field, Message: texts.Quote(text, 80) + " " + wrong, Hint: hint})
			continue
		}
		out = append(out, name)
	}
	if len(out) == 0 {
		return nil
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Domains are those of a request whose accounts a grant is for: sorted, each once.
func (i *Issuer) Domains(list []string) ([]string, error) {
	flaws := &problem.ValidationError{Code: problem.BadDomain}
	out := i.domains(flaws, "domains", list, i.o.Limits.MaxDomains, false)
	if err := flaws.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

// EgressDomains checks domains that are to be proposed for grants, as those of a grant are: sorted, each once.
func (i *Issuer) EgressDomains(list []string) ([]string, error) {
	flaws := &problem.ValidationError{Code: problem.BadDomain}
	out := i.domains(flaws, "egress_domains", list, i.o.Limits.MaxEgressDomains, true)
	if err := flaws.Err(); err != nil {
		return nil, err
	}
	return out, nil
}
