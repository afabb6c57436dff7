package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Agent is an identity that programs in jails have, and Token one of its keys.
type (
	Agent = store.Agent
	Token = store.Token
)

// DefaultOverlap is how long the old tokens of an agent are good after a rotation by default, LongestOverlap the
// most that may be said.
const (
	DefaultOverlap = 10 * time.Minute
	LongestOverlap = 24 * time.Hour
)

// CreateAgent makes an agent with its first token, which is good for life, or [NeverExpires]. The key is returned here
// and never again.
func (s *Service) CreateAgent(ctx context.Context, by Principal, tenant, name string, life time.Duration) (Key, Agent, error) {
	return s.CreateAgentAs(ctx, by, NewAgentID(), tenant, name, life)
}

// NewAgentID is an id that no agent has.
func NewAgentID() string { return newID("ag_") }

// CreateAgentAs is CreateAgent for somebody who has written down before which id the agent will have.
func (s *Service) CreateAgentAs(ctx context.Context, by Principal, id, tenant, name string, life time.Duration) (Key, Agent, error) {
	if err := s.Authorize(ctx, by, AgentCreate, tenant); err != nil {
		return Key{}, Agent{}, err
	}
	_, lifeErr := s.expiry(life)
	if err := errors.Join(checkName("agent", name), lifeErr); err != nil {
		return Key{}, Agent{}, err
	}
	if _, err := s.tenant(ctx, tenant); err != nil {
		return Key{}, Agent{}, err
	}
	a := Agent{ID: id, Tenant: tenant, Name: name, CreatedAt: s.now()}
	var key Key
	err := s.Record(ctx, agentIntent(AgentCreate, by, a, a.ID), func() (err error) {
		err = s.o.Store.CreateAgent(ctx, a)
		if errors.Is(err, store.ErrExists) {
			return problem.Wrap(err, problem.Conflict, "choose another name, or give that one a new token: clawjail agent token rotate "+name+InTenant(tenant), "there is an agent %s already", name)
		}
		if err != nil {
			return err
		}
		if key, _, err = s.addToken(ctx, a, life); err != nil {
			// An agent without a token is of no use to anybody, and would keep its name.
			return errors.Join(err, s.o.Store.DeleteAgent(context.WithoutCancel(ctx), a.ID))
		}
		return nil
	})
	if errors.Is(err, store.ErrExists) {
		return Key{}, Agent{}, err
	}
	if err != nil {
		return Key{}, Agent{}, fmt.Errorf("create agent %s: %w", name, err)
	}
	return key, a, nil
}

// InTenant is the flag that names a tenant, where one has to be named.
func InTenant(tenant string) string {
	if tenant == store.DefaultTenant {
		return ""
	}
	return " --tenant " + tenant
}

// Agents lists the agents of a tenant; of all when tenant is empty.
func (s *Service) Agents(ctx context.Context, by Principal, tenant string) ([]Agent, error) {
	if err := s.Authorize(ctx, by, AgentList, tenant); err != nil {
		return nil, err
	}
	list, err := s.o.Store.ListAgents(ctx, tenant)
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", err)
	}
	return list, nil
}

// RevokeAgent ends everything that is open for an agent. Its tokens are not good until [Service.RestoreAgent].
func (s *Service) RevokeAgent(ctx context.Context, by Principal, tenant, name string) error {
	now := s.now()
	return s.endAgent(ctx, by, AgentRevoke, tenant, name, func(ctx context.Context, id string) error { return s.o.Store.RevokeAgent(ctx, id, now) })
}

// DeleteAgent removes an agent with its tokens, and ends everything that is open for it. Its name is free again.
func (s *Service) DeleteAgent(ctx context.Context, by Principal, tenant, name string) error {
	return s.endAgent(ctx, by, AgentDelete, tenant, name, s.o.Store.DeleteAgent)
}

func (s *Service) endAgent(ctx context.Context, by Principal, op Operation, tenant, name string, write func(ctx context.Context, id string) error) error {
	ctx, cancel := ToTheEnd(ctx)
	defer cancel()
	a, err := s.agent(ctx, by, op, tenant, name)
	if err != nil {
		return err
	}
	err = s.cutOff(ctx, agentIntent(op, by, a, a.ID), a.ID, func(p Principal) bool { return p.Kind == KindAgent && p.ID == a.ID },
		func(ctx context.Context) error { return write(ctx, a.ID) })
	if err != nil {
		return fmt.Errorf("end agent %s: %w", name, err)
	}
	return nil
}

