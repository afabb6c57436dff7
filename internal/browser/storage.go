package browser

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	interception "github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// storageScript is the one function that runs in a page of [emptyPage]; see the file.
//
//go:embed inpage/storage.js
var storageScript string

// emptyDocument is what every address is answered with there. Nothing in it asks for anything, an icon included.
const emptyDocument = `<!doctype html><link rel=icon href="data:,">`

// storageTimeout bounds what is done with one origin; it takes some 10 ms.
const storageTimeout = 20 * time.Second

const (
	// weighTimeout is storageTimeout for a viewer, who looks on and asks again.
	weighTimeout = 4 * time.Second
	// prepareTimeout bounds what Prepare does ahead of a call, which can do it itself as well.
	prepareTimeout = 2 * time.Second
	// busyTimeout is how long pages of an origin may keep its databases busy; a call that only weighs waits half of weighTimeout.
	busyTimeout = 5 * time.Second
)

// emptyPage is a page of our own in a context that others use, which opens origins without their sites: every request of
// it is answered here, and none leaves. So what an origin has stored is read and written by a page of that origin in
// which no script of the site runs. It is no tab.
type emptyPage struct {
	b       *Browser
	context string
	id      target.ID
	session cdp.Session
	opening atomic.Pointer[string] // the address of the origin
	origin  string                 // that is open; empty for none
	world   runtime.ExecutionContextID
	events  *cdp.Subscription
	stop    context.CancelFunc // of answering
	task    sync.WaitGroup
}

// Stored reads what pages of origins have stored in a context; the empty id is the default one. Origins with nothing are
// left out. The caller wipes it, with weblogin.WipeOrigins.
func (b *Browser) Stored(ctx context.Context, browserContext string, origins []string) (out []weblogin.Origin, err error) {
	if len(origins) == 0 {
		return nil, nil
	}
	err = b.withEmptyPage(ctx, browserContext, func(ctx context.Context, e *emptyPage) error {
		if err := e.passWorkers(ctx); err != nil {
			return err
		}
		for _, origin := range origins {
			one, err := e.do(ctx, origin, nil)
			if err != nil {
				return err
			}
			// A browser that opens another origin in its place has nothing there.
			if one.Origin == origin && !one.Empty() {
				out = append(out, one)
				continue
			}
			weblogin.WipeOrigins([]weblogin.Origin{one})
		}
		return nil
	})
	if err != nil {
		weblogin.WipeOrigins(out)
		return nil, explain(err, "read what pages have stored")
	}
	return out, nil
}

// Store puts what pages had stored in a context in which none of their sites has run, and returns what is there afterwards,
// for comparing; the caller wipes that. No site is asked for anything, and no script of one runs. The code is bad_storage when the browser does not
// take it: something of it may be there then. Databases are compared here, where they are put in.
func (b *Browser) Store(ctx context.Context, browserContext string, list []weblogin.Origin) (back []weblogin.Origin, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	err = b.withEmptyPage(ctx, browserContext, func(ctx context.Context, e *emptyPage) error {
		for _, origin := range list {
			one, err := e.do(ctx, origin.Origin, &origin)
			if err != nil {
				return err
			}
			back = append(back, one)
			if one.Origin != origin.Origin {
				return problem.New(problem.BadStorage, "", "the browser opens %s instead of %s", one.Origin, origin.Origin)
			}
		}
		return nil
	})
	if err != nil {
		weblogin.WipeOrigins(back)
		return nil, explain(err, "put in what pages had stored")
	}
	return back, nil
}

// Weigh says how much pages of origins have stored in a context, without reading it. Origins with nothing are left out.
func (b *Browser) Weigh(ctx context.Context, browserContext string, origins []string) (out []weblogin.OriginInfo, err error) {
	if len(origins) == 0 {
		return nil, nil
	}
	err = b.withEmptyPage(ctx, browserContext, func(ctx context.Context, e *emptyPage) error {
		for _, origin := range origins {
			var info weblogin.OriginInfo
			asking, cancel := context.WithTimeout(ctx, weighTimeout)
			err := e.ask(asking, origin, nil, "count", func(answer []byte) error { return cdp.Decode(answer, &info) })
			cancel()
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				info, err = weblogin.OriginInfo{Origin: origin, LeftOut: []string{"all of it: its pages keep the browser busy"}}, nil
			}
			if err != nil {
				return err
			}
			if info.Origin == origin && info.Items+info.Databases+len(info.LeftOut) > 0 {
				out = append(out, info)
			}
		}
		return nil
	})
	return out, explain(err, "weigh what pages have stored")
}

