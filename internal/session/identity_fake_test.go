package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// rights is the real table of who may do what, without keys.
type rights struct{ w *fixture }

func (a rights) AuthorizeWith(_ context.Context, p identity.Principal, op identity.Operation, object identity.Object) error {
	return identity.CanWith(p, op, object)
}

func (a rights) CountTenants(context.Context, string) (int, error) { return a.Counted(), nil }

func (a rights) Counted() int { return max(1, a.w.tenants) }

func (a rights) OperatorMode(ctx context.Context, tenant string) error {
	return a.w.step(ctx, "operator mode")
}

func (a rights) AccountPermissions(ctx context.Context, tenant string) error {
	return a.w.step(ctx, "account permissions")
}

func (a rights) WatchValidity(ctx context.Context, p identity.Principal, cancel context.CancelCauseFunc) (func(), error) {
	if err := a.w.step(ctx, "hold"); err != nil {
		return nil, err
	}
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if a.w.held == nil {
		a.w.held = map[string]context.CancelCauseFunc{}
	}
	a.w.holds++
	key := fmt.Sprint(p.Actor(), a.w.holds)
	a.w.held[key] = cancel
	return func() {
		a.w.mu.Lock()
		defer a.w.mu.Unlock()
		delete(a.w.held, key)
	}, nil
}

// revoke cuts whatever is held.
func (w *fixture) revoke() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, cancel := range w.held {
		cancel(errors.New("the key was revoked"))
	}
}

// records is an audit log in memory: one line per record.
type records struct {
	audit.Records
	w *fixture
}

func (r records) say(format string, args ...any) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	r.w.trail = append(r.w.trail, text)
	r.w.log = append(r.w.log, text)
}

func (r records) Begin(ctx context.Context, i audit.Intent) (audit.Pending, error) {
	if err := errors.Join(i.Detail.Err(), r.w.step(ctx, "record "+i.Action)); err != nil {
		return nil, err
	}
	r.say("intent %s %s %s %s %s", i.Action, i.Tenant, i.Actor, i.Target, i.Detail)
	return &line{records: r, action: i.Action}, nil
}

func (r records) BeginEnding(i audit.Intent) audit.Pending {
	r.say("ending %s %s %s %s", i.Action, i.Tenant, i.Actor, i.Detail)
	return &line{records: r, action: i.Action}
}

func (r records) Note(e audit.Event) {
	r.say("event %s %s %s %s", e.Action, e.Result, e.Target, e.Detail)
	if err := e.Detail.Err(); err != nil {
		r.w.t.Errorf("the detail of %s: %v", e.Action, err)
	}
}

type line struct {
	records
	action string
	ended  bool
}

func (l *line) End(o audit.Outcome) {
	if l.ended {
		return
	}
	l.ended = true
	if err := o.Detail.Err(); err != nil {
		l.w.t.Errorf("the detail of %s: %v", l.action, err)
	}
	l.say("outcome %s %s %s", l.action, o.Result, o.Detail)
}

// noAccounts is a vault, grants and leases that nobody should ask.
type noAccounts struct{}

var errNoAccounts = errors.New("nobody should ask for accounts here")

func (noAccounts) Verify(context.Context, grant.Token, grant.Want) (grant.Grant, error) {
	return grant.Grant{}, errNoAccounts
}
func (noAccounts) Use(context.Context, grant.Token, grant.Want) (grant.Grant, error) {
	return grant.Grant{}, errNoAccounts
}
func (noAccounts) Permitted(context.Context, grant.Want) (grant.Standing, error) {
	return grant.Standing{}, errNoAccounts
}
func (noAccounts) UsePermissions(context.Context, grant.Standing, grant.Want) (grant.Grant, error) {
	return grant.Grant{}, errNoAccounts
}
func (noAccounts) PermissionStands(context.Context, string, grant.Access) (bool, error) {
	return false, errNoAccounts
}
func (noAccounts) Cookies(context.Context, string, string) (vault.CookieSet, error) {
	return vault.CookieSet{}, errNoAccounts
}
func (noAccounts) UseLogin(context.Context, string, string, func(weblogin.Login) error) error {
	return errNoAccounts
}
func (noAccounts) LeaseCookieSets(context.Context, store.Lease, []string) ([]string, error) {
	return nil, errNoAccounts
}
func (noAccounts) ReleaseLeases(context.Context, string) error { return errNoAccounts }
func (noAccounts) MarkSignedOut(context.Context, string, string, store.SignedOut) error {
	return errNoAccounts
}
func (noAccounts) MarkInjected(context.Context, string, string, time.Time) error {
	return errNoAccounts
}
