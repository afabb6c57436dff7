package browser

import (
	"context"
	"slices"
	"strings"
	"time"

	runtimelog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of what is kept of one page, the newest of each kind.
const (
	maxConsole      = 200
	maxConsoleBytes = 128 << 10
	maxRequests     = 500
	maxRequestBytes = 256 << 10
	// maxLine bounds the text of one message, and maxLogURL an address in the logs, in bytes.
	maxLine   = 2 << 10
	maxLogURL = 2 << 10
	// maxArguments bounds the arguments of one console call that are read.
	maxArguments = 20
	// maxRequestID bounds the browser's name for a request; it has about 20 characters.
	maxRequestID = 100
	// listTimeout is the limit of what only looks into what is known already.
	listTimeout = 10 * time.Second
)

// ring keeps the newest of something, within a number and a size in bytes.
type ring[T any] struct {
	limit, maxBytes int

	items []T
	sizes []int
	bytes int
	cut   bool // something was lost or thrown away
}

func (r *ring[T]) add(item T, size int) {
	r.items, r.sizes = append(r.items, item), append(r.sizes, size)
	r.bytes += size
	drop := 0
	for len(r.items)-drop > r.limit || r.bytes > r.maxBytes && len(r.items)-drop > 1 {
		r.bytes -= r.sizes[drop]
		drop++
	}
	if drop > 0 {
		r.items, r.sizes, r.cut = slices.Delete(r.items, 0, drop), slices.Delete(r.sizes, 0, drop), true
	}
}

// take returns what is kept, oldest first, and whether there was more; with clear it forgets both.
func (r *ring[T]) take(clear bool) (items []T, cut bool) {
	items, cut = slices.Clone(r.items), r.cut
	if clear {
		r.items, r.sizes, r.bytes, r.cut = nil, nil, 0, false
	}
	return items, cut
}

// levels of the console, in rising order.
func levels() []string { return []string{"debug", "info", "warning", "error"} }

// level is the contract's word for one of the browser's.
func level(word string) string {
	switch word {
	case "debug", "verbose":
		return "debug"
	case "warning", "warn":
		return "warning"
	case "error", "assert":
		return "error"
	}
	return "info"
}

// log keeps an event of the page's console or network: none of what happens while a person steers.
func (p *Page) log(event cdp.EventMessage) {
	if p.b.live.held.Load() {
		return
	}
	switch event.Method {
	case runtime.ConsoleAPICalled.Method:
		p.seeConsole(event)
	case runtimelog.EntryAdded.Method:
		p.seeEntry(event)
	case runtime.ExceptionThrown.Method:
		p.seeException(event)
	default:
		p.seeNetwork(event)
	}
}

// remoteValue is a value in an event, as far as it is shown.
type remoteValue struct {
	Type        string         `json:"type"`
	Value       jsontext.Value `json:"value"`
	Unusable    string         `json:"unserializableValue"`
	Description string         `json:"description"`
}

func (v remoteValue) String() string {
	switch {
	case v.Description != "":
		return v.Description
	case v.Unusable != "":
		return v.Unusable
	case v.Value == nil:
		return v.Type
	}
	if text, err := jsontext.AppendUnquote(nil, v.Value); err == nil {
		return string(text)
	}
	return string(v.Value)
}

func (p *Page) seeConsole(event cdp.EventMessage) {
	var e struct {
		Type  string        `json:"type"`
		Args  []remoteValue `json:"args"`
		Stack struct {
			Frames []place `json:"callFrames"`
		} `json:"stackTrace"`
	}
	if cdp.Decode(event.Params, &e) != nil {
		return
	}
	var text strings.Builder
	for i, arg := range e.Args[:min(len(e.Args), maxArguments)] {
		if i > 0 {
			text.WriteByte(' ')
		}
		text.WriteString(bounded(arg.String(), maxLine))
		if text.Len() > maxLine {
			break
		}
	}
	message := ConsoleMessage{Level: level(e.Type), Text: bounded(text.String(), maxLine), At: p.b.now()}
	if len(e.Stack.Frames) > 0 {
		message.URL, message.Line = bounded(e.Stack.Frames[0].URL, maxLogURL), e.Stack.Frames[0].Line+1
	}
	p.print(&p.console, message)
}

// place is where in a script something happened. Lines count from 0.
type place struct {
	URL  string `json:"url"`
	Line int64  `json:"lineNumber"`
}

// seeEntry keeps what the browser itself wrote to the page's console.
func (p *Page) seeEntry(event cdp.EventMessage) {
	var e struct {
		Entry struct {
			Level string `json:"level"`
			Text  string `json:"text"`
			URL   string `json:"url"`
			Line  int64  `json:"lineNumber"`
		} `json:"entry"`
	}
	if cdp.Decode(event.Params, &e) != nil {
		return
	}
	p.print(&p.console, ConsoleMessage{Level: level(e.Entry.Level), Text: bounded(e.Entry.Text, maxLine),
		URL: bounded(e.Entry.URL, maxLogURL), Line: e.Entry.Line, At: p.b.now()})
}

func (p *Page) seeException(event cdp.EventMessage) {
	var e struct {
		Details struct {
			Text      string      `json:"text"`
			URL       string      `json:"url"`
			Line      int64       `json:"lineNumber"`
			Exception remoteValue `json:"exception"`
		} `json:"exceptionDetails"`
	}
	if cdp.Decode(event.Params, &e) != nil {
		return
	}
	text := bounded(e.Details.Text, maxLine)
	if thrown := e.Details.Exception.String(); thrown != "" {
		text = bounded(strings.TrimSpace(text+" "+bounded(thrown, maxLine)), maxLine)
	}
	p.print(&p.faults, ConsoleMessage{Level: "error", Text: text, URL: bounded(e.Details.URL, maxLogURL),
		Line: e.Details.Line + 1, At: p.b.now()})
}

func (p *Page) print(to *ring[ConsoleMessage], message ConsoleMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	const overhead = 64
	to.add(message, len(message.Text)+len(message.URL)+overhead)
}

// networkEvent is what is read of all events of the network: the rest is the server's, and large.
type networkEvent struct {
	RequestID string `json:"requestId"`
	Type      string `json:"type"`
	Request   struct {
		Method string `json:"method"`
		URL    string `json:"url"`
	} `json:"request"`
	Redirect *response `json:"redirectResponse"`
	Response response  `json:"response"`
	Error    string    `json:"errorText"`
	Blocked  string    `json:"blockedReason"`
}

type response struct {
	Status int `json:"status"`
}

func (p *Page) seeNetwork(event cdp.EventMessage) {
	var e networkEvent
	if cdp.Decode(event.Params, &e) != nil || len(e.RequestID) > maxRequestID {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.byID[e.RequestID]
	switch event.Method {
	case network.RequestWillBeSent.Method:
		if known != nil && e.Redirect != nil {
			known.Status = e.Redirect.Status
		}
		p.addRequest(e)
	case network.ResponseReceived.Method:
		if known != nil {
			known.Status = e.Response.Status
		}
	case network.LoadingFailed.Method:
		if known != nil {
			known.Error = bounded(e.Error, 200)
			if e.Blocked != "" {
				known.Error = bounded(known.Error+" ("+e.Blocked+")", 200)
			}
		}
		delete(p.byID, e.RequestID)
	case network.LoadingFinished.Method:
		delete(p.byID, e.RequestID)
	}
}

// addRequest keeps a request. p.mu is held.
func (p *Page) addRequest(e networkEvent) {
	request := &Request{Method: bounded(e.Request.Method, 20), URL: bounded(e.Request.URL, maxLogURL),
		Type: bounded(strings.ToLower(e.Type), 40), At: p.b.now()}
	const overhead = 128
	p.requests.add(request, len(request.URL)+overhead)
	// Requests that are not kept any more and never ended would stay here.
	if len(p.byID) >= maxRequests {
		kept := make(map[*Request]bool, len(p.requests.items))
		for _, r := range p.requests.items {
			kept[r] = true
		}
		for id, r := range p.byID {
			if !kept[r] {
				delete(p.byID, id)
			}
		}
	}
	if len(p.byID) < 2*maxRequests {
		p.byID[e.RequestID] = request
	}
}

// Tool is "console".
func (Console) Tool() string { return "console" }

// Target is the tab.
func (o Console) Target() string { return o.TargetID }

// Effect is Looks.
func (Console) Effect() Effect { return Looks }

// Validate reports a bad level or limit.
func (o Console) Validate() error {
	flaws := problem.ValidationError{Code: problem.BadRequest}
	if o.Level != "" && !slices.Contains(levels(), o.Level) {
		flaws.Add("level", "%q is none of %s", bounded(o.Level, 40), strings.Join(levels(), ", "))
	}
	if o.Max < 0 || o.Max > 1000 {
		flaws.Add("limit", "%d is not between 1 and 1000", o.Max)
	}
	return flaws.Err()
}

// Limit is ten seconds.
func (Console) Limit() time.Duration { return listTimeout }

// Run returns the newest messages, oldest first.
func (o Console) Run(ctx context.Context, b *Browser) (any, error) {
	p, err := b.anyTab(ctx, o.TargetID)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	messages, cut := p.console.take(o.Clear)
	p.mu.Unlock()
	minimum := slices.Index(levels(), o.Level)
	messages = slices.DeleteFunc(messages, func(m ConsoleMessage) bool { return slices.Index(levels(), m.Level) < minimum })
	if o.Max > 0 && len(messages) > o.Max {
		messages, cut = messages[len(messages)-o.Max:], true
	}
	return ConsoleResult{TargetID: p.handle(), Messages: listed(messages), Truncated: cut}, nil
}

// Result is a *ConsoleResult.
func (Console) Result() any { return new(ConsoleResult) }

// Tool is "errors".
func (Errors) Tool() string { return "errors" }

// Target is the tab.
func (o Errors) Target() string { return o.TargetID }

// Effect is Looks.
func (Errors) Effect() Effect { return Looks }

// Validate finds nothing to say.
func (Errors) Validate() error { return nil }

// Limit is ten seconds.
func (Errors) Limit() time.Duration { return listTimeout }

// Run returns the newest exceptions, oldest first.
func (o Errors) Run(ctx context.Context, b *Browser) (any, error) {
	p, err := b.anyTab(ctx, o.TargetID)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	faults, cut := p.faults.take(o.Clear)
	p.mu.Unlock()
	return ErrorsResult{TargetID: p.handle(), Errors: listed(faults), Truncated: cut}, nil
}

// Result is an *ErrorsResult.
func (Errors) Result() any { return new(ErrorsResult) }

// Tool is "requests".
func (Requests) Tool() string { return "requests" }

// Target is the tab.
func (o Requests) Target() string { return o.TargetID }

// Effect is Looks.
func (Requests) Effect() Effect { return Looks }

// Validate reports a filter that is too long.
func (o Requests) Validate() error {
	flaws := problem.ValidationError{Code: problem.BadRequest}
	if len(o.Filter) > maxLogURL {
		flaws.Add("filter", "has %d bytes; %d are allowed", len(o.Filter), maxLogURL)
	}
	return flaws.Err()
}

// Limit is ten seconds.
func (Requests) Limit() time.Duration { return listTimeout }

// Run returns the newest requests, oldest first.
func (o Requests) Run(ctx context.Context, b *Browser) (any, error) {
	p, err := b.anyTab(ctx, o.TargetID)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	kept, cut := p.requests.take(o.Clear)
	requests := make([]Request, 0, len(kept))
	for _, r := range kept {
		if strings.Contains(r.URL, o.Filter) {
			requests = append(requests, *r)
		}
	}
	p.mu.Unlock()
	return RequestsResult{TargetID: p.handle(), Requests: requests, Truncated: cut}, nil
}

// Result is a *RequestsResult.
func (Requests) Result() any { return new(RequestsResult) }

// listed is a list that is shown as one also when it is empty.
func listed[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}
