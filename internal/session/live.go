package session

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/vault"
)

// ModeRefresh is the mode of a session in which a person logs in, for cookies to be kept.
const ModeRefresh = "refresh"

// RefreshLife is how long a refresh session lives.
const RefreshLife = 30 * time.Minute

// Control says that a person has a session's browser in hand. Nobody else uses it meanwhile.
type Control struct {
	By    string    `json:"by" doc:"as the audit log names principals"`
	Name  string    `json:"name,omitempty"`
	Since time.Time `json:"since"`
}

// LiveBrowser is the part of a browser that is watched. *browser.Live is one.
type LiveBrowser interface {
	Watch() *browser.Viewer
	Hold(ctx context.Context) error
	LetGo(ctx context.Context) error
	Renew(ctx context.Context) error
	Secrets(ctx context.Context) ([]string, error)
	Do(ctx context.Context, in browser.LiveInput) (copied string, err error)
	Thumbnail(ctx context.Context) ([]byte, error)
}

// Sight is something new to show. One of Frame, State and Control is new; Controlled goes with Control.
type Sight struct {
	Frame *browser.Frame
	State *browser.LiveState
	// Changed says that who is in control has changed: to Control, nil for nobody. Mine says that it is this viewer's principal.
	Changed bool
	Control *Control
	Mine    bool
}

// Live is one who watches a session live, and may steer it while their principal is in control. It ends with the session,
// with its principal's key or token, and with Close.
type Live struct{}

// Watch adds a viewer to a session: of a refresh session only who has opened it.
func (s *Service) Watch(ctx context.Context, by identity.Principal, id string) (*Live, error) {
	panic("contract")
}

// Next waits for something new to show. One goroutine calls it. See [browser.Viewer.Next].
func (l *Live) Next(ctx context.Context) (Sight, error) { panic("contract") }

// Shown says that the last frame was drawn.
func (l *Live) Shown() {}

// Visible says whether anybody looks.
func (l *Live) Visible(visible bool) {}

// Input does one thing. The code is taken_over when another is in control, and conflict when nobody is. Nothing of it is
// logged or recorded.
func (l *Live) Input(ctx context.Context, in browser.LiveInput) (copied string, err error) {
	panic("contract")
}

// Close ends it. It may be called twice.
func (l *Live) Close() error { panic("contract") }

// TakeOver gives a session's browser to a person. DevTools clients are cut and requests in flight end, both with the code
// taken_over, as everything does that they ask until the browser is handed back; the recording pauses; pages in which a script of
// theirs may be are loaded anew. Somebody who has it already is a conflict, unless force.
func (s *Service) TakeOver(ctx context.Context, by identity.Principal, id string, force bool) (Session, error) {
	panic("contract")
}

// HandBack ends it. While a password field has text in it the code is conflict, unless anyway: whoever used the session
// before could read it.
func (s *Service) HandBack(ctx context.Context, by identity.Principal, id string, anyway bool) (Session, error) {
	panic("contract")
}

// Thumbnail is a small picture (JPEG) of a session that is ready, at most some seconds old. The code is not_found while a person has it.
func (s *Service) Thumbnail(ctx context.Context, by identity.Principal, id string) ([]byte, time.Time, error) {
	panic("contract")
}

// RefreshRequest asks for a session to log in with.
type RefreshRequest struct {
	Tenant string
	// Domain is the registrable domain to log in to; URL is where to begin, https://DOMAIN/ when it is left out.
	Domain, URL string
}

// OpenRefresh opens a session in which a person logs in to a site: the full browser, the public web, never recorded, steered by
// nobody but who opened it, and gone after RefreshLife.
func (s *Service) OpenRefresh(ctx context.Context, by identity.Principal, r RefreshRequest) (Session, error) {
	panic("contract")
}

// Seen is what a refresh session has seen of the web so far.
type Seen struct {
	// Sites are the registrable domains that have set cookies, those that were logged in to first.
	Sites []SeenSite `json:"sites" nullable:"false"`
	// Hosts are other hosts that the pages used, which have set none: they are proposed as egress_domains.
	Hosts []string `json:"hosts" nullable:"false"`
}

// SeenSite is one domain with its cookies, which have no values here.
type SeenSite struct {
	Domain  string             `json:"domain"`
	Cookies []vault.CookieInfo `json:"cookies" nullable:"false"`
	// Stored says that there is an account of that domain already.
	Stored bool `json:"stored"`
}

// Seen says what a refresh session has seen. Who may refresh may ask.
func (s *Service) Seen(ctx context.Context, by identity.Principal, id string) (Seen, error) {
	panic("contract")
}

// IssuedToken is a token for a session without the token.
type IssuedToken struct {
	ID        string    `json:"id"`
	Scope     Scope     `json:"scope" enum:"view,control,cdp"`
	By        string    `json:"by"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Tokens lists the tokens of a session that are good.
func (s *Service) Tokens(ctx context.Context, by identity.Principal, id string) ([]IssuedToken, error) {
	panic("contract")
}

// RevokeToken ends one, and what is open with it.
func (s *Service) RevokeToken(ctx context.Context, by identity.Principal, id, token string) error {
	panic("contract")
}
