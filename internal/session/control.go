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

// errTakenOver is the cause with which requests end whose period is over.
var errTakenOver = errors.New("a person has taken the session over")

// takeover is the person who has taken over a session's browser. settled and step are guarded by Service.mu.
type takeover struct {
	by    identity.Principal
	since time.Time
	// settled says that the person may use the browser: no take-over and no hand-back goes on.
	settled bool
	step    int // of the recording; 0 when it is not recorded
}

// of says whether it is a principal's: the same one, with the same key or token.
func (t *takeover) of(by identity.Principal) bool { return t != nil && samePerson(t.by, by) }

// samePerson says whether two principals are one. The holder of a token for a session is another one than the token's maker.
func samePerson(a, b identity.Principal) bool {
	return a.Actor() == b.Actor() && a.SessionToken == b.SessionToken && (a.Scope == "") == (b.Scope == "")
}

// usePeriod is a time in which the same people may use a session's browser, or a token is valid. using and over are guarded by
// Service.mu.
type usePeriod struct {
	ctx   context.Context // ends with the period
	end   context.CancelCauseFunc
	using int // how many uses there are
	over  bool
	idle  chan struct{} // closed when the period is over and its last use has ended
}

func newUsePeriod() *usePeriod {
	ctx, end := context.WithCancelCause(context.Background())
	return &usePeriod{ctx: ctx, end: end, idle: make(chan struct{})}
}

// finish ends the period, once: what is under way ends with the cause. The caller holds Service.mu.
func (u *usePeriod) finish(cause error) {
	if u.over {
		return
	}
	u.over = true
	u.end(cause)
	if u.using == 0 {
		close(u.idle)
	}
}

// leave says that a use is over. The caller holds Service.mu.
func (u *usePeriod) leave() {
	u.using--
	if u.over && u.using == 0 {
		close(u.idle)
	}
}

// within is a context that ends with the period too, and with its cause.
func (u *usePeriod) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(u.ctx, func() { cancel(context.Cause(u.ctx)) })
	return ctx, func() { stop(); cancel(nil) }
}

// endedByTakeover says whether a context ended because a person took the session over.
func endedByTakeover(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errTakenOver) }

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
	return s.takeover != nil && s.takeover.settled
}

// controlOf is a takeover as it is shown. The caller holds svc.mu.
func controlOf(t *takeover) *Control {
	if t == nil {
		return nil
	}
	return &Control{By: t.by.Actor(), Name: t.by.Name, Since: t.since}
}

// whoHas names for people who has a session in hand.
func whoHas(t *takeover) string {
	if t.by.Name != "" && t.by.Name != t.by.Actor() {
		return fmt.Sprintf("%s (%s)", t.by.Name, t.by.Actor())
	}
	return t.by.Actor()
}
