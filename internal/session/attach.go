package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp/guard"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxAttached is how many DevTools clients one session may have at a time.
	maxAttached = 20
	// maxRefused is how many refused commands of one client are put on record.
	maxRefused = 50
	// filmEvery is how often a recording for audit looks at what a client does.
	filmEvery = time.Second
)

var errTokenEnded = problem.New(problem.Unauthorized, "make a new one", "the token has expired")

// attachment is a DevTools client of a session, as its user has it.
type attachment struct {
	Devtools
	s       *Service
	r       *session
	by      identity.Principal
	record  audit.Pending
	unwatch atomic.Pointer[func()] // what awaits the end of its principal's key

	sent, refused atomic.Int64
	changed       atomic.Int64  // commands since the last picture that change what the page shows
	browser       Browser       // for pictures of what it does; nil when it is not filmed
	filmed        chan struct{} // closed when no more pictures of what it did are taken by themselves
	closed        atomic.Bool
	// cutFor is why it was ended by neither its user nor its browser; nil while it was not.
	cutFor atomic.Pointer[error]
}

// Attach adds a DevTools client to a session. Everything that it sends and receives passes the guard: it can drive the
// browser and cannot read the accounts. It is use of the session for as long as it is attached. It ends with ctx's principal's token, with the session, and with Close; the
// session does not end with it.
func (svc *Service) Attach(ctx context.Context, by identity.Principal, id string) (Devtools, error) {
	ctx, s, b, done, err := svc.use(ctx, by, identity.SessionAttach, id)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := svc.mayAttach(s, by, identity.SessionAttach); err != nil {
		return nil, err
	}
	record, err := svc.Records.Begin(ctx, svc.intent(s, by.Actor(), string(identity.SessionAttach), "", audit.Fields{"scope": string(by.Scope)}))
	if err != nil {
		return nil, err
	}
	a := &attachment{s: svc, r: s, by: by, record: record, filmed: make(chan struct{})}
	if err := a.enter(); err != nil {
		record.End(outcome(err, nil))
		return nil, err
	}
	o := guard.Options{Mode: guard.Clean, Scrub: s.values, Refused: a.noteRefused, Seen: a.noteSeen}
	if s.plan.mode == ModeOperator {
		o.Mode = guard.Operator
	}
	client, err := b.Attach(ctx, o)
	if err != nil {
		err = svc.why(ctx, s, err)
		a.leave()
		record.End(outcome(err, nil))
		return nil, err
	}
	if err := a.begin(b, client); err != nil {
		record.End(outcome(err, nil))
		return nil, err
	}
	unwatch := by.Ended(svc.Now, func() { a.cut(errTokenEnded) })
	a.unwatch.Store(&unwatch)
	if a.closed.Load() { // by a person who has taken over, meanwhile
		unwatch()
	}
	svc.Log.Info("DevTools client attached", "session", id, "by", by.Actor())
	return a, nil
}

// Devtools describes the browser that a DevTools client would attach to. The caller needs the right to attach.
func (svc *Service) Devtools(ctx context.Context, by identity.Principal, id string) (browser.Version, error) {
	_, s, b, done, err := svc.use(ctx, by, identity.SessionAttach, id)
	if err != nil {
		return browser.Version{}, err
	}
	defer done()
	if err := svc.mayAttach(s, by, identity.SessionAttach); err != nil {
		return browser.Version{}, err
	}
	return b.Version(), nil
}

// enter counts the client among the session's.
func (a *attachment) enter() error {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	switch {
	case a.r.state != StateReady:
		return endingProblem(a.r.id)
	case a.r.takeover != nil:
		// Not the person either: what is attached sees every key.
		return takenOver(a.r)
	case !a.s.tokenGood(a.by):
		return errTokenRevoked
	case len(a.r.attached) >= maxAttached:
		return problem.New(problem.RateLimited, "disconnect one", "session %s has %d DevTools clients, and more are not allowed", a.r.id, maxAttached)
	}
	a.r.attached[a] = struct{}{}
	a.r.scripted = true
	return nil
}

// begin makes it the user's, unless its end was asked for while it was being made.
func (a *attachment) begin(b Browser, client Devtools) error {
	a.s.mu.Lock()
	why := a.cutFor.Load()
	if why == nil {
		a.Devtools = client
		a.filming(b)
	}
	a.s.mu.Unlock()
	if why == nil {
		return nil
	}
	a.leave()
	return errors.Join(*why, client.Close())
}

func (a *attachment) leave() {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	delete(a.r.attached, a)
	a.r.used = a.s.Now()
}

// Send implements Devtools.
func (a *attachment) Send(ctx context.Context, frame []byte) error {
	a.sent.Add(1)
	return a.Devtools.Send(ctx, frame)
}

// SendFrom implements Devtools.
func (a *attachment) SendFrom(ctx context.Context, r io.Reader) error {
	a.sent.Add(1)
	return a.Devtools.SendFrom(ctx, r)
}

