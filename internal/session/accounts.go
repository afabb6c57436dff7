package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// Accounts is what operator sessions need of identity.
type Accounts struct {
	Grants Grants
	Vault  Vault
	Leases Leases
	// Node names this process among those that share a database.
	Node string
	// Ask asks a person whether an agent may use an account, and returns nil when it may; else the code is account_not_allowed.
	// Nil refuses each use that a person would have to approve.
	Ask func(ctx context.Context, by identity.Principal, domain string, access grant.Access) error
	// Logins say how to see that a site asks to log in.
	Logins []config.Login
}

func (a Accounts) complete() bool {
	return a.Grants != nil && a.Vault != nil && a.Leases != nil && a.Node != ""
}

// Grants decides about grants. *grant.Issuer is one.
type Grants interface {
	Verify(ctx context.Context, token grant.Token, want grant.Want) (grant.Grant, error)
	Use(ctx context.Context, token grant.Token, want grant.Want) (grant.Grant, error)
	// Permitted says whether an agent may open a session without a token, UsePermissions does it, and PermissionStands says
	// whether a permission is still there, for an access.
	Permitted(ctx context.Context, want grant.Want) (grant.Standing, error)
	UsePermissions(ctx context.Context, s grant.Standing, want grant.Want) (grant.Grant, error)
	PermissionStands(ctx context.Context, id string, access grant.Access) (bool, error)
}

// Vault has the logins. *vault.Vault is one.
type Vault interface {
	Cookies(ctx context.Context, tenant, domain string) (vault.CookieSet, error)
	UseLogin(ctx context.Context, tenant, domain string, use func(weblogin.Login) error) error
}

// Leases records which session uses which account now. A store.Store is one.
type Leases interface {
	LeaseCookieSets(ctx context.Context, l store.Lease, domains []string) (busy []string, err error)
	ReleaseLeases(ctx context.Context, session string) error
	MarkInjected(ctx context.Context, tenant, domain string, at time.Time) error
	MarkSignedOut(ctx context.Context, tenant, domain string, m store.SignedOut) error
}

var errRevoked = problem.New(problem.SessionClosed, "open a new one with a valid key", "the key that opened the session has expired or was revoked")

// releaseLimit bounds giving leases back.
const releaseLimit = 5 * time.Second

// permit does everything that comes before the jail: the record, and in an operator session grant and leases. It begins with what it can
// refuse without changing anything.
func (s *Service) permit(ctx context.Context, r *session) (audit.Pending, error) {
	if r.plan.mode == ModeRefresh {
		return s.permitRefresh(ctx, r)
	}
	fields := audit.Fields{"mode": r.plan.mode, "access": string(r.plan.access), "browser": string(r.plan.shape.build)}
	if r.plan.mode == ModeClean {
		r.policy = s.Policy
		if r.by.AgentID() != "" {
			r.policy.Advice = egress.Advice(r.by.Name)
		}
		return s.Records.Begin(ctx, s.intent(r, r.by.Actor(), string(identity.SessionOpen), "", fields))
	}
	g, standing, err := s.verify(ctx, r)
	if err != nil {
		s.Records.Note(audit.Event{Action: string(identity.SessionOpenOperator), Result: audit.Refused, Tenant: r.plan.tenant, Actor: r.by.Actor(),
			Session: r.id, Detail: audit.NewDetail(audit.Fields{"code": problem.CodeOf(err), "domains": audit.Names(r.plan.domains)})})
		return nil, err
	}
	if r.policy, err = s.egress(g); err != nil {
		return nil, err
	}
	fields["grant_id"], fields["domains"], fields["domain_count"] = g.ID, audit.Names(r.plan.domains), len(r.plan.domains)
	if ids := standing.IDs(); len(ids) > 0 {
		fields["permission_ids"] = ids
		// This is set before the permissions are used: taking one back then looks for the sessions that have it.
		s.mu.Lock()
		r.permissions = ids
		s.mu.Unlock()
	}
	fields["egress_domains"], fields["egress_domain_count"] = audit.Names(g.EgressDomains), len(g.EgressDomains)
	record, err := s.Records.Begin(ctx, s.intent(r, r.by.Actor(), string(identity.SessionOpenOperator), "", fields))
	if err != nil {
		return nil, err
	}
	if err := s.lease(ctx, r); err != nil {
		return record, err
	}
	// Late, so that what is refused before does not cost a grant: a template that is missing, a host daemon that is away.
	if _, err := s.jailSpecOf(ctx, r.plan.shape); err != nil {
		return record, err
	}
	if len(standing.Permissions) > 0 {
		g, err = s.Accounts.Grants.UsePermissions(ctx, standing, r.want())
	} else {
		g, err = s.Accounts.Grants.Use(ctx, r.plan.token, r.want())
	}
	if err != nil {
		return record, err
	}
	s.mu.Lock()
	r.grant = g
	s.mu.Unlock()
	return record, nil
}

