package mcpserver

import (
	"context"
	"slices"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

// tested is what the last test of a server has found wrong, for one tenant.
type tested struct{ mark, problem string }

type testedKey struct{ tenant, name string }

// noteTest keeps what a test has found. One that went well forgets what was wrong before.
func (s *Service) noteTest(server config.MCPServer, tenant string, r Report) {
	key := testedKey{tenant, server.Name}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Problem == "" {
		delete(s.tests, key)
		return
	}
	if s.tests == nil {
		s.tests = map[testedKey]tested{}
	}
	s.tests[key] = tested{fingerprint(server), r.Problem}
}

// explainStopped says of servers that do not run why they could not: what they lack, or what their last test found. A cause that cannot
// be found out is left out.
func (s *Service) explainStopped(ctx context.Context, all []Status, tenant string) {
	var templates []string
	var templatesErr error
	asked := s.o.Templates == nil
	for n := range all {
		one := &all[n]
		if one.State != StateStopped || one.Problem != "" || !one.Serves(tenant) {
			continue
		}
		if !asked && one.Agent == "" {
			asked = true
			templates, templatesErr = s.o.Templates(ctx)
		}
		switch {
		case one.Agent != "":
			one.Problem = s.lacksAgent(ctx, one.MCPServer, tenant)
		case s.o.Templates != nil && templatesErr == nil && !slices.Contains(templates, one.Template):
			one.Problem = "there is no template " + one.Template
		}
		if one.Problem == "" {
			one.Problem = s.lacksSecret(ctx, one.MCPServer, tenant)
		}
		if one.Problem == "" {
			one.Problem = s.foundByTest(one.MCPServer, tenant)
		}
	}
}

func (s *Service) foundByTest(server config.MCPServer, tenant string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.tests[testedKey{tenant, server.Name}]
	if last.mark != fingerprint(server) {
		return ""
	}
	return last.problem
}

func (s *Service) lacksAgent(ctx context.Context, server config.MCPServer, tenant string) string {
	if s.o.Keeper == nil {
		return "there are no jails of agents here"
	}
	_, all, err := s.o.Keeper.Kept(ctx, 0, false)
	if err != nil || slices.ContainsFunc(all, func(k jail.KeptStatus) bool {
		return k.Spec.Agent != nil && k.Spec.Agent.Tenant == tenant && k.Spec.Agent.Name == server.Agent && k.Phase == jail.PhaseRunning
	}) {
		return ""
	}
	return "the agent " + server.Agent + " does not run"
}

func (s *Service) lacksSecret(ctx context.Context, server config.MCPServer, tenant string) string {
	for _, one := range server.Secrets {
		err := s.o.Vault.UseSecret(ctx, vault.SecretName{Tenant: tenant, Service: one.Secret}, vault.InJail, func(secret.Value) error { return nil })
		if p, ok := problem.As(err); ok {
			return p.Message
		}
	}
	return ""
}