// Err implements Devtools.
func (a *attachment) Err() error {
	err := a.Devtools.Err()
	switch {
	case err == nil:
		return nil
	case a.cutFor.Load() != nil:
		return *a.cutFor.Load()
	}
	// The pipe of a session that ends is closed before it is said that it ends.
	return a.s.why(context.Background(), a.r, err)
}

// Close implements Devtools.
func (a *attachment) Close() error {
	if a.browser != nil && !a.closed.Load() && !a.r.over() {
		if err := a.frame(); err != nil {
			a.s.Log.Error("record the end of a DevTools client", "session", a.r.id, "error", err)
		}
	}
	err := a.Devtools.Close()
	if a.closed.Swap(true) {
		return err
	}
	if unwatch := a.unwatch.Load(); unwatch != nil {
		(*unwatch)()
	}
	a.leave()
	a.record.End(outcome(nil, audit.Fields{"commands": a.sent.Load(), "refused": a.refused.Load()}))
	if a.r.over() {
		return nil // the browser does not answer any more, and need not
	}
	return err
}

// cut ends a client whose user has not asked for it, and returns when nothing of it is done any more. Its user is told why
// by the end of the client.
func (a *attachment) cut(why error) {
	a.cutFor.CompareAndSwap(nil, &why)
	if err := a.Devtools.Close(); err != nil && !a.r.over() {
		a.s.Log.Error("detach a DevTools client", "session", a.r.id, "error", err)
	}
	_ = a.Close() // which has the same error again
	<-a.filmed
}

// noteRefused puts a command on record that the guard has refused, or that was answered in the browser's place.
func (a *attachment) noteRefused(method, reason string) {
	if a.refused.Add(1) > maxRefused {
		return
	}
	_ = a.s.refuse(a.r, a.by, identity.SessionAttach, method, problem.New(problem.MethodDenied, "", "%s", reason)) // it is noted
}

// noteSeen counts what may change the page. It runs in the way of every command.
func (a *attachment) noteSeen(method string) {
	if !looks(method) {
		a.changed.Add(1)
		a.r.watch.poke()
	}
}

// looks says whether a command only looks, or says what is to be told. Every other one counts: scripts are run, and
// pages changed, in more ways than a list of them would have.
func looks(method string) bool {
	domain, name, _ := strings.Cut(method, ".")
	switch domain {
	case "Accessibility", "DOMSnapshot", "IO", "Log", "Overlay", "Performance", "Profiler", "Tracing":
		return true
	}
	for _, verb := range []string{"enable", "disable", "get", "describe", "capture", "query", "resolve", "request", "release"} {
		if strings.HasPrefix(name, verb) {
			return true
		}
	}
	switch method {
	case "Runtime.runIfWaitingForDebugger", "Runtime.addBinding", "Page.createIsolatedWorld", "Page.setLifecycleEventsEnabled",
		"Page.screencastFrameAck", "Page.startScreencast", "Page.stopScreencast", "Page.printToPDF",
		"Target.setAutoAttach", "Target.setDiscoverTargets", "Target.attachToTarget", "Target.attachToBrowserTarget", "Target.detachFromTarget":
		return true
	}
	return false
}

// filming begins the pictures of what a client does, in a session that is recorded for audit.
func (a *attachment) filming(b Browser) {
	if a.r.plan.record != RecordAudit {
		close(a.filmed)
		return
	}
	a.browser = b
	a.s.tasks.Go(func() { // ends with the client
		defer close(a.filmed)
		a.film()
	})
}

// film keeps a picture of what a client does, about one a second while it does something.
func (a *attachment) film() {
	tick := time.NewTicker(filmEvery)
	defer tick.Stop()
	for {
		select {
		case <-a.Devtools.Done():
			return
		case <-tick.C:
		}
		if err := a.frame(); err != nil {
			// Use that cannot be recorded is not allowed: the client ends here.
			a.s.Log.Error("record a DevTools client", "session", a.r.id, "error", err)
			_ = a.Devtools.Close() // it is told by its end
			return
		}
	}
}

// frame keeps a picture of what the client has done since the last one, if it has done anything.
func (a *attachment) frame() error {
	n := a.changed.Swap(0)
	if n == 0 {
		return nil
	}
	return a.s.taped(context.Background(), a.r, a.by, a.browser, filmed{commands: n}, func() (any, error) { return nil, nil })
}

// filmed stands for what a client has done since the last picture.
type filmed struct {
	browser.Screenshot
	commands int64
}

// Tool implements browser.Operation.
func (filmed) Tool() string { return "cdp" }

// Target implements browser.Operation.
func (f filmed) Target() string { return fmt.Sprintf("%d commands", f.commands) }

// Effect implements browser.Operation.
func (filmed) Effect() browser.Effect { return browser.Steers }
