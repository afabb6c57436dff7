package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Control describes a take-over: which person has a session's browser. No other principal uses it meanwhile.
type Control struct {
	By    string    `json:"by" doc:"as the audit log names principals"`
	Name  string    `json:"name,omitempty"`
	Since time.Time `json:"since"`
}

// LiveBrowser is the part of a browser that is watched and steered by people; see [browser.Live].
type LiveBrowser interface {
	Watch() LiveViewer
	Hold(ctx context.Context) error
	LetGo(ctx context.Context) error
	Renew(ctx context.Context) error
	Secrets(ctx context.Context) ([]string, error)
	Do(ctx context.Context, in browser.LiveInput) (copied string, err error)
	Thumbnail(ctx context.Context) ([]byte, error)
}

// LiveViewer is a viewer of a browser's live view. *browser.Viewer is one, with the same promises.
type LiveViewer interface {
	Next(ctx context.Context) (*browser.Frame, *browser.LiveState, error)
	Shown()
	Visible(visible bool)
	Close()
}

// errTakenOver is the cause with which requests end whose turn is over.
var errTakenOver = errors.New("a person has taken the session over")

// takeover is the person who has taken over a session's browser.
type takeover struct {
	by    identity.Principal
	since time.Time
	// firm says that nothing of others is under way any more: what the person does is done. It is not while a take-over or
	// a hand-back goes on.
	firm bool
	step int // of the recording; 0 when it is not recorded
}

// of says whether it is a principal's: the same one, with the same key or token.
func (g *takeover) of(by identity.Principal) bool { return g != nil && samePerson(g.by, by) }

// samePerson says whether two principals are one. The holder of a token for a session is another one than the token's maker.
func samePerson(a, b identity.Principal) bool {
	return a.Actor() == b.Actor() && a.SessionToken == b.SessionToken && (a.Scope == "") == (b.Scope == "")
}

// usePeriod is a time in which the same people may use a session's browser. Its fields are guarded by Service.mu.
type usePeriod struct {
	ctx   context.Context
	end   context.CancelCauseFunc
	using int
	// over is set once; idle is closed when the browser is not used in this turn any more, and will not be.
	over bool
	idle chan struct{}
}

func newUsePeriod() *usePeriod {
	ctx, end := context.WithCancelCause(context.Background())
	return &usePeriod{ctx: ctx, end: end, idle: make(chan struct{})}
}

// finish ends a turn: what is under way ends with the cause. The caller holds Service.mu.
func (t *usePeriod) finish(cause error) {
	if t.over {
		return
	}
	t.over = true
	t.end(cause)
	if t.using == 0 {
		close(t.idle)
	}
}

// leave says that a use is over. The caller holds Service.mu.
func (t *usePeriod) leave() {
	t.using--
	if t.over && t.using == 0 {
		close(t.idle)
	}
}

// within is a context that ends with a turn too, and with its cause.
func (t *usePeriod) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })
	return ctx, func() { stop(); cancel(nil) }
}

// seized says whether a context ended because somebody took the session over.
func seized(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errTakenOver) }

// takenOver is what everybody gets who uses a session that a person has in hand.
func takenOver(s *session) error {
	return problem.Wrap(errTakenOver, problem.TakenOver,
		"wait until it is handed back (`clawjail session show "+s.id+"` says so), then take a new snapshot: the page may have changed",
		"a person has taken over session %s", s.id)
}

// held says whether a person has a session's browser in hand. The caller holds no lock.
func (svc *Service) held(s *session) bool {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return s.takeover != nil && s.takeover.firm
}

// controlOf is a takeover as it is shown. The caller holds svc.mu.
func controlOf(g *takeover) *Control {
	if g == nil {
		return nil
	}
	return &Control{By: g.by.Actor(), Name: g.by.Name, Since: g.since}
}

// whoHas names for people who has a session in hand.
func whoHas(g *takeover) string {
	if g.by.Name != "" && g.by.Name != g.by.Actor() {
		return fmt.Sprintf("%s (%s)", g.by.Name, g.by.Actor())
	}
	return g.by.Actor()
}