// prepared is an empty page, opened ahead for the next call that needs one.
type prepared struct {
	task sync.WaitGroup // opens it
	page *emptyPage     // of the holder of the token
}

// touchScript has the browser begin what it does at the first contact with the storage of an origin.
const touchScript = "localStorage.length; indexedDB.databases().then(() => 0)"

// Prepare begins to open what the next call that writes to the storage of a context needs, at the origin that it begins with: most of
// the time that one takes is the start of processes. It does not wait, and a failure is found by that call.
func (b *Browser) Prepare(browserContext, origin string) {
	select {
	case b.emptying <- struct{}{}:
	default:
		return
	}
	b.prepared.task.Go(func() {
		defer func() { <-b.emptying }()
		if b.prepared.page != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), prepareTimeout)
		defer cancel()
		e, err := b.openEmptyPage(ctx, browserContext)
		if err != nil {
			return
		}
		if err = e.open(ctx, origin); err == nil {
			err = e.evaluate(ctx, touchScript)
		}
		if err != nil {
			_ = e.close(ctx) // the next one opens its own
			return
		}
		b.prepared.page = e
	})
}

// endPrepared waits for what is left of it, when the connection is closed.
func (b *Browser) endPrepared() {
	b.emptying <- struct{}{} // a call that holds it fails soon: the connection is closed
	defer func() { <-b.emptying }()
	b.prepared.task.Wait()
	if b.prepared.page != nil {
		b.prepared.page.release()
		b.prepared.page = nil
	}
}

// withEmptyPage runs something with an empty page. One is open at a time.
func (b *Browser) withEmptyPage(ctx context.Context, browserContext string, run func(ctx context.Context, e *emptyPage) error) (err error) {
	release, err := hold(ctx, b.emptying)
	if err != nil {
		return err
	}
	defer release()
	e := b.prepared.page
	b.prepared.page = nil
	if e != nil && (e.context != browserContext || e.evaluate(ctx, "0") != nil) { // its process may have ended
		if err := e.close(ctx); err != nil {
			return err
		}
		e = nil
	}
	if e == nil {
		if e, err = b.openEmptyPage(ctx, browserContext); err != nil {
			return err
		}
	}
	defer func() {
		if closeErr := e.close(ctx); err != nil {
			err = errors.Join(err, closeErr)
		}
	}()
	return run(ctx, e)
}

// openEmptyPage opens an empty page. The caller holds the token.
func (b *Browser) openEmptyPage(ctx context.Context, browserContext string) (e *emptyPage, err error) {
	root, hide := b.conn.Browser(), true
	e = &emptyPage{b: b, context: browserContext}
	err = b.tabs.aside(func(seen func(target.ID)) error {
		made, err := cdp.DoSeen(ctx, root, target.CreateTarget, target.CreateTargetParams{
			URL: blank, BrowserContextID: protocol.BrowserContextID(browserContext), Hidden: &hide},
			func(made target.CreateTargetResult) { seen(made.TargetID) })
		e.id = made.TargetID
		return err
	})
	if err != nil {
		return nil, err
	}
	opened := e
	defer func() {
		if err != nil {
			err = errors.Join(err, opened.close(ctx))
		}
	}()
	if e.session, err = root.Attach(ctx, e.id); err != nil {
		return nil, err
	}
	if e.events, err = e.session.Subscribe(interception.RequestPaused.Method); err != nil {
		return nil, err
	}
	answering, stop := context.WithCancel(context.Background())
	e.stop = stop
	e.task.Go(func() { e.answer(answering) })
	_, err = cdp.Do(ctx, e.session, interception.Enable, interception.EnableParams{Patterns: []*interception.RequestPattern{{URLPattern: "*"}}})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// close closes the page, also when ctx is over.
func (e *emptyPage) close(ctx context.Context) error {
	tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), disposeTimeout)
	defer cancel()
	_, err := cdp.Do(tidy, e.b.conn.Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: e.id})
	e.release()
	return err
}