// want is what a session wants to do with its grant.
func (r *session) want() grant.Want {
	return grant.Want{Tenant: r.plan.tenant, Session: r.id, Caller: r.plan.origin, Agent: r.by.AgentID(), Domains: r.plan.domains,
		Access: r.plan.access, Actor: r.by.Actor()}
}

// verify refuses an operator session without changing anything. The standing permission is of an agent that has no token.
func (s *Service) verify(ctx context.Context, r *session) (g grant.Grant, standing grant.Standing, err error) {
	if err := s.Authority.OperatorMode(ctx, r.plan.tenant); err != nil {
		return grant.Grant{}, grant.Standing{}, err
	}
	if err := s.isOrigin(r); err != nil {
		return grant.Grant{}, grant.Standing{}, err
	}
	if r.plan.token.IsZero() && r.by.AgentID() != "" {
		if standing, err = s.standing(ctx, r); err != nil {
			return grant.Grant{}, grant.Standing{}, err
		}
		g = standing.Grant
	} else if g, err = s.Accounts.Grants.Verify(ctx, r.plan.token, r.want()); err != nil {
		return grant.Grant{}, grant.Standing{}, err
	}
	return g, standing, s.usable(ctx, r, g, standing)
}

// standing is what permissions let an agent do that has no token. It waits for a person where they say so.
func (s *Service) standing(ctx context.Context, r *session) (grant.Standing, error) {
	if err := s.Authority.AccountPermissions(ctx, r.plan.tenant); err != nil {
		return grant.Standing{}, err
	}
	standing, err := s.Accounts.Grants.Permitted(ctx, r.want())
	if err != nil || len(standing.Asks) == 0 {
		return standing, err
	}
	for _, domain := range standing.Asks {
		if s.Accounts.Ask == nil {
			return grant.Standing{}, grant.NotAllowed(domain, "the use of the account of %s has to be approved by a person, and nobody can be asked", domain)
		}
		if err := s.Accounts.Ask(ctx, r.by, domain, r.plan.access); err != nil {
			return grant.Standing{}, err
		}
	}
	return s.Accounts.Grants.Permitted(ctx, r.want())
}

// usable refuses a session whose accounts are not there, or not for its access.
func (s *Service) usable(ctx context.Context, r *session, g grant.Grant, standing grant.Standing) error {
	within := g
	within.Access = string(r.plan.access)
	for _, domain := range r.plan.domains {
		set, err := s.Accounts.Vault.Cookies(ctx, r.plan.tenant, domain)
		if problem.CodeOf(err) == problem.NotFound {
			return problem.New(problem.NotFound, "import one: clawjail cookies import FILE --domain "+domain,
				"there is no account of %s", domain)
		}
		if err != nil {
			return err
		}
		r.watch.know(set)
		if r.stored == "" && len(set.Storage) > 0 {
			r.stored = set.Storage[0].Origin
		}
		if len(standing.Permissions) > 0 && !standing.For(domain, set.ID) {
			return grant.NotAllowed(domain, "the permission is for an account of %s that was removed, and not for the one that is there now", domain)
		}
		if err := grant.InScopes(set.Scopes, within); err != nil {
			return fmt.Errorf("the account of %s: %w", domain, err)
		}
		// The storage of pages has no expiry that is known.
		if len(set.Storage) == 0 && !slices.ContainsFunc(set.Cookies, func(c vault.CookieInfo) bool { return !c.Expired }) {
			s.Records.Note(audit.Event{Action: actionRefresh, Result: audit.Refused, Tenant: r.plan.tenant, Actor: r.by.Actor(), Session: r.id, Target: domain,
				Detail: audit.NewDetail(audit.Fields{"reason": ReasonExpired})})
			return problem.New(problem.NeedsRefresh, "log in to "+domain+" again, and import its cookies",
				"every cookie of the account of %s has expired", domain)
		}
	}
	return nil
}

// isOrigin refuses a session that says to be asked for by another one that is not its caller's. The origin is then
// compared with the grant.
func (s *Service) isOrigin(r *session) error {
	if r.plan.origin == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	origin := s.find(r.plan.origin)
	if origin == nil || origin.state != StateReady || origin.plan.tenant != r.plan.tenant || origin.by.Actor() != r.by.Actor() {
		return problem.New(problem.GrantWrongOrigin, "name a session that is open, and that you have opened", "the session %s is not yours, or is not open",
			quote(r.plan.origin))
	}
	return nil
}

