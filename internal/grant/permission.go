package grant

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// KindPermission is the kind of the entries that permissions are kept as.
const KindPermission = "permission"

const (
	// maxPermissions is how many a tenant may have.
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

// A first use is asked about until there has been one. AskNever is what holds when nobody says.
const (
	AskNever  Ask = "never"
	AskFirst  Ask = "first"
	AskAlways Ask = "always"
)

// Hours are those of a day, in UTC, in which a permission is good: 08-18 is from 8:00 until 18:00, 22-06 over midnight.
// Empty are all.
type Hours string

// parse returns the first hour, and the one that is the first outside.
func (h Hours) parse() (from, to int, err error) {
	a, b, found := strings.Cut(string(h), "-")
	from, fromErr := strconv.Atoi(a)
	to, toErr := strconv.Atoi(b)
	if !found || fromErr != nil || toErr != nil || fmt.Sprintf("%02d-%02d", from, to) != string(h) || from < 0 || from > 23 || to < 0 || to > 24 || from == to {
		return 0, 0, fmt.Errorf("%s are no hours", quote(string(h)))
	}
	return from, to, nil
}

// Validate says what is wrong with them.
func (h Hours) Validate() error {
	if _, _, err := h.parse(); err != nil && h != "" {
		return problem.Wrap(err, problem.BadRequest, "write the first hour and the one behind the last, in UTC: 08-18", "%s are no hours", quote(string(h)))
	}
	return nil
}

// contain says whether a moment is within the hours. What cannot be read contains none.
func (h Hours) contain(t time.Time) bool {
	if h == "" {
		return true
	}
	from, to, err := h.parse()
	hour := t.UTC().Hour()
	switch {
	case err != nil:
		return false
	case from < to:
		return from <= hour && hour < to
	}
	return hour >= from || hour < to
}

// Permission lets one agent use one account in many sessions. For each of them a grant is issued and used at once, which
// nobody else ever has. It is for the agent and the account as they are, not for their names: when either is removed and
// made again, it is good for neither.
type Permission struct {
	ID        string `json:"id"`
	Tenant    string `json:"tenant"`
	Domain    string `json:"domain" doc:"whose account it is"`
	Agent     string `json:"agent" doc:"the id of the agent"`
	AgentName string `json:"agent_name"`
	Access    Access `json:"access" enum:"tools,cdp" doc:"the widest that a session may be steered with"`
	// EgressDomains are what its grants name besides the domain.
	EgressDomains []string `json:"egress_domains,omitempty" nullable:"false" doc:"other domains, or hosts, that its sessions may reach"`
	Ask           Ask      `json:"ask" enum:"never,first,always" doc:"whether a person is asked before each use, before the first, or never"`
	Hours         Hours    `json:"hours,omitempty" doc:"the hours of the day in which it is good, in UTC, such as 08-18; all when it is missing"`
	// Left is how many sessions it is still good for; nil is any number.
	Left *int `json:"times_left,omitempty" doc:"for how many more sessions it is good; any number when it is missing"`
	Used int  `json:"used" doc:"how many sessions were opened with it"`
	// Declared: it was made from a file, which takes it back when it does not say so any more.
	Declared   bool      `json:"declared,omitempty" doc:"it is from clawbots.yml"`
	By         string    `json:"by" doc:"who gave it"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
	ExpiresAt  time.Time `json:"expires_at,omitzero" doc:"no session can be opened with it from then on"`
	// ApprovedUntil is when the answer of a person ends, which is good for one use.
	ApprovedUntil time.Time `json:"approved_until,omitzero" doc:"a person has approved one use until then"`

	account  string // the id of the cookie set
	answered bool   // it was used as it is now: what asks about the first use has been answered
	version  int64
}

// forPermissions is what a signed permission is for; a grant's token is for something else, so neither passes for the other.
const forPermissions = "clawjail:permission"

// standing is what a signed permission says. The columns of its row must say the same: whoever can only write to the
// database makes no permission, changes none, and gives none to another agent.
type standing struct {
	Issuer        string    `json:"iss"`
	Audience      string    `json:"aud"`
	ID            string    `json:"jti"`
	Tenant        string    `json:"tenant"`
	Agent         string    `json:"agent"`
	Domain        string    `json:"domain"`
	CreatedAt     time.Time `json:"created_at"`
	ExpiresAt     time.Time `json:"expires_at"`
	Account       string    `json:"account"`
	AgentName     string    `json:"agent_name"`
	Access        Access    `json:"access"`
	EgressDomains []string  `json:"egress_domains,omitempty"`
	Ask           Ask       `json:"ask"`
	Hours         Hours     `json:"hours,omitempty"`
	Left          *int      `json:"left,omitempty"`
	Used          int       `json:"used,omitempty"`
	Answered      bool      `json:"answered,omitempty"`
	Declared      bool      `json:"declared,omitempty"`
	By            string    `json:"by"`
	LastUsedAt    time.Time `json:"last_used_at,omitzero"`
	ApprovedUntil time.Time `json:"approved_until,omitzero"`
}

// body is what the entry of a permission holds.
type body struct {
	Signed string `json:"signed"`
}

// write is the entry of a permission, signed.
func (i *Issuer) write(p Permission, now time.Time) (store.Entry, error) {
	token, err := i.o.Keys.write(standing{Issuer: "clawjail:" + i.o.Installation, Audience: forPermissions, ID: p.ID, Tenant: p.Tenant, Agent: p.Agent,
		Domain: p.Domain, CreatedAt: p.CreatedAt, ExpiresAt: p.ExpiresAt, Account: p.account, AgentName: p.AgentName, Access: p.Access,
		EgressDomains: p.EgressDomains, Ask: p.Ask, Hours: p.Hours, Left: p.Left, Used: p.Used, Answered: p.answered, Declared: p.Declared, By: p.By,
		LastUsedAt: p.LastUsedAt, ApprovedUntil: p.ApprovedUntil})
	if err != nil {
		return store.Entry{}, fmt.Errorf("sign a permission: %w", err)
	}
	text, err := json.Marshal(body{Signed: token.Reveal()})
	return store.Entry{ID: p.ID, Kind: KindPermission, Tenant: p.Tenant, Agent: p.Agent, Name: p.Domain, Body: text, Version: p.version,
		CreatedAt: p.CreatedAt, UpdatedAt: now, ExpiresAt: p.ExpiresAt}, err
}

// readPermission verifies an entry. One that is not signed here, or that another version has written with more in it,
// permits nothing: what this one does not know may be what limits it.
func (i *Issuer) readPermission(e store.Entry) (Permission, error) {
	var b body
	var s standing
	if err := strict(e.Body, &b); err != nil {
		return Permission{}, fmt.Errorf("the permission %s is not what this version writes", e.ID)
	}
	if err := i.o.Keys.open(ParseToken(b.Signed), &s); err != nil {
		return Permission{}, fmt.Errorf("the permission %s: %w", e.ID, err)
	}
	if s.Issuer != "clawjail:"+i.o.Installation || s.Audience != forPermissions || s.ID != e.ID || s.Tenant != e.Tenant || s.Agent != e.Agent || s.Domain != e.Name ||
		!s.CreatedAt.Equal(e.CreatedAt) || !s.ExpiresAt.Equal(e.ExpiresAt) || s.Tenant == "" || s.Agent == "" {
		return Permission{}, fmt.Errorf("the permission %s is not what was signed", e.ID)
	}
	return Permission{ID: s.ID, Tenant: s.Tenant, Domain: s.Domain, Agent: s.Agent, AgentName: s.AgentName, Access: s.Access, EgressDomains: s.EgressDomains,
		Ask: s.Ask, Hours: s.Hours, Left: s.Left, Used: s.Used, answered: s.Answered, Declared: s.Declared, By: s.By, CreatedAt: e.CreatedAt,
		LastUsedAt: s.LastUsedAt, ExpiresAt: e.ExpiresAt, ApprovedUntil: s.ApprovedUntil, account: s.Account, version: e.Version}, nil
}

// PermissionRequest is what an operator permits for many sessions.
type PermissionRequest struct {
	// ID is that of a new permission, for who has to know it before; one is chosen where it is empty.
	ID     string
	Tenant string
	// Operator is who permits it, and Agent with AgentName to whom.
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
	limits := &problem.Many{Code: problem.BadLimit}
	if r.Times != nil && (*r.Times < 1 || *r.Times > maxTimes) {
		limits.Add("times", "is %d, and must be from 1 to %d", *r.Times, maxTimes)
	}
	if r.For < 0 || r.For > maxFor || r.For > 0 && r.For < time.Second {
		limits.Add("for", "is %s, and must be from 1s to %s", r.For, maxFor)
	}
	rest := &problem.Many{Code: problem.BadRequest}
	if p, bad := problem.As(r.Hours.Validate()); bad {
		rest.AddFlaw(problem.Flaw{Field: "hours", Message: p.Message, Hint: p.Hint})
	}
	ask := cmp.Or(r.Ask, AskNever)
	if !slices.Contains([]Ask{AskNever, AskFirst, AskAlways}, ask) {
		rest.Add("ask", "is %s, and must be first, always or never", quote(string(ask)))
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

// ParseFor reads for how long a permission is: a duration as Go writes it, or a number of days such as 30d. Empty is for good.
func ParseFor(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if days, found := strings.CutSuffix(text, "d"); found {
		var n int
		n, err = strconv.Atoi(days)
		d = time.Duration(min(n, 1000)) * 24 * time.Hour
	}
	if err != nil || d < time.Second || d > maxFor {
		return 0, problem.New(problem.BadLimit, "write a number with d, h or m, such as 30d; leave it out for good", "%s is not a time from 1s to 366d", quote(text))
	}
	return d, nil
}

// CheckPermission says what would keep [Issuer.Allow] from permitting something, as far as the request itself goes.
func (i *Issuer) CheckPermission(r PermissionRequest) error {
	_, err := i.permission(r)
	return err
}

// Allow gives a permission. What the agent was permitted with the account before is replaced, but what was counted stays,
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
	unread := errors.New("there is none")
	if at >= 0 {
		old, unread = i.readPermission(all[at])
	}
	if unread == nil && old.account == made.account {
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
	} else if len(all) >= maxPermissions {
		return Permission{}, "", problem.New(problem.BadLimit, "see which nobody uses, and take them back: clawjail cookies allowed",
			"there are %d permissions already, which is as many as a tenant may have", len(all))
	}
	e, err := i.write(made, made.CreatedAt)
	if err == nil {
		err = i.o.Store.CreateEntry(ctx, e)
	}
	switch {
	case errors.Is(err, store.ErrExists):
		err = problem.Wrap(err, problem.Conflict, "look at what there is now: clawjail cookies allowed", "somebody else has just permitted it")
	case errors.Is(err, store.ErrNotFound):
		err = problem.Wrap(err, problem.NotFound, "list them: clawjail agent ls", "the agent is not there")
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

// Disallow takes a permission back. Nobody opens a session with it when it returns; the caller ends those that are open.
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

// Permissions lists those of a tenant, by domain and then by agent; those of all tenants when tenant is empty. What cannot
// be read is not among them, and permits nothing.
func (i *Issuer) Permissions(ctx context.Context, tenant string) ([]Permission, error) {
	entries, err := i.o.Store.ListEntries(ctx, KindPermission)
	if err != nil {
		return nil, fmt.Errorf("list permissions: %w", err)
	}
	return i.readable(slices.DeleteFunc(entries, func(e store.Entry) bool { return tenant != "" && e.Tenant != tenant })), nil
}

// PermissionsOf lists those of one agent.
func (i *Issuer) PermissionsOf(ctx context.Context, tenant, agent string) ([]Permission, error) {
	entries, err := i.o.Store.AgentEntries(ctx, KindPermission, tenant, agent)
	if err != nil {
		return nil, fmt.Errorf("list the permissions of an agent: %w", err)
	}
	return i.readable(entries), nil
}

func (i *Issuer) readable(entries []store.Entry) []Permission {
	var out []Permission
	for _, e := range entries {
		if p, err := i.readPermission(e); err == nil {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Permission) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.AgentName, b.AgentName), cmp.Compare(a.Tenant, b.Tenant))
	})
	return out
}

// SignPermissions signs all permissions with the key that signs now: one that was rotated away verifies for a day.
func (i *Issuer) SignPermissions(ctx context.Context) error {
	all, err := i.Permissions(ctx, "")
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range all {
		if _, err := i.changePermission(ctx, p.ID, func(*Permission) error { return nil }); problem.CodeOf(err) != problem.NotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// PermissionStands says whether a permission is still there: other processes take permissions back too. That its
// time is over ends no session.
func (i *Issuer) PermissionStands(ctx context.Context, id string) (bool, error) {
	_, err := i.o.Store.Entry(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Standing is what permissions let one session do: nothing was changed for it yet.
type Standing struct {
	// Grant is the one that [Issuer.UsePermissions] makes.
	Grant Grant
	// Permissions are one for each domain, in the order of what is wanted.
	Permissions []Permission
	// Asks are the domains about which a person has to be asked first.
	Asks []string
}

// IDs are those of the permissions.
func (s Standing) IDs() []string {
	var out []string
	for _, p := range s.Permissions {
		out = append(out, p.ID)
	}
	return out
}

// For says whether it is about the account that a domain has, by the id of its cookie set.
func (s Standing) For(domain, account string) bool {
	return slices.ContainsFunc(s.Permissions, func(p Permission) bool { return p.Is(domain, account) })
}

// Permitted says whether an agent may open a session without a grant of its own, and changes nothing. The code is
// account_not_allowed when it may not.
func (i *Issuer) Permitted(ctx context.Context, want Want) (Standing, error) {
	if want.Agent == "" || len(want.Domains) == 0 {
		return Standing{}, refuse(problem.GrantMissing)
	}
	all, err := i.PermissionsOf(ctx, want.Tenant, want.Agent)
	if err != nil {
		return Standing{}, err
	}
	now := i.o.Now()
	var out Standing
	request := Request{Tenant: want.Tenant, Domains: want.Domains, Access: want.Access, Origin: want.Caller}
	for _, domain := range want.Domains {
		p := find(all, want.Agent, domain)
		if p == nil {
			return Standing{}, NotAllowed(domain, "you may not use the account of %s without a grant", domain)
		}
		asks, err := p.good(want.Access, now)
		if err != nil {
			return Standing{}, err
		}
		if asks {
			out.Asks = append(out.Asks, domain)
		}
		out.Permissions = append(out.Permissions, *p)
		request.EgressDomains = append(request.EgressDomains, p.EgressDomains...)
		request.Operator = cmp.Or(request.Operator, p.By)
	}
	var wrong []*problem.Many
	out.Grant, wrong = i.row(request)
	if err := flaws(wrong...); err != nil {
		return Standing{}, fmt.Errorf("the permissions together are more than one grant can be: %w", err)
	}
	return out, nil
}

// NotAllowed is what an agent is told that may not use an account.
func NotAllowed(domain, format string, args ...any) *problem.Error {
	return problem.New(problem.AccountNotAllowed, "ask for it with request_access, kind account and target "+domain+
		"; or let an operator permit it: clawjail cookies allow "+domain+" --agent NAME", format, args...).With("domain", domain)
}

// Is says whether it is about the account that a domain has, by the id of its cookie set.
func (p Permission) Is(domain, account string) bool {
	return p.Domain == domain && p.account == account
}

// Expired says whether its time is over.
func (p Permission) Expired(now time.Time) bool {
	return !p.ExpiresAt.IsZero() && !now.Before(p.ExpiresAt)
}

// good says why a permission lets no session be opened now, or that a person has to be asked first.
func (p Permission) good(access Access, now time.Time) (asks bool, err error) {
	approved := now.Before(p.ApprovedUntil)
	switch {
	case p.Expired(now):
		return false, NotAllowed(p.Domain, "the permission to use the account of %s ended at %s", p.Domain, p.ExpiresAt.Format(time.RFC3339))
	case !p.Access.Covers(access):
		return false, NotAllowed(p.Domain, "the permission to use the account of %s is for access %s, and not %s", p.Domain, p.Access, quote(string(access)))
	case approved:
		return false, nil
	case p.Left != nil && *p.Left < 1:
		return false, NotAllowed(p.Domain, "the permission to use the account of %s was used as often as it may be", p.Domain)
	case !p.Hours.contain(now):
		return false, NotAllowed(p.Domain, "the account of %s may be used in the hours %s (UTC), and now it is %s", p.Domain, p.Hours, now.UTC().Format("15:04"))
	}
	return p.Ask == AskAlways || p.Ask == AskFirst && !p.answered, nil
}

// UsePermissions counts a use of each permission, and makes the grant, used already: nobody else can ever have it. Of all
// calls for a permission that is good for one session more, at most one succeeds. After an error a use may be counted
// that was none.
func (i *Issuer) UsePermissions(ctx context.Context, s Standing, want Want) (Grant, error) {
	if want.Session == "" || len(s.Permissions) == 0 {
		return Grant{}, errors.New("use a permission: there is no session to use it, or no permission")
	}
	now := store.Microsecond(i.o.Now())
	for _, p := range s.Permissions {
		_, err := i.changePermission(ctx, p.ID, func(p *Permission) error {
			asks, err := p.good(want.Access, now)
			if err != nil {
				return err
			}
			if asks {
				return NotAllowed(p.Domain, "the use of the account of %s has to be approved by a person first", p.Domain)
			}
			if p.Left != nil && *p.Left > 0 {
				left := *p.Left - 1
				p.Left = &left
			}
			p.Used++
			p.LastUsedAt, p.ApprovedUntil, p.answered = now, time.Time{}, true
			return nil
		})
		if problem.CodeOf(err) == problem.NotFound {
			err = NotAllowed(p.Domain, "the permission to use the account of %s was taken back", p.Domain)
		}
		if err != nil {
			return Grant{}, err
		}
	}
	g := s.Grant
	g.UsedAt, g.UsedBy = now, want.Session
	if err := i.o.Store.CreateGrant(ctx, g); err != nil {
		return Grant{}, fmt.Errorf("keep the grant of a permission: %w", err)
	}
	return g, nil
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
	return Permission{}, problem.New(problem.Conflict, "try again", "too many use the permission at the same time")
}