// release stops answering the page's requests.
func (e *emptyPage) release() {
	if e.stop != nil {
		e.stop()
	}
	if e.events != nil {
		e.events.Close()
	}
	e.task.Wait()
}

// passWorkers keeps service workers from answering the page in the place of their sites, from the next origin on.
func (e *emptyPage) passWorkers(ctx context.Context) error {
	e.origin = ""
	none := int64(0)
	_, err := cdp.Do(ctx, e.session, network.Enable,
		network.EnableParams{MaxTotalBufferSize: &none, MaxResourceBufferSize: &none, MaxPostDataSize: &none})
	if err != nil {
		return err
	}
	_, err = cdp.Do(ctx, e.session, network.SetBypassServiceWorker, network.SetBypassServiceWorkerParams{Bypass: true})
	return err
}

// answer answers the page's requests, until ctx ends: the document that is asked for with the empty one, and all else
// with nothing. A full Chromium tries https first where http was asked for, and goes on when no server answers.
func (e *emptyPage) answer(ctx context.Context) {
	for {
		event, err := e.events.Next(ctx)
		if err != nil {
			return // so does what waits for an answer: one that is lost is never given
		}
		var paused struct {
			RequestID    interception.RequestID `json:"requestId"`
			ResourceType network.ResourceType   `json:"resourceType"`
			Request      struct {
				URL string `json:"url"`
			} `json:"request"`
		}
		if cdp.Decode(event.Params, &paused) != nil {
			continue
		}
		// An error means that the request is gone.
		if opening := e.opening.Load(); paused.ResourceType != network.ResourceTypeDocument || opening == nil || paused.Request.URL != *opening {
			_, _ = cdp.Do(ctx, e.session, interception.FailRequest,
				interception.FailRequestParams{RequestID: paused.RequestID, ErrorReason: network.ErrorReasonConnectionRefused})
			continue
		}
		_, _ = cdp.Do(ctx, e.session, interception.FulfillRequest, interception.FulfillRequestParams{
			RequestID: paused.RequestID, ResponseCode: 200, Body: []byte(emptyDocument), ResponseHeaders: []*interception.HeaderEntry{
				{Name: "Content-Type", Value: "text/html; charset=utf-8"}, {Name: "Content-Security-Policy", Value: "default-src 'none'"},
				{Name: "Cache-Control", Value: "no-store"},
			}})
	}
}

// do opens an origin, puts in what is given, and returns what is stored there.
func (e *emptyPage) do(ctx context.Context, origin string, put *weblogin.Origin) (out weblogin.Origin, err error) {
	err = e.ask(ctx, origin, put, "", func(answer []byte) error {
		if out, err = weblogin.DecodeOrigin(answer); err != nil {
			return problem.Wrap(err, problem.BadStorage, "", "what is stored for %s cannot be read", origin)
		}
		return nil
	})
	return out, err
}

