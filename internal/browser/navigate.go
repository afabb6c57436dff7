package browser

import (
	"context"
	"errors"
	"strings"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/inspector"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// navigateTimeout is how long a navigation may take when the caller sets no deadline.
const navigateTimeout = 30 * time.Second

// Result is where a navigation ended.
type Result struct {
	// URL is the address after all redirects.
	URL   string `json:"url"`
	Title string `json:"title"`
	// Status is the HTTP status of the document, zero where there is none (about:blank).
	Status int `json:"status"`
	// LoadMS is the time from the request to the load event, in milliseconds.
	LoadMS int64 `json:"load_ms"`
	// Dialogs are what the page asked meanwhile, and what was answered for it.
	Dialogs []Dialog `json:"dialogs,omitempty"`
}

// Navigate opens an address and waits until the page has loaded. Its errors have the codes
//
//   - bad_url: the address is not one that may be opened;
//   - navigation_failed: the page could not be loaded. The detail "net_error" has Chromium's own word for it, and
//     "blocked" is true where a refusal of the gateway or of the browser's policy is what Chromium reports, rather than
//     a server or a name that does not answer;
//   - timeout: the page had not loaded before the deadline of ctx, or after thirty seconds. It is stopped then and shows
//     what had arrived;
//   - browser_exited.
func (p *Page) Navigate(ctx context.Context, address string) (Result, error) {
	address, err := CheckURL(address)
	if err != nil {
		return Result{}, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, navigateTimeout)
		defer cancel()
	}
	release, err := hold(ctx, p.navigating)
	if err != nil {
		return Result{}, explain(err, "navigate")
	}
	defer release()
	p.takeDialogs()
	started := time.Now()
	status, err := p.load(ctx, address)
	result := Result{Status: status, LoadMS: time.Since(started).Milliseconds()}
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			p.stopLoading()
		}
		return Result{}, explain(err, "navigate")
	}
	// The browser process knows both, so a page that hangs or lies in its scripts does not matter.
	info, err := cdp.Do(ctx, p.browser, target.GetTargetInfo, target.GetTargetInfoParams{TargetID: p.id})
	if err != nil {
		return Result{}, explain(err, "navigate")
	}
	if info.TargetInfo != nil {
		result.URL, result.Title = bounded(info.TargetInfo.URL, maxURL), bounded(info.TargetInfo.Title, maxText)
	}
	result.Dialogs = p.takeDialogs()
	return result, nil
}

// load navigates and waits for the load event of whatever document the main frame ends up with.
func (p *Page) load(ctx context.Context, address string) (status int, err error) {
	events, err := p.session.Subscribe(page.LifecycleEvent.Method, page.FrameNavigated.Method,
		page.FrameStoppedLoading.Method, network.ResponseReceived.Method, inspector.TargetCrashed.Method)
	if err != nil {
		return 0, err
	}
	defer events.Close()
	// Only for the status of the document, and only meanwhile: bodies are not kept.
	none := int64(0)
	_, err = cdp.Do(ctx, p.session, network.Enable,
		network.EnableParams{MaxTotalBufferSize: &none, MaxResourceBufferSize: &none, MaxPostDataSize: &none})
	if err != nil {
		return 0, err
	}
	defer p.quietly(network.Disable.Method)

	started, err := cdp.Do(ctx, p.session, page.Navigate, page.NavigateParams{URL: address})
	switch {
	case err != nil:
		var refused *cdp.Error
		if errors.As(err, &refused) {
			return 0, failed(address, refused.Message, err)
		}
		return 0, err
	case started.IsDownload:
		return 0, problem.New(problem.NavigationFailed, "open a page that is shown, not one that is saved",
			"the address is a download, not a page").With("net_error", started.ErrorText)
	case started.ErrorText != "":
		return 0, failed(address, started.ErrorText, nil)
	case started.LoaderID == "":
		// Another part of the same document: nothing is loaded.
		return 0, nil
	}
	watch := loading{frame: started.FrameID, loader: started.LoaderID, statuses: make(map[protocol.LoaderID]int)}
	for {
		event, err := events.Next(ctx)
		var lost *cdp.LostError
		if errors.As(err, &lost) {
			return 0, problem.Wrap(err, problem.NavigationFailed, "try again, or open a lighter page",
				"the page sent more events than could be followed")
		}
		if err != nil {
			return 0, err
		}
		done, err := watch.see(event)
		if err != nil || done {
			return watch.statuses[watch.loader], err
		}
	}
}

// loading follows one navigation of the main frame through its events.
type loading struct {
	frame    protocol.FrameID
	loader   protocol.LoaderID // of the document that is in the frame, or that will be
	statuses map[protocol.LoaderID]int
}

func (l *loading) see(event cdp.EventMessage) (done bool, err error) {
	switch event.Method {
	case page.LifecycleEvent.Method:
		var e page.EventLifecycleEvent
		if err := cdp.Decode(event.Params, &e); err != nil {
			return false, err
		}
		return e.FrameID == l.frame && e.LoaderID == l.loader && e.Name == "load", nil
	case page.FrameNavigated.Method:
		// A page that sends the browser on before it has loaded: its own load event will not come.
		var e page.EventFrameNavigated
		if err := cdp.Decode(event.Params, &e); err != nil {
			return false, err
		}
		if e.Frame != nil && e.Frame.ID == l.frame {
			l.loader = e.Frame.LoaderID
			if e.Frame.UnreachableURL != "" {
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
				Status int `json:"status"`
			} `json:"response"`
		}
		if err := cdp.Decode(event.Params, &e); err != nil {
			return false, err
		}
		// The request of a document has the id of its loader.
		if e.FrameID == l.frame && e.RequestID == e.LoaderID && len(l.statuses) < 100 {
			l.statuses[e.LoaderID] = e.Response.Status
		}
	case inspector.TargetCrashed.Method:
		return false, problem.New(problem.NavigationFailed, "try again; a page that needs more memory than the jail has crashes too",
			"the page crashed while it was loading")
	}
	return false, nil
}

// failed makes the problem of a navigation that Chromium gave up, from Chromium's own text.
func failed(address, text string, cause error) error {
	text = bounded(text, 200)
	hint := "check the address, and that its server answers"
	if blocked(text) {
		hint = "the way to this host may be closed by policy: it is not a fault of the page, and trying again does not help"
	}
	e := problem.Wrap(cause, problem.NavigationFailed, hint, "the page could not be loaded: %s", text)
	return e.With("net_error", text).With("blocked", blocked(text)).With("url", bounded(address, maxURL))
}

// blocked knows the errors by which Chromium reports that something between it and the server said no. The names are
// those of Chromium's net/base/net_error_list.h. A proxy that refuses CONNECT is ERR_TUNNEL_CONNECTION_FAILED whatever
// its reason: who knows the gateway's decision should prefer that.
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

// quietly sends a command that tidies up: its failure means that the page is gone, which the next one will say.
func (p *Page) quietly(method string) {
	ctx, cancel := context.WithTimeout(context.Background(), dialogTimeout)
	defer cancel()
	_ = p.session.Call(ctx, method, nil, nil)
}
