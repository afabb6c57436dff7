package browser

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/inspector"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// navigationTimeout is how long a navigation may take when the caller does not say.
	navigationTimeout = 20 * time.Second
	// minNavigation and maxNavigation bound what the caller may say, in milliseconds.
	minNavigation, maxNavigation = 1000, 120000
	// reactTimeout is how long a page that is to be left may take to react.
	reactTimeout = time.Second
	// answeredTimeout is how long a page that the server has sent may take to be shown, on a machine with much to do.
	answeredTimeout = 10 * time.Second
	// maxReplays bounds how often the events of a page that sends too many are asked for again.
	maxReplays = 5
	// maxDocuments bounds how many documents may take the place of the one that was asked for, each before it has loaded.
	maxDocuments = 20
)

// Result is where a navigation ended.
type Result struct {
	OK bool `json:"ok"`
	// TargetID is the handle of the tab.
	TargetID string `json:"targetId"`
	// URL is the address after all redirects.
	URL   string `json:"url"`
	Title string `json:"title"`
	// Status is the HTTP status of the document, zero where there is none (about:blank).
	Status int `json:"status"`
	// Refused is the code with which the gateway answered in the place of the host: nothing of the host is shown. Over
	// HTTPS such a navigation fails instead. A browser without a gateway has it from the site, if at all.
	Refused string `json:"refused,omitzero"`
	// LoadMS is the time from the request to the load event, in milliseconds.
	LoadMS int64 `json:"loadMs"`
	// Dialogs are what the page asked meanwhile, and what was answered for it.
	Dialogs []Dialog `json:"dialogs,omitempty"`
}

// Tool is "navigate".
func (Navigate) Tool() string { return "navigate" }

// Target is the address.
func (o Navigate) Target() string { return recorded(o.URL) }

// Effect is Steers.
func (Navigate) Effect() Effect { return Steers }

// Validate reports a bad address or timeout.
func (o Navigate) Validate() error {
	flaws := problem.ValidationError{Code: problem.BadRequest}
	timeoutWithin(&flaws, o.TimeoutMS, minNavigation, maxNavigation)
	if err := flaws.Err(); err != nil {
		return err
	}
	_, err := CheckURL(o.URL)
	return err
}

// Limit is the timeout, twenty seconds when there is none.
func (o Navigate) Limit() time.Duration { return limit(o.TimeoutMS, navigationTimeout) }

// Run opens the address in the tab.
func (o Navigate) Run(ctx context.Context, b *Browser) (any, error) {
	return b.navigate(ctx, o.TargetID, o.URL)
}

// navigate opens an address in a tab. A page whose scripts never rest is ended first; where that does not help, the
// tab gets another page of the browser's, under the same handle. A page that opens another one all the time can be quicker
// than what was asked for; it has been stopped then, and is left once more.
func (b *Browser) navigate(ctx context.Context, ref, address string) (Result, error) {
	p, err := b.anyTab(ctx, ref)
	if err != nil {
		return Result{}, err
	}
	p.hurryDialog(ctx)
	if err := p.heal(ctx); err != nil {
		return Result{}, err
	}
	if !p.reacts(ctx) {
		p.hurryDialog(ctx) // one that came meanwhile
		p.quietly(runtime.TerminateExecution.Method)
		if !p.reacts(ctx) {
			if p, err = b.replace(ctx, p); err != nil {
				return Result{}, err
			}
		}
	}
	result, err := p.Navigate(ctx, address)
	switch {
	case errors.Is(err, errRestless):
	case errors.Is(err, errStuck):
		if p, err = b.replace(ctx, p); err != nil {
			return Result{}, err
		}
	default:
		return result, err
	}
	return p.Navigate(ctx, address)
}

// reacts says whether the page's scripts come to rest. A page that does is left alone: the end of scripts would hit
// those of the next page.
func (p *Page) reacts(ctx context.Context) bool {
	if p.crashed() {
		return true // there is nothing that could keep it
	}
	maximum := reactTimeout
	if deadline, ok := ctx.Deadline(); ok {
		maximum = min(maximum, time.Until(deadline)/4)
	}
	asking, cancel := context.WithTimeout(ctx, maximum)
	defer cancel()
	_, err := cdp.Do(asking, p.session, runtime.GetIsolateID, protocol.Empty{})
	// Every other error, the next command will say better.
	return !errors.Is(err, context.DeadlineExceeded)
}