// ask opens an origin, puts in what is given, and gives the answer of the script to a function.
func (e *emptyPage) ask(ctx context.Context, origin string, put *weblogin.Origin, how string, read func(answer []byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	if err := e.open(ctx, origin); err != nil {
		return err
	}
	var text []byte
	if put != nil {
		list := weblogin.EncodeOrigins([]weblogin.Origin{*put})
		text = list[1 : len(list)-1] // the one in the list
		defer clear(list)
	}
	// The only error says that something was replaced.
	quoted, _ := jsontext.AppendQuote(make([]byte, 0, 2*len(text)+2), text)
	defer clear(quoted)
	var answer struct {
		Result struct {
			Value jsontext.Value `json:"value"`
		} `json:"result"`
		Exception jsontext.Value `json:"exceptionDetails"`
	}
	err := e.session.Call(ctx, runtime.CallFunctionOn.Method, map[string]any{
		"functionDeclaration": storageScript, "executionContextId": e.world, "returnByValue": true, "awaitPromise": true,
		"arguments": []any{map[string]any{"value": origin}, map[string]any{"value": jsontext.Value(quoted)}, map[string]any{"value": how},
			map[string]any{"value": maxStored(how)}},
	}, &answer)
	defer clear(answer.Result.Value)
	defer clear(answer.Exception)
	if err != nil {
		return err
	}
	if answer.Exception != nil { // its words may quote a value
		return problem.New(problem.BadStorage, "", "the browser does not take what is stored for %s", origin)
	}
	back, err := jsontext.AppendUnquote(make([]byte, 0, len(answer.Result.Value)), answer.Result.Value)
	defer clear(back)
	if err != nil {
		return problem.New(problem.BadStorage, "", "what is stored for %s cannot be read", origin)
	}
	var refused struct {
		Sentence string `json:"refused"`
	}
	if err := cdp.Decode(back, &refused); err != nil {
		return problem.New(problem.BadStorage, "", "what is stored for %s cannot be read", origin)
	}
	if refused.Sentence != "" {
		return problem.New(problem.BadStorage, "", "%s: %s", origin, bounded(refused.Sentence, maxText))
	}
	return read(back)
}

// open opens an origin, and makes the world in which the script runs.
func (e *emptyPage) open(ctx context.Context, origin string) error {
	if e.origin == origin {
		return nil
	}
	e.origin = ""
	address := origin + "/"
	e.opening.Store(&address)
	opened, err := cdp.Do(ctx, e.session, page.Navigate, page.NavigateParams{URL: address})
	if err != nil {
		return err
	}
	if opened.ErrorText != "" {
		return problem.New(problem.BadStorage, "", "the browser does not open %s: %s", origin, bounded(opened.ErrorText, maxText))
	}
	world, err := cdp.Do(ctx, e.session, page.CreateIsolatedWorld, page.CreateIsolatedWorldParams{FrameID: opened.FrameID, WorldName: worldName})
	if err != nil {
		return err
	}
	e.origin, e.world = origin, world.ExecutionContextID
	return nil
}

// evaluate runs a script in the world that is open, and waits for its promise.
func (e *emptyPage) evaluate(ctx context.Context, script string) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	await := true
	_, err := cdp.Do(ctx, e.session, runtime.Evaluate, runtime.EvaluateParams{Expression: script, ContextID: e.world, AwaitPromise: &await})
	return err
}

// maxStored are the bounds of what is read of an origin.
func maxStored(how string) map[string]int {
	busy := busyTimeout
	if how != "" {
		busy = weighTimeout / 2
	}
	return map[string]int{"items": weblogin.MaxItems, "value": weblogin.MaxValue, "databases": weblogin.MaxDatabases, "stores": weblogin.MaxStores,
		"records": weblogin.MaxRecords, "bytes": weblogin.MaxDatabase, "origin": weblogin.MaxOrigin, "left": weblogin.MaxLeft,
		"milliseconds": int(busy / time.Millisecond)}
}

// maxOrigins bounds the origins that are remembered of a browser.
const maxOrigins = 100

// visited are the origins of documents that were seen in tabs.
type visited struct {
	mu   sync.Mutex
	list []string
}

// Origins are those of the documents that tabs have shown, in the order of the first time, and of frames in them that are of
// the same site. There may be more than are kept.
func (b *Browser) Origins(ctx context.Context) ([]string, error) {
	if err := b.tabs.begin(ctx); err != nil {
		return nil, explain(err, "look what was visited")
	}
	if err := b.tabs.settle(ctx); err != nil {
		return nil, explain(err, "look what was visited")
	}
	b.visited.mu.Lock()
	defer b.visited.mu.Unlock()
	return slices.Clone(b.visited.list), nil
}

// visits notes the address of a document: a tab's, or that of a frame in one. A frame of another site has storage of its own
// in each site that shows it, which is carried nowhere.
func (b *Browser) visits(address string, frame bool) {
	if !strings.HasPrefix(address, "http") {
		return
	}
	origin, err := weblogin.OriginOf(address)
	if err != nil {
		return
	}
	v := &b.visited
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.list) >= maxOrigins || slices.Contains(v.list, origin) {
		return
	}
	if frame && !slices.ContainsFunc(v.list, func(known string) bool { return ofOneDomain(known, origin) }) {
		return
	}
	v.list = append(v.list, origin)
}

func ofOneDomain(a, b string) bool {
	one, err := weblogin.DomainOf(a)
	other, otherErr := weblogin.DomainOf(b)
	return err == nil && otherErr == nil && one == other
}