// RestoreAgent takes a revocation back. Tokens that were good before, and have not expired, are good again.
func (s *Service) RestoreAgent(ctx context.Context, by Principal, tenant, name string) error {
	a, err := s.agent(ctx, by, AgentRestore, tenant, name)
	if err != nil {
		return err
	}
	err = s.Record(ctx, agentIntent(AgentRestore, by, a, a.ID), func() error {
		return s.revocations.inTurn(ctx, func() error {
			err := s.o.Store.RevokeAgent(ctx, a.ID, time.Time{})
			if err == nil {
				s.revocations.done(a.ID)
			}
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("restore agent %s: %w", name, err)
	}
	return nil
}

// Tokens lists an agent's tokens, without what they are.
func (s *Service) Tokens(ctx context.Context, by Principal, tenant, name string) ([]Token, error) {
	a, err := s.agent(ctx, by, TokenList, tenant, name)
	if err != nil {
		return nil, err
	}
	list, err := s.o.Store.ListTokens(ctx, a.ID)
	if err != nil {
		return nil, fmt.Errorf("list the tokens of agent %s: %w", name, err)
	}
	return list, nil
}

// TenantTokens lists the tokens of all agents of a tenant, by the agents' ids; those of all tenants when tenant is empty.
func (s *Service) TenantTokens(ctx context.Context, by Principal, tenant string) ([]Token, error) {
	if err := s.Authorize(ctx, by, TokenList, tenant); err != nil {
		return nil, err
	}
	list, err := s.o.Store.ListTenantTokens(ctx, tenant)
	if err != nil {
		return nil, fmt.Errorf("list the tokens of agents: %w", err)
	}
	return list, nil
}

// RotateToken makes a new token for an agent, good for life or [NeverExpires]. Those it has end after overlap, with
// the connections that are open with them; what is held for a principal that is [Principal.Lasting] goes on. An overlap of 0
// revokes them, and ends that too. The key is returned here and never again.
func (s *Service) RotateToken(ctx context.Context, by Principal, tenant, name string, life, overlap time.Duration) (Key, Token, error) {
	return s.rotateToken(ctx, by, tenant, name, life, overlap, nil)
}

// ReplaceToken is RotateToken for an agent whose key is brought to it: the old tokens end when give has done so, and not before.
// After an error they may all be good, with the new one, as nobody knows how far give came; the next rotation ends them.
func (s *Service) ReplaceToken(ctx context.Context, by Principal, tenant, name string, life, overlap time.Duration, give func(Key) error) error {
	_, _, err := s.rotateToken(ctx, by, tenant, name, life, overlap, give)
	return err
}

func (s *Service) rotateToken(ctx context.Context, by Principal, tenant, name string, life, overlap time.Duration, give func(Key) error) (Key, Token, error) {
	a, err := s.agent(ctx, by, TokenRotate, tenant, name)
	if err != nil {
		return Key{}, Token{}, err
	}
	if !a.RevokedAt.IsZero() {
		return Key{}, Token{}, problem.New(problem.Conflict, "restore the agent first", "the agent %s is revoked", name)
	}
	if overlap < 0 || overlap > LongestOverlap {
		return Key{}, Token{}, problem.New(problem.BadLimit, "give a time such as 10m", "old tokens can stay valid for 0s to %s, not for %s", LongestOverlap, overlap)
	}
	if _, err := s.expiry(life); err != nil {
		return Key{}, Token{}, err
	}
	var key Key
	var fresh Token
	err = s.Record(ctx, agentIntent(TokenRotate, by, a, a.ID), func() (err error) {
		old, err := s.o.Store.ListTokens(ctx, a.ID)
		if err != nil {
			return err
		}
		if key, fresh, err = s.addToken(ctx, a, life); err != nil {
			return err
		}
		if give != nil {
			if err := give(key); err != nil {
				return err
			}
		}
		ctx := context.WithoutCancel(ctx) // half of them would be worse than all
		for _, t := range old {
			if err := s.endToken(ctx, t, overlap); err != nil {
				if give == nil { // no caller gets the new token, so it must not stay
					err = errors.Join(err, s.o.Store.RevokeToken(ctx, fresh.ID, s.now()))
				}
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Key{}, Token{}, fmt.Errorf("rotate the token of agent %s: %w", name, err)
	}
	return key, fresh, nil
}

// endToken lets a token expire after overlap, if it does not before. Without an overlap it is revoked, also when it has expired:
// what was opened with it may go on.
func (s *Service) endToken(ctx context.Context, t Token, overlap time.Duration) error {
	if overlap == 0 && t.RevokedAt.IsZero() {
		err := s.o.Store.RevokeToken(ctx, t.ID, s.now())
		if err == nil {
			s.connections.cut(isToken(t.ID))
		}
		return err
	}
	if s.over(t.ExpiresAt, t.RevokedAt) != "" {
		return nil
	}
	at := s.now().Add(overlap)
	if err := s.o.Store.ExpireToken(ctx, t.ID, at); err != nil {
		return err
	}
	if t.ExpiresAt.IsZero() || at.Before(t.ExpiresAt) {
		s.connections.expire(t.ID, at)
	}
	return nil
}

// RevokeToken ends one of an agent's tokens and everything that is open with it. Idempotent.
func (s *Service) RevokeToken(ctx context.Context, by Principal, tenant, name, id string) error {
	ctx, cancel := ToTheEnd(ctx)
	defer cancel()
	a, err := s.agent(ctx, by, TokenRevoke, tenant, name)
	if err != nil {
		return err
	}
	list, err := s.o.Store.ListTokens(ctx, a.ID)
	if err != nil {
		return fmt.Errorf("list the tokens of agent %s: %w", name, err)
	}
	for _, t := range list {
		if t.ID != id {
			continue
		}
		i := agentIntent(TokenRevoke, by, a, t.ID)
		i.Detail = Detail(map[string]string{"presented": t.Hint})
		now := s.now()
		err := s.cutOff(ctx, i, t.ID, isToken(t.ID), func(ctx context.Context) error { return s.o.Store.RevokeToken(ctx, t.ID, now) })
		if err != nil {
			return fmt.Errorf("revoke token %s: %w", id, err)
		}
		return nil
	}
	return s.Refuse(by, TokenRevoke, id,
		problem.New(problem.NotFound, "list them: clawjail agent token ls "+name, "the agent %s has no token %q", name, texts.Clip(id, 80)))
}

func isToken(id string) func(Principal) bool {
	return func(p Principal) bool { return p.TokenID == id }
}

// addToken makes a token. The caller has checked the right to do so, and the life.
func (s *Service) addToken(ctx context.Context, a Agent, life time.Duration) (Key, Token, error) {
	expires, err := s.expiry(life)
	if err != nil {
		return Key{}, Token{}, err
	}
	key := newKey(PrefixAgent)
	t := Token{ID: newID("tk_"), Agent: a.ID, Hash: key.Hash(), Hint: key.Hint(), CreatedAt: s.now(), ExpiresAt: expires}
	if err := s.o.Store.CreateToken(ctx, t); err != nil {
		return Key{}, Token{}, err
	}
	return key, t, nil
}

// AgentFor finds an agent by its name, for somebody who may do an operation with agents of its tenant.
func (s *Service) AgentFor(ctx context.Context, by Principal, op Operation, tenant, name string) (Agent, error) {
	return s.agent(ctx, by, op, tenant, name)
}

// agent looks one up for an operation. One of another tenant's does not exist.
func (s *Service) agent(ctx context.Context, by Principal, op Operation, tenant, name string) (Agent, error) {
	err := s.Authorize(ctx, by, op, tenant)
	if err != nil && !by.Hides(err) {
		return Agent{}, err
	}
	var a Agent
	if err == nil {
		a, err = s.o.Store.Agent(ctx, tenant, name)
	}
	switch {
	case err == nil:
		return a, nil
	case errors.Is(err, store.ErrNotFound), by.Hides(err):
		return Agent{}, problem.New(problem.NotFound, "list them: clawjail agent ls", "there is no agent %q", texts.Clip(name, 80))
	}
	return Agent{}, fmt.Errorf("look up an agent: %w", err)
}

func agentIntent(op Operation, by Principal, a Agent, target string) audit.Intent {
	return audit.Intent{Action: string(op), Tenant: a.Tenant, Actor: by.Actor(), Target: target}
}