// Result is a *Result.
func (Navigate) Result() any { return new(Result) }

// Navigate opens an address and waits until the page has loaded. Its errors have the codes
//
//   - bad_url: the address is not one that may be opened;
//   - navigation_failed: the page could not be loaded. The detail "net_error" has Chromium's own word for it, and
//     "blocked" is true where a refusal of the gateway or of the browser's policy is what Chromium reports, rather than
//     a server or a name that does not answer;
//   - page_crashed: its process ended while it was loading;
//   - timeout: the page had not loaded before the deadline of ctx, or after twenty seconds, or it had gone on to more
//     than twenty other documents, none of which had loaded. It is stopped then and shows what had arrived;
//   - browser_exited.
func (p *Page) Navigate(ctx context.Context, address string) (Result, error) {
	address, err := CheckURL(address)
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := spare(ctx)
	defer cancel()
	release, err := p.hold(ctx)
	if err != nil {
		return Result{}, explain(err, "navigate")
	}
	defer release()
	p.takeDialogs()
	started := p.b.now()
	answer, err := p.load(ctx, address)
	result := Result{OK: true, Status: answer.status, Refused: answer.refused, LoadMS: p.b.now().Sub(started).Milliseconds()}
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			p.stopLoading()
		}
		return Result{}, explain(err, "navigate")
	}
	if result.URL, result.Title, err = p.info(ctx); err != nil {
		return Result{}, explain(err, "navigate")
	}
	result.TargetID, result.Dialogs = p.handle(), p.takeDialogs()
	return result, nil
}

// spare takes a little from the time of ctx, so that a page can still be stopped when the rest is over.
func spare(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithTimeout(ctx, navigationTimeout-quietTimeout)
	}
	left := time.Until(deadline)
	return context.WithTimeout(ctx, left-min(quietTimeout, left/10))
}

// load navigates and waits for the load event of whatever document the main frame ends up with.
func (p *Page) load(ctx context.Context, address string) (answered, error) {
	events, err := p.session.Subscribe(page.LifecycleEvent.Method, page.FrameNavigated.Method,
		page.FrameStoppedLoading.Method, network.ResponseReceived.Method, inspector.TargetCrashed.Method)
	if err != nil {
		return answered{}, err
	}
	defer events.Close()
	watch := loading{before: p.loader(), answers: make(map[protocol.LoaderID]answered)}
	started, err := cdp.Do(ctx, p.session, page.Navigate, page.NavigateParams{URL: address})
	switch {
	case err != nil:
		var refused *cdp.Error
		if errors.As(err, &refused) {
			return answered{}, failed(address, refused.Message, err)
		}
		return answered{}, err
	case started.IsDownload:
		return answered{}, problem.New(problem.NavigationFailed, "open a page that is shown, not one that is saved",
			"the address is a download, not a page").With("net_error", started.ErrorText)
	case started.LoaderID == "" && started.ErrorText == "":
		// Another part of the same document: nothing is loaded.
		return answered{}, nil
	}
	watch.frame, watch.wanted, watch.loader = started.FrameID, started.LoaderID, started.LoaderID
	switch started.ErrorText {
	case "":
		return p.follow(ctx, events, &watch)
	case "net::ERR_ABORTED": // which leaves the page before where it is
		return answered{}, failed(address, started.ErrorText, nil)
	}
	return answered{}, failed(cmp.Or(watch.arrive(ctx, events, p.b.now), address), started.ErrorText, nil)
}

// arrive waits until the browser's own page about a failure is there, and returns the address that could not be loaded: another one
// than was asked for where a server has sent the browser on. Until then the page before would be looked at, and no picture could be
// taken. The failure is what the caller is told, so nothing else that happens meanwhile matters.
func (l *loading) arrive(ctx context.Context, events *cdp.Subscription, now func() time.Time) (address string) {
	until := now().Add(answeredTimeout)
	for {
		event, err := nextUntil(ctx, events, until)
		var lost *cdp.LostError
		switch {
		case errors.As(err, &lost):
			continue
		case err != nil:
			return l.unreached
		}
		switch done, _ := l.see(event); {
		case done && l.committed:
			return l.unreached
		case done: // it may be about the document before
			until = now().Add(quietTimeout)
		}
	}
}

