package grant

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// KindPermission is the kind of the entries that permissions are kept as.
const KindPermission = "permission"

const (
	// maxPermissions is how many a tenant may have whose time is not over.
	maxPermissions = 1000
	// maxTimes is the largest number of sessions that a permission can be for, and maxFor the longest time.
	maxTimes = 1_000_000
	maxFor   = 366 * 24 * time.Hour
	// approvalLife is how long the answer of a person waits for its use.
	approvalLife = 24 * time.Hour
	// usingTries bounds how often a use begins anew because another one came first. Each time, another one has succeeded.
	usingTries = 1000
)

// Ask says when a person is asked about the use of a permission.
type Ask string

// A first use is asked about until there has been one. AskNever is the default.
const (
	AskNever  Ask = "never"
	AskFirst  Ask = "first"
	AskAlways Ask = "always"
)

// Permission lets one agent use one account in many sessions. For each of them a grant is issued and used at once; its token is
// given to no caller. It is for the agent and the account as they are, not for their names: when either is removed and
// made again, it is good for neither.
type Permission struct {
	ID        string `json:"id"`
	Tenant    string `json:"tenant"`
	Domain    string `json:"domain" doc:"domain of the account"`
	Agent     string `json:"agent" doc:"the id of the agent"`
	AgentName string `json:"agent_name"`
	Access    Access `json:"access" enum:"tools,cdp" doc:"widest access of a session"`
	// EgressDomains are what its grants name besides the domain.
	EgressDomains []string `json:"egress_domains,omitempty" nullable:"false" doc:"other domains, or hosts, that its sessions may reach"`
	Ask           Ask      `json:"ask" enum:"never,first,always" doc:"whether a person is asked before each use, before the first, or never"`
	Hours         Hours    `json:"hours,omitempty" doc:"the hours of the day in which it is valid, in UTC, such as 08-18; all when it is missing"`
	// Left is how many sessions it is still good for; nil is any number.
	Left *int `json:"times_left,omitempty" doc:"for how many more sessions it is valid; any number when it is missing"`
	Used int  `json:"used" doc:"how many sessions were opened with it"`
	// Declared: it was made from a file, which takes it back when it does not say so any more.
	Declared   bool      `json:"declared,omitempty" doc:"whether it comes from clawbots.yml"`
	By         string    `json:"by" doc:"who gave the permission"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
	ExpiresAt  time.Time `json:"expires_at,omitzero" doc:"no session can be opened with it from then on"`
	// ApprovedUntil is when the answer of a person ends, which is good for one use.
	ApprovedUntil time.Time `json:"approved_until,omitzero" doc:"until when the approval of one use by a person holds"`

	account  string // the id of the cookie set
	answered bool   // it was used as it is now: what asks about the first use has been answered
	version  int64
	key      string // the id of the one that signed it
}

// PermissionRequest is what an operator permits for many sessions.
type PermissionRequest struct {
	// ID is that of a new permission, for a caller that has to know it before; one is chosen where it is empty.
	ID     string
	Tenant string
	// Operator permits the use, and Agent with AgentName is the agent that gets it.
	Operator         string
	Agent, AgentName string
	Domain           string
	// Account is the id of the cookie set that the domain has now.
	Account       string
	EgressDomains []string
	Access        Access // tools unless set
	Ask           Ask    // never unless set
	Hours         Hours
	// Times is for how many sessions, nil for any number; For is for how long, 0 for good.
	Times    *int
	For      time.Duration
	Declared bool
}

// NewPermissionID makes one.
func NewPermissionID() string { return "perm_" + strings.ToLower(rand.Text()[:20]) }

// permission is what a request asks for. Everything that is wrong is reported at once.
func (i *Issuer) permission(r PermissionRequest) (Permission, error) {
	g, wrong := i.row(Request{Tenant: r.Tenant, Operator: r.Operator, Domains: []string{r.Domain}, EgressDomains: r.EgressDomains, Access: r.Access})
	limits := &problem.ValidationError{Code: problem.BadLimit}
	if r.Times != nil && (*r.Times < 1 || *r.Times > maxTimes) {
		limits.Add("times", "is %d, and must be from 1 to %d", *r.Times, maxTimes)
	}
	if r.For < 0 || r.For > maxFor || r.For > 0 && r.For < time.Second {
		limits.Add("for", "is %s, and must be from 1s to %s", r.For, maxFor)
	}
	rest := &problem.ValidationError{Code: problem.BadRequest}
	if p, bad := problem.As(r.Hours.Validate()); bad {
		rest.AddFlaw(problem.Flaw{Field: "hours", Message: p.Message, Hint: p.Hint})
	}
	ask := cmp.Or(r.Ask, AskNever)
	if !slices.Contains([]Ask{AskNever, AskFirst, AskAlways}, ask) {
		rest.Add("ask", "is %s, and must be first, always or never", texts.Quote(string(ask), 80))
	}
	if r.Agent == "" || r.Account == "" {
		rest.Add("agent", "and the account must be there")
	}
	if err := flaws(append(wrong, limits, rest)...); err != nil {
		return Permission{}, err
	}
	p := Permission{ID: cmp.Or(r.ID, NewPermissionID()), Tenant: g.Tenant, Domain: g.Domains[0], Agent: r.Agent, AgentName: r.AgentName,
		Access: Access(g.Access), EgressDomains: g.EgressDomains, Ask: ask, Hours: r.Hours, Left: r.Times, Declared: r.Declared, By: r.Operator,
		CreatedAt: g.IssuedAt, account: r.Account}
	if r.For > 0 {
		p.ExpiresAt = store.Microsecond(g.IssuedAt.Add(r.For))
	}
	return p, nil
}

// ParseFor reads the life of a permission: a duration as Go writes it, or a number of days such as 30d. Empty is for good.
func ParseFor(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := texts.Duration(text)
	if err != nil || d < time.Second || d > maxFor {
		return 0, problem.New(problem.BadLimit, "write a number with d, h or m, such as 30d; leave it out for no end", "%s is not a time from 1s to 366d", texts.Quote(text, 80))
	}
	return d, nil
}

// CheckPermission says what would keep [Issuer.Allow] from permitting something, as far as the request itself goes.
func (i *Issuer) CheckPermission(r PermissionRequest) error {
	_, err := i.permission(r)
	return err
}

// Allow gives a permission. It replaces the agent's permission for the account; the counts stay,
// and so do its sessions: the caller ends those whose access is wider now. Over is a permission for an account that was
// removed since, which is gone: the caller ends its sessions.
func (i *Issuer) Allow(ctx context.Context, r PermissionRequest) (made Permission, over string, err error) {
	if made, err = i.permission(r); err != nil {
		return Permission{}, "", err
	}
	all, err := i.o.Store.ListEntries(ctx, KindPermission)
	if err != nil {
		return Permission{}, "", fmt.Errorf("list permissions: %w", err)
	}
	all = slices.DeleteFunc(all, func(e store.Entry) bool { return e.Tenant != made.Tenant })
	at := slices.IndexFunc(all, func(e store.Entry) bool { return e.Agent == made.Agent && e.Name == made.Domain })
	var old Permission
	if at >= 0 {
		if old, err = i.readPermission(all[at]); err != nil && !errors.Is(err, errUnread) {
			return Permission{}, "", err
		}
	}
	ended := func(e store.Entry) bool { return !e.ExpiresAt.IsZero() && !made.CreatedAt.Before(e.ExpiresAt) }
	if at < 0 || ended(all[at]) {
		if n := len(slices.DeleteFunc(slices.Clone(all), ended)); n >= maxPermissions {
			return Permission{}, "", problem.New(problem.BadLimit, "find unused ones, and take them back: clawjail cookies allowed",
				"there are %d permissions already, the most a tenant may have", n)
		}
	}
	if old.ID != "" && old.account == made.account {
		made, err = i.changePermission(ctx, old.ID, func(p *Permission) error {
			now := made
			now.ID, now.CreatedAt, now.Used, now.LastUsedAt, now.version = p.ID, p.CreatedAt, p.Used, p.LastUsedAt, p.version
			*p = now
			return nil
		})
		return made, "", err
	} else if at >= 0 { // of an account that is gone, or nothing that was signed here
		over = all[at].ID
		if err := i.o.Store.DeleteEntry(ctx, over); err != nil && !errors.Is(err, store.ErrNotFound) {
			return Permission{}, "", fmt.Errorf("replace a permission: %w", err)
		}
	}
	e, err := i.write(made, made.CreatedAt)
	if err == nil {
		err = i.o.Store.CreateEntry(ctx, e)
	}
	switch {
	case errors.Is(err, store.ErrExists):
		err = problem.Wrap(err, problem.Conflict, "look at what there is now: clawjail cookies allowed", "somebody else gave the agent a permission for it at the same time")
	case errors.Is(err, store.ErrNotFound):
		err = problem.Wrap(err, problem.NotFound, "list them: clawjail agent ls", "there is no such agent")
	case err != nil:
		err = fmt.Errorf("keep a permission: %w", err)
	}
	return made, over, err
}

// find is the permission of an agent for the account of a domain, in those of a tenant; nil when there is none.
func find(all []Permission, agent, domain string) *Permission {
	at := slices.IndexFunc(all, func(p Permission) bool { return p.Agent == agent && p.Domain == domain })
	if at < 0 {
		return nil
	}
	return &all[at]
}

// Disallow takes a permission back. No session is opened with it when it returns; the caller ends those that are open.
func (i *Issuer) Disallow(ctx context.Context, id string) error {
	err := i.o.Store.DeleteEntry(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return noPermission()
	}
	if err != nil {
		return fmt.Errorf("take a permission back: %w", err)
	}
	return nil
}

func noPermission() error {
	return problem.New(problem.NotFound, "list them: clawjail cookies allowed", "there is no such permission")
}

// Approve lets a permission be used once more within a day, also where it asks a person first, outside of its hours and
// when it was used as often as it may be.
func (i *Issuer) Approve(ctx context.Context, id string) error {
	_, err := i.changePermission(ctx, id, func(p *Permission) error {
		p.ApprovedUntil = store.Microsecond(i.o.Now().Add(approvalLife))
		return nil
	})
	return err
}

// Permissions lists those of a tenant, by domain and then by agent; those of all tenants when tenant is empty. Permissions that cannot
// be read are not among them, and permit nothing.
func (i *Issuer) Permissions(ctx context.Context, tenant string) ([]Permission, error) {
	entries, err := i.o.Store.ListEntries(ctx, KindPermission)
	if err != nil {
		return nil, fmt.Errorf("list permissions: %w", err)
	}
	return i.readable(slices.DeleteFunc(entries, func(e store.Entry) bool { return tenant != "" && e.Tenant != tenant }))
}

// PermissionsOf lists those of one agent.
func (i *Issuer) PermissionsOf(ctx context.Context, tenant, agent string) ([]Permission, error) {
	entries, err := i.o.Store.AgentEntries(ctx, KindPermission, tenant, agent)
	if err != nil {
		return nil, fmt.Errorf("list the permissions of an agent: %w", err)
	}
	return i.readable(entries)
}

func (i *Issuer) readable(entries []store.Entry) ([]Permission, error) {
	var out []Permission
	for _, e := range entries {
		p, err := i.readPermission(e)
		if err == nil {
			out = append(out, p)
		} else if !errors.Is(err, errUnread) {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b Permission) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.AgentName, b.AgentName), cmp.Compare(a.Tenant, b.Tenant))
	})
	return out, nil
}

// SignPermissions has all permissions signed with the key that signs now: one that was rotated away verifies for a day.
func (i *Issuer) SignPermissions(ctx context.Context) error {
	all, err := i.Permissions(ctx, "")
	if err != nil {
		return err
	}
	keys, err := i.o.Keys.Keys()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range all {
		if p.key == keys[0].ID {
			continue
		}
		if _, err := i.changePermission(ctx, p.ID, func(*Permission) error { return nil }); problem.CodeOf(err) != problem.NotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// PermissionStands says whether a permission is still there, for an access: other processes take permissions back and
// narrow them too. That its time is over ends no session, and neither does one that cannot be read here.
func (i *Issuer) PermissionStands(ctx context.Context, id string, access Access) (bool, error) {
	e, err := i.o.Store.Entry(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p, err := i.readPermission(e)
	if errors.Is(err, errUnread) {
		return true, nil
	}
	return p.Access.Covers(access), err
}

// changePermission changes one as it is now, whatever else happens to it at the same time on whichever node.
func (i *Issuer) changePermission(ctx context.Context, id string, change func(*Permission) error) (Permission, error) {
	for range usingTries {
		e, err := i.o.Store.Entry(ctx, id)
		if errors.Is(err, store.ErrNotFound) || err == nil && e.Kind != KindPermission {
			return Permission{}, noPermission()
		}
		if err != nil {
			return Permission{}, fmt.Errorf("look up a permission: %w", err)
		}
		p, err := i.readPermission(e)
		if err != nil {
			return Permission{}, err
		}
		if err := change(&p); err != nil {
			return Permission{}, err
		}
		if e, err = i.write(p, store.Microsecond(i.o.Now())); err != nil {
			return Permission{}, err
		}
		switch err := i.o.Store.UpdateEntry(ctx, e); {
		case err == nil:
			p.version++
			return p, nil
		case errors.Is(err, store.ErrNotFound):
			return Permission{}, noPermission()
		case !errors.Is(err, store.ErrExists):
			return Permission{}, fmt.Errorf("change a permission: %w", err)
		}
	}
	return Permission{}, problem.New(problem.Conflict, "try again", "too many sessions are being opened with the permission at the same time")
}
