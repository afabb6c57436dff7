package console

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/session"
)

// Sessions opens, shows and steers browsers. *session.Service is one.
type Sessions interface {
	api.Sessions
	Watch(ctx context.Context, by identity.Principal, id string) (*session.Live, error)
	TakeOver(ctx context.Context, by identity.Principal, id string, force bool) (session.Session, error)
	HandBack(ctx context.Context, by identity.Principal, id string, anyway bool) (session.Session, error)
	Thumbnail(ctx context.Context, by identity.Principal, id string) ([]byte, time.Time, error)
	OpenRefresh(ctx context.Context, by identity.Principal, r session.RefreshRequest) (session.Session, error)
	Seen(ctx context.Context, by identity.Principal, id string) (session.Seen, error)
	Tokens(ctx context.Context, by identity.Principal, id string) ([]session.IssuedToken, error)
	RevokeToken(ctx context.Context, by identity.Principal, id, token string) error
	Drive(ctx context.Context, by identity.Principal, id string, op browser.Operation) (any, error)
}

// Identity knows principals and tenants. *identity.Service is one.
type Identity interface {
	api.Identity
	TenantTokens(ctx context.Context, by identity.Principal, tenant string) ([]identity.Token, error)
}

// Rows are the whole audit log. A store.Store has them.
type Rows interface {
	audit.Rows
	// FindAudit is one record; [store.ErrNotFound] when there is none.
	FindAudit(ctx context.Context, id string) (audit.Row, error)
}

// Credentials manages accounts, secrets and grants. *credential.Service is one.
type Credentials interface {
	api.Credentials
	ExpiringSoon(ctx context.Context, by identity.Principal, tenant string) ([]credential.Alert, error)
}

// Egress is what was decided about the way out. *egress.Book is one.
type Egress interface {
	op.Egress
	DeclareSettings(ctx context.Context, by identity.Principal, s egress.Settings) (egress.Settings, error)
	AllSettings(ctx context.Context, by identity.Principal, tenant string) ([]egress.Settings, error)
}

// SignIns knows who is signed in. *signin.Service is one.
type SignIns interface {
	WithKey(ctx context.Context, key string, from signin.From) (cookie string, in signin.SignIn, err error)
	WithLink(ctx context.Context, code string, from signin.From) (cookie string, in signin.SignIn, err error)
	Who(ctx context.Context, cookie string) (identity.Principal, signin.SignIn, error)
	List(ctx context.Context, by identity.Principal, in signin.SignIn) ([]signin.SignIn, error)
	End(ctx context.Context, by identity.Principal, id string) error
	WatchValidity(ctx context.Context, by identity.Principal, in signin.SignIn, cancel context.CancelCauseFunc) (release func(), err error)
	BeginPasskey(ctx context.Context, by identity.Principal, from signin.From) (options []byte, challenge string, err error)
	FinishPasskey(ctx context.Context, by identity.Principal, challenge, name string, response []byte, from signin.From) (signin.Passkey, error)
	BeginSignIn(ctx context.Context, from signin.From) (options []byte, challenge string, err error)
	WithPasskey(ctx context.Context, challenge string, response []byte, from signin.From) (cookie string, in signin.SignIn, err error)
	Passkeys(ctx context.Context, by identity.Principal) ([]signin.Passkey, error)
	RemovePasskey(ctx context.Context, by identity.Principal, id string) error
}

// Health says how the installation is doing, and what in it needs somebody. *health.Service is one.
type Health interface {
	Machine(ctx context.Context) (health.Machine, error)
	Quotas(ctx context.Context, by identity.Principal, tenants ...string) ([]quota.Use, error)
	Attention(ctx context.Context, by identity.Principal) ([]health.Attention, error)
}
