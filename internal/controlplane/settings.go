package controlplane

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/clawjail/clawjail/internal/base/keypair"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store/open"
)

// readSettings reads what the operator can have got wrong, so that it is told before anything is waited for.
func (p *plane) readSettings(context.Context) (err error) {
	if p.authorities, p.roots, err = readAuthorities(p.Config.ExtraCA); err != nil {
		return err
	}
	if p.gateway.clean, err = cleanPolicy(p.Config); err != nil {
		return err
	}
	if p.certificate, err = p.loadCertificate(); err != nil {
		return err
	}
	return open.CheckURL(p.Config.Database.Reveal())
}

// cleanPolicy is what the jails of clean sessions may reach. A private destination is a rule that lets its name and ports pass,
// and says where they lead.
func cleanPolicy(c config.Config) (policy.Policy, error) {
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
	out := policy.PublicWeb(rules...)
	if err := errors.Join(append(errs, out.Validate())...); err != nil {
		return policy.Policy{}, problem.Wrap(err, problem.BadConfig, "correct gateway.private_destinations", "the private destinations are not valid")
	}
	return out, nil
}

func destinationHost(text string) (hostport.Host, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return hostport.FromAddr(addr)
	}
	return hostport.ParseHost(text)
}

func (p *plane) loadCertificate() (*keypair.Pair, error) {
	files := p.Config.TLS
	if !files.Set() {
		return nil, nil
	}
	pair, err := keypair.Load(files.Cert, files.Key, p.Log)
	if err != nil {
		return nil, problem.Wrap(err, problem.BadConfig, "check tls.cert and tls.key, and that the control plane's user can read both",
			"the certificate of the API cannot be used")
	}
	return pair, nil
}

// readAuthorities reads the files of extra_ca, for browsers, and for the gateway, which trusts the system's authorities as well
// when it speaks TLS itself.
func readAuthorities(files []string) (all session.Certificates, pool *x509.CertPool, err error) {
	if pool, err = x509.SystemCertPool(); err != nil {
		return all, nil, fmt.Errorf("read the system's certificates: %w", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return all, nil, problem.Wrap(err, problem.BadConfig, "correct extra_ca, and let the control plane's user read the file",
				"extra_ca: %s cannot be read", file)
		}
		one, err := session.ParseCertificates(file, text)
		if err != nil {
			return all, nil, err
		}
		if all, err = all.Add(one); err != nil {
			return all, nil, err
		}
		pool.AppendCertsFromPEM(text) // it is certificates and nothing else
	}
	return all, pool, nil
}