// lease makes a session one of those that use its accounts.
func (s *Service) lease(ctx context.Context, r *session) error {
	s.releaseOld(ctx)
	s.mu.Lock()
	r.leased = true // also when the answer is lost
	s.mu.Unlock()
	waiting, cancel := context.WithTimeout(ctx, endingLimit)
	defer cancel()
	for {
		ending := s.endingWith(r.plan) // before it is asked, so that none ends unseen in between
		now := s.Now()
		busy, err := s.Accounts.Leases.LeaseCookieSets(ctx, store.Lease{Tenant: r.plan.tenant, Session: r.id, Node: s.Accounts.Node,
			At: now, ExpiresAt: now.Add(r.plan.ttl + leaseLate)}, r.plan.domains)
		if errors.Is(err, store.ErrNotFound) {
			return problem.Wrap(err, problem.NotFound, "import it again: clawjail cookies import FILE", "an account was removed at this moment")
		}
		if err != nil || len(busy) == 0 {
			return err
		}
		if ending != nil {
			select {
			case <-ending.gone:
				continue
			case <-waiting.Done():
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
			}
		}
		return problem.New(problem.AccountBusy,
			"close the other session, `clawjail session close ID --wait`; or allow more at a time: `clawjail cookies set "+busy[0]+" --max-sessions N`",
			"another session uses the account of %s", strings.Join(busy, ", ")).With("domains", busy)
	}
}

// leaseLate is how much longer than the time of a session its leases count when they are not given back: opening and ending take a
// while, and the clocks of nodes may differ.
const leaseLate = time.Hour

// endingLimit bounds how long a session waits for an account of one that is being closed.
const endingLimit = 20 * time.Second

// endingWith is the oldest session that is being closed and still has one of the accounts that a session wants.
func (s *Service) endingWith(p plan) (oldest *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.sessions {
		if r.state == StateClosing && r.leased && r.plan.tenant == p.tenant && (oldest == nil || r.created.Before(oldest.created)) &&
			slices.ContainsFunc(r.plan.domains, func(domain string) bool { return slices.Contains(p.domains, domain) }) {
			oldest = r
		}
	}
	return oldest
}

// release gives the leases of a session back, of which nothing is left. Leases that stay would lock its account for long, so it is
// tried again.
func (s *Service) release(r *session) {
	if !r.leased { // it does not change once the session is open, or given up
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.background), releaseLimit)
	defer cancel()
	err := s.Accounts.Leases.ReleaseLeases(ctx, r.id)
	if err != nil {
		s.Log.Error("give back the accounts of a session; it is tried again", "session", r.id, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.leased = false // not before: endingWith is about sessions that have their accounts
	if err != nil {
		s.unfreed = append(s.unfreed, r.id)
	}
}

// releaseOld tries once more what release could not do: other nodes need the accounts, too.
func (s *Service) releaseOld(ctx context.Context) {
	s.mu.Lock()
	old := s.unfreed
	s.unfreed = nil
	s.mu.Unlock()
	for _, id := range old {
		bounded, cancel := context.WithTimeout(ctx, releaseLimit)
		err := s.Accounts.Leases.ReleaseLeases(bounded, id)
		cancel()
		if err != nil {
			s.Log.Debug("give back the accounts of a session", "session", id, "error", err)
			s.mu.Lock()
			s.unfreed = append(s.unfreed, id)
			s.mu.Unlock()
		}
	}
}

// egress is what an operator session may reach: the domains of its grant and the others that the grant names, each with
// what is below it. A private destination of the configuration is reached only when it is one of these.
func (s *Service) egress(g grant.Grant) (policy.Policy, error) {
	var rules []policy.Rule
	named := slices.Concat(g.Domains, g.EgressDomains)
	for _, rule := range s.Policy.Rules {
		host, err := hostport.ParseHost(rule.Host.String())
		if err == nil && slices.ContainsFunc(named, func(domain string) bool { return cookies.Within(host.String(), domain) }) {
			rules = append(rules, rule)
		}
	}
	for n, domain := range named {
		for below, text := range map[string]string{"": domain, "-below": "*." + domain} {
			pattern, err := policy.ParsePattern(text)
			if err != nil {
				return policy.Policy{}, fmt.Errorf("the grant's domain %s: %w", quote(domain), err)
			}
			rules = append(rules, policy.Rule{Name: fmt.Sprintf("grant-%d%s", n+1, below), Action: policy.Allow, Host: pattern, Ports: policy.Ports(80, 443)})
		}
	}
	out := policy.Only(rules...)
	out.Advice = "that takes a grant or a permission with --egress-domain"
	return out, out.Validate()
}
