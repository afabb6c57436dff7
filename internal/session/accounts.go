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
func (svc *Service) permit(ctx context.Context, s *session) (audit.Pending, error) {
	if s.plan.mode == ModeRefresh {
		return svc.permitRefresh(ctx, s)
	}
	fields := audit.Fields{"mode": s.plan.mode, "access": string(s.plan.access), "browser": string(s.plan.shape.build)}
	if s.plan.mode == ModeClean {
		s.policy = svc.Policy
		if s.by.AgentID() != "" {
			s.policy.Advice = egress.Advice(s.by.Name)
		}
		return svc.Records.Begin(ctx, svc.intent(s, s.by.Actor(), string(identity.SessionOpen), "", fields))
	}
	g, standing, err := svc.verify(ctx, s)
	if err != nil {
		svc.Records.Note(audit.Event{Action: string(identity.SessionOpenOperator), Result: audit.Refused, Tenant: s.plan.tenant, Actor: s.by.Actor(),
			Session: s.id, Detail: audit.NewDetail(audit.Fields{"code": problem.CodeOf(err), "domains": audit.Names(s.plan.domains)})})
		return nil, err
	}
	if s.policy, err = svc.egress(g); err != nil {
		return nil, err
	}
	fields["grant_id"], fields["domains"], fields["domain_count"] = g.ID, audit.Names(s.plan.domains), len(s.plan.domains)
	if ids := standing.IDs(); len(ids) > 0 {
		fields["permission_ids"] = ids
		// This is set before the permissions are used: taking one back then looks for the sessions that have it.
		svc.mu.Lock()
		s.permissions = ids
		svc.mu.Unlock()
	}
	fields["egress_domains"], fields["egress_domain_count"] = audit.Names(g.EgressDomains), len(g.EgressDomains)
	record, err := svc.Records.Begin(ctx, svc.intent(s, s.by.Actor(), string(identity.SessionOpenOperator), "", fields))
	if err != nil {
		return nil, err
	}
	if err := svc.lease(ctx, s); err != nil {
		return record, err
	}
	// Late, so that what is refused before does not cost a grant: a template that is missing, a host daemon that is away.
	if _, err := svc.jailSpecOf(ctx, s.plan.shape); err != nil {
		return record, err
	}
	if len(standing.Permissions) > 0 {
		g, err = svc.Accounts.Grants.UsePermissions(ctx, standing, s.want())
	} else {
		g, err = svc.Accounts.Grants.Use(ctx, s.plan.token, s.want())
	}
	if err != nil {
		return record, err
	}
	svc.mu.Lock()
	s.grant = g
	svc.mu.Unlock()
	return record, nil
}

// want is what a session wants to do with its grant.
func (s *session) want() grant.Want {
	return grant.Want{Tenant: s.plan.tenant, Session: s.id, Caller: s.plan.origin, Agent: s.by.AgentID(), Domains: s.plan.domains,
		Access: s.plan.access, Actor: s.by.Actor()}
}

// verify refuses an operator session without changing anything. The standing permission is of an agent that has no token.
func (svc *Service) verify(ctx context.Context, s *session) (g grant.Grant, standing grant.Standing, err error) {
	if err := svc.Authority.OperatorMode(ctx, s.plan.tenant); err != nil {
		return grant.Grant{}, grant.Standing{}, err
	}
	if err := svc.isOrigin(s); err != nil {
		return grant.Grant{}, grant.Standing{}, err
	}
	if s.plan.token.IsZero() && s.by.AgentID() != "" {
		if standing, err = svc.standing(ctx, s); err != nil {
			return grant.Grant{}, grant.Standing{}, err
		}
		g = standing.Grant
	} else if g, err = svc.Accounts.Grants.Verify(ctx, s.plan.token, s.want()); err != nil {
		return grant.Grant{}, grant.Standing{}, err
	}
	return g, standing, svc.usable(ctx, s, g, standing)
}

// standing is what permissions let an agent do that has no token. It waits for a person where they say so.
func (svc *Service) standing(ctx context.Context, s *session) (grant.Standing, error) {
	if err := svc.Authority.AccountPermissions(ctx, s.plan.tenant); err != nil {
		return grant.Standing{}, err
	}
	standing, err := svc.Accounts.Grants.Permitted(ctx, s.want())
	if err != nil || len(standing.Asks) == 0 {
		return standing, err
	}
	for _, domain := range standing.Asks {
		if svc.Accounts.Ask == nil {
			return grant.Standing{}, grant.NotAllowed(domain, "the use of the account of %s has to be approved by a person, and nobody can be asked", domain)
		}
		if err := svc.Accounts.Ask(ctx, s.by, domain, s.plan.access); err != nil {
			return grant.Standing{}, err
		}
	}
	return svc.Accounts.Grants.Permitted(ctx, s.want())
}