// follow reads events until the navigation has come to its end.
func (p *Page) follow(ctx context.Context, events *cdp.Subscription, watch *loading) (answer answered, err error) {
	var doubtful *outcome
	replays := 0
	// While the page before is still there: when it is looked after, and whether its scripts were ended already.
	patience, ended := p.b.now().Add(reactTimeout), false
	for {
		var event cdp.EventMessage
		switch {
		case doubtful != nil:
			event, err = nextUntil(ctx, events, watch.believed(doubtful))
		case !watch.committed && !patience.IsZero():
			event, err = nextUntil(ctx, events, patience)
		default:
			event, err = events.Next(ctx)
		}
		var lost *cdp.LostError
		switch {
		case errors.Is(err, errQuiet) && doubtful == nil:
			// The server has answered, and the page before does not let go.
			switch {
			case ended:
				return answered{}, errStuck
			case p.reacts(ctx):
				patience = time.Time{}
			default:
				p.quietly(runtime.TerminateExecution.Method)
				patience, ended = p.b.now().Add(reactTimeout), true
			}
			continue
		case errors.Is(err, errQuiet):
			return watch.answers[watch.loader], doubtful.err
		case errors.As(err, &lost):
			if replays++; replays > maxReplays {
				return answered{}, problem.Wrap(err, problem.NavigationFailed, "try again, or open a lighter page",
					"the page sent more events than could be followed")
			}
			if err := p.replay(ctx, watch); err != nil {
				return answered{}, err
			}
			continue
		case err != nil:
			return answered{}, err
		}
		done, err := watch.see(event)
		switch {
		case watch.documents > maxDocuments:
			return answered{}, errRestless
		case !done && err == nil:
			if watch.committed {
				doubtful = nil
			}
		case watch.committed:
			return watch.answers[watch.loader], err
		default:
			// It may be about the document before, whose events are still under way.
			doubtful = &outcome{err: err, since: p.b.now()}
		}
	}
}

// outcome is how a navigation seems to have ended.
type outcome struct {
	err   error
	since time.Time
}

var (
	errQuiet = errors.New("nothing more was heard")
	// errStuck says that the page before keeps the process from showing another one.
	errStuck = fmt.Errorf("the page before does not let go: %w", context.DeadlineExceeded)
	// errRestless says that no document stays long enough to load.
	errRestless = fmt.Errorf("the page goes on to another all the time: %w", context.DeadlineExceeded)
)

// nextUntil waits for an event until a moment, and then says errQuiet.
func nextUntil(ctx context.Context, events *cdp.Subscription, until time.Time) (cdp.EventMessage, error) {
	short, cancel := context.WithDeadlineCause(ctx, until, errQuiet)
	defer cancel()
	return events.Next(short)
}

// replay asks for the events of the document that the page has now, after some were lost.
func (p *Page) replay(ctx context.Context, watch *loading) error {
	watch.gap, watch.committed = true, true
	_, err := cdp.Do(ctx, p.session, page.SetLifecycleEventsEnabled, page.SetLifecycleEventsEnabledParams{Enabled: true})
	return err
}

// answered is what came for a document: its HTTP status, and the code of the gateway's refusal where that answered.
type answered struct {
	status  int
	refused string
}

// loading follows one navigation of the main frame through its events.
type loading struct {
	frame     protocol.FrameID
	wanted    protocol.LoaderID // of the document that was asked for
	committed bool              // that document was in the frame
	loader    protocol.LoaderID // of the document that is in the frame, or that will be
	before    protocol.LoaderID // of the document that the page had before
	documents int               // that came after it, before any of them had loaded
	unreached string            // what could not be loaded, where the browser shows a page about that
	gap       bool              // events were lost: the document may be another one
	answers   map[protocol.LoaderID]answered
}

// believed is when an outcome that may be about the document before is taken for the end of this navigation. A document that
// the server has sent by then is on its way into the frame.
func (l *loading) believed(o *outcome) time.Time {
	if _, there := l.answers[l.wanted]; there && o.err == nil {
		return o.since.Add(answeredTimeout)
	}
	return o.since.Add(quietTimeout)
}

