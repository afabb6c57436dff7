package egress

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Accounts permits agents the use of accounts. *credential.Service is one.
type Accounts interface {
	// Permitted says whether an agent may open a session with an account now, without a grant and without asking anybody.
	Permitted(ctx context.Context, tenant, agent, domain string, access grant.Access) (bool, error)
	// Approve prepares what an approval does: the id of the permission, and how it is given. Nothing is done before.
	Approve(ctx context.Context, by identity.Principal, a Approval) (id string, give func(context.Context) error, err error)
}

// Approval is what a person has approved about an account.
type Approval struct {
	Tenant, Agent string // the agent's id
	Domain        string
	Access        grant.Access
	Once          bool
	Until         time.Time // zero: for good
}

// accountWait is how long opening a session waits for a person.
const accountWait = 45 * time.Second

// askedAccount reads DOMAIN or DOMAIN ACCESS.
func askedAccount(target string) (domain string, access grant.Access, err error) {
	named, wide, found := strings.Cut(target, " ")
	access = grant.AccessTools
	if found {
		access = grant.Access(wide)
	}
	if access != grant.AccessTools && access != grant.AccessCDP {
		return "", "", errors.New("write it as the domain of the account, with cdp behind it for DevTools clients: example.com cdp")
	}
	domain, err = cookies.RegistrableDomain(named)
	if err != nil || !strings.EqualFold(domain, named) {
		return "", "", errors.New("accounts belong to whole domains, such as example.com")
	}
	return domain, access, nil
}

// accountTarget is the one form of what is asked for.
func accountTarget(domain string, access grant.Access) string {
	if access == grant.AccessTools {
		return domain
	}
	return domain + " " + string(access)
}

// permits says whether an agent may use an account already, without asking anybody.
func (b *Book) permits(ctx context.Context, of scope, target string) (bool, error) {
	if b.o.Accounts == nil {
		return false, problem.New(problem.NotFound, "ask an operator", "accounts cannot be asked for here")
	}
	domain, access, err := askedAccount(target)
	if err != nil {
		return false, err
	}
	return b.o.Accounts.Permitted(ctx, of.tenant, of.agent, domain, access)
}

// AskForAccount asks a person whether an agent may open a session with an account, because its permission says so, and
// waits for the answer for a while. The code is account_not_allowed when there is none yet, or when it is no.
func (b *Book) AskForAccount(ctx context.Context, by identity.Principal, domain string, access grant.Access) error {
	a, err := b.Ask(ctx, by, AccessAccount, accountTarget(domain, access), "it opens a session with the account; its permission says to ask first", accountWait)
	if err != nil {
		return err
	}
	switch a.State {
	case AccessApproved:
		return nil
	case AccessRefused:
		return grant.NotAllowed(domain, "a person has refused the use of the account of %s; ask again tomorrow at the earliest", domain).With("request", a.ID)
	}
	p := grant.NotAllowed(domain, "a person was asked about the use of the account of %s, and has not answered yet: %s", domain, a.ID).With("request", a.ID)
	p.Hint = "wait for the answer with request_access and the id " + a.ID + ", and open the session again; operators answer: clawjail access approve " + a.ID
	return p
}