// usable refuses a session whose accounts are not there, or not for its access.
func (svc *Service) usable(ctx context.Context, s *session, g grant.Grant, standing grant.Standing) error {
	within := g
	within.Access = string(s.plan.access)
	for _, domain := range s.plan.domains {
		set, err := svc.Accounts.Vault.Cookies(ctx, s.plan.tenant, domain)
		if problem.CodeOf(err) == problem.NotFound {
			return problem.New(problem.NotFound, "import one: clawjail cookies import FILE --domain "+domain,
				"there is no account of %s", domain)
		}
		if err != nil {
			return err
		}
		s.watch.know(set)
		if s.stored == "" && len(set.Storage) > 0 {
			s.stored = set.Storage[0].Origin
		}
		if len(standing.Permissions) > 0 && !standing.For(domain, set.ID) {
			return grant.NotAllowed(domain, "the permission is for an account of %s that was removed, and not for the one that is there now", domain)
		}
		if err := grant.InScopes(set.Scopes, within); err != nil {
			return fmt.Errorf("the account of %s: %w", domain, err)
		}
		// The storage of pages has no expiry that is known.
		if len(set.Storage) == 0 && !slices.ContainsFunc(set.Cookies, func(c vault.CookieInfo) bool { return !c.Expired }) {
			svc.Records.Note(audit.Event{Action: actionRefresh, Result: audit.Refused, Tenant: s.plan.tenant, Actor: s.by.Actor(), Session: s.id, Target: domain,
				Detail: audit.NewDetail(audit.Fields{"reason": ReasonExpired})})
			return problem.New(problem.NeedsRefresh, "log in to "+domain+" again, and import its cookies",
				"every cookie of the account of %s has expired", domain)
		}
	}
	return nil
}

// isOrigin refuses a session that says to be asked for by another one that is not its caller's. The origin is then
// compared with the grant.
func (svc *Service) isOrigin(s *session) error {
	if s.plan.origin == "" {
		return nil
	}
	svc.mu.Lock()
	defer svc.mu.Unlock()
	origin := svc.find(s.plan.origin)
	if origin == nil || origin.state != StateReady || origin.plan.tenant != s.plan.tenant || origin.by.Actor() != s.by.Actor() {
		return problem.New(problem.GrantWrongOrigin, "name a session that is open, and that you have opened", "the session %s is not yours, or is not open",
			quote(s.plan.origin))
	}
	return nil
}

// lease makes a session one of those that use its accounts.
func (svc *Service) lease(ctx context.Context, s *session) error {
	svc.releaseOld(ctx)
	svc.mu.Lock()
	s.leased = true // also when the answer is lost
	svc.mu.Unlock()
	waiting, cancel := context.WithTimeout(ctx, endingLimit)
	defer cancel()
	for {
		ending := svc.endingWith(s.plan) // before it is asked, so that none ends unseen in between
		now := svc.Now()
		busy, err := svc.Accounts.Leases.LeaseCookieSets(ctx, store.Lease{Tenant: s.plan.tenant, Session: s.id, Node: svc.Accounts.Node,
			At: now, ExpiresAt: now.Add(s.plan.ttl + leaseLate)}, s.plan.domains)
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
func (svc *Service) endingWith(p plan) (oldest *session) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	for _, s := range svc.sessions {
		if s.state == StateClosing && s.leased && s.plan.tenant == p.tenant && (oldest == nil || s.created.Before(oldest.created)) &&
			slices.ContainsFunc(s.plan.domains, func(domain string) bool { return slices.Contains(p.domains, domain) }) {
			oldest = s
		}
	}
	return oldest
}

// release gives the leases of a session back, of which nothing is left. Leases that stay would lock its account for long, so it is
// tried again.
func (svc *Service) release(s *session) {
	if !s.leased { // it does not change once the session is open, or given up
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(svc.background), releaseLimit)
	defer cancel()
	err := svc.Accounts.Leases.ReleaseLeases(ctx, s.id)
	if err != nil {
		svc.Log.Error("give back the accounts of a session; it is tried again", "session", s.id, "error", err)
	}
	svc.mu.Lock()
	defer svc.mu.Unlock()
	s.leased = false // not before: endingWith is about sessions that have their accounts
	if err != nil {
		svc.unfreed = append(svc.unfreed, s.id)
	}
}

// releaseOld tries once more what release could not do: other nodes need the accounts, too.
func (svc *Service) releaseOld(ctx context.Context) {
	svc.mu.Lock()
	old := svc.unfreed
	svc.unfreed = nil
	svc.mu.Unlock()
	for _, id := range old {
		bounded, cancel := context.WithTimeout(ctx, releaseLimit)
		err := svc.Accounts.Leases.ReleaseLeases(bounded, id)
		cancel()
		if err != nil {
			svc.Log.Debug("give back the accounts of a session", "session", id, "error", err)
			svc.mu.Lock()
			svc.unfreed = append(svc.unfreed, id)
			svc.mu.Unlock()
		}
	}
}

// egress is what an operator session may reach: the domains of its grant and the others that the grant names, each with
// what is below it. A private destination of the configuration is reached only when it is one of these.
func (svc *Service) egress(g grant.Grant) (policy.Policy, error) {
	var rules []policy.Rule
	named := slices.Concat(g.Domains, g.EgressDomains)
	for _, rule := range svc.Policy.Rules {
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