func (l *loading) see(event cdp.EventMessage) (done bool, err error) {
	switch event.Method {
	case page.LifecycleEvent.Method:
		var e page.EventLifecycleEvent
		if err := cdp.Decode(event.Params, &e); err != nil {
			return false, err
		}
		expected := e.LoaderID == l.loader || l.gap && l.before != "" && e.LoaderID != l.before
		return e.FrameID == l.frame && expected && e.Name == "load", nil
	case page.FrameNavigated.Method:
		// A page that sends the browser on before it has loaded: its own load event will not come.
		var e page.EventFrameNavigated
		if err := cdp.Decode(event.Params, &e); err != nil {
			return false, err
		}
		if e.Frame != nil && e.Frame.ID == l.frame {
			l.loader = e.Frame.LoaderID
			if l.committed {
				l.documents++
			}
			l.committed = l.committed || l.loader == l.wanted
			if l.unreached = e.Frame.UnreachableURL; l.unreached != "" {
				return false, failed(e.Frame.UnreachableURL, "the page went on to an address that could not be loaded", nil)
			}
		}
	case page.FrameStoppedLoading.Method:
		// window.stop() leaves a document without a load event.
		var e page.EventFrameStoppedLoading
		if err := cdp.Decode(event.Params, &e); err != nil {
			return false, err
		}
		return e.FrameID == l.frame, nil
	case network.ResponseReceived.Method:
		// Only what is needed is decoded: the rest is the server's, and large.
		var e struct {
			RequestID protocol.LoaderID `json:"requestId"`
			LoaderID  protocol.LoaderID `json:"loaderId"`
			FrameID   protocol.FrameID  `json:"frameId"`
			Response  struct {
				Status  int    `json:"status"`
				URL     string `json:"url"`
				Headers struct {
					Refusal string `json:"Clawjail-Refusal"`
				} `json:"headers"`
			} `json:"response"`
		}
		if err := cdp.Decode(event.Params, &e); err != nil {
			return false, err
		}
		// The request of a document has the id of its loader.
		if e.FrameID == l.frame && e.RequestID == e.LoaderID && len(l.answers) < 100 {
			answer := answered{status: e.Response.Status}
			// The gateway takes this field out of what others answer, where it can read that.
			if strings.HasPrefix(e.Response.URL, "http://") {
				answer.refused = bounded(e.Response.Headers.Refusal, 64)
			}
			l.answers[e.LoaderID] = answer
		}
	case inspector.TargetCrashed.Method:
		return false, problem.New(problem.PageCrashed, "try again; a page that needs more memory than the jail has crashes too",
			"the process of the page ended while it was loading")
	}
	return false, nil
}

// failed makes the problem of a navigation that Chromium gave up, from Chromium's own text.
func failed(address, text string, cause error) error {
	text = bounded(text, 200)
	hint := "check the address, and that its server answers"
	switch {
	case blocked(text):
		hint = "the way to this host may be closed by policy: it is not a fault of the page, and trying again does not help"
	case strings.Contains(text, "ERR_CERT_"), strings.Contains(text, "ERR_SSL_"):
		hint = "the server's certificate or its TLS is not in order: see whether its clock, name and authority are; extra_ca trusts one of your own"
	case strings.Contains(text, "TIMED_OUT"):
		hint = "the server did not answer in time: try again later"
	}
	e := problem.Wrap(cause, problem.NavigationFailed, hint, "the page could not be loaded: %s", text)
	return e.With("net_error", text).With("blocked", blocked(text)).With("url", bounded(address, maxURL))
}

// blocked knows the errors by which Chromium reports that something between it and the server said no. The names are
// those of Chromium's net/base/net_error_list.h. A proxy that refuses CONNECT is ERR_TUNNEL_CONNECTION_FAILED whatever
// its reason: a caller that knows the gateway's decision should report that one.
func blocked(text string) bool {
	for _, name := range []string{
		"ERR_TUNNEL_CONNECTION_FAILED",
		"ERR_BLOCKED_BY_ADMINISTRATOR",
		"ERR_BLOCKED_BY_CLIENT",
		"ERR_BLOCKED_BY_LOCAL_NETWORK_ACCESS_CHECKS",
		"ERR_UNSAFE_PORT",
		"ERR_PROXY_AUTH_REQUESTED",
	} {
		if strings.HasSuffix(text, name) {
			return true
		}
	}
	return false
}

// stopLoading leaves the page with what it has, after a deadline that is already over.
func (p *Page) stopLoading() { p.quietly(page.StopLoading.Method) }
