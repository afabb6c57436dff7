package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// SessionToken is a token that is good for one session. It prints without the token.
type SessionToken struct {
	Token     string        `json:"token" doc:"the token; shown only once"`
	Scope     session.Scope `json:"scope" enum:"view,control,cdp"`
	Session   string        `json:"session"`
	ExpiresAt time.Time     `json:"expires_at"`
	// CDPURL and WSURL have the token in them. They are there when its scope is cdp.
	CDPURL string `json:"cdp_url,omitempty" doc:"for clients that ask for the endpoint first: chromium.connectOverCDP(cdp_url)"`
	WSURL  string `json:"ws_url,omitempty" doc:"the endpoint: puppeteer.connect({browserWSEndpoint: ws_url})"`
}

// Format implements fmt.Formatter, for every verb.
func (t SessionToken) Format(f fmt.State, _ rune) { op.WithoutKey(f, "token for "+t.Session) }

// BrowserVersion is what a browser says of itself, in the words of the DevTools Protocol's discovery.
type BrowserVersion struct {
	Browser   string `json:"Browser"`
	Protocol  string `json:"Protocol-Version"`
	UserAgent string `json:"User-Agent"`
	Endpoint  string `json:"webSocketDebuggerUrl" doc:"with the token that was sent in the address"`
}

// BrowserTarget is one page in the same words. It has no endpoint of its own: pages are attached to through the browser's.
type BrowserTarget struct {
	ID    string `json:"id"`
	Type  string `json:"type"`
	Title string `json:"title"`
	URL   string `json:"url"`
}

// devtoolsPath is where DevTools clients connect.
const devtoolsPath = ofSession + "/cdp"

// discoveryLimit bounds how long a browser may take to say what it is.
const discoveryLimit = 10 * time.Second

func (a *API) devtoolsRoutes() {
	a.plain(route{method: http.MethodPost, path: ofSession + "/tokens", id: "issue-session-token", summary: "Make a token for one session",
		status: http.StatusOK, body: reflect.TypeFor[TokenRequest]()}, []*huma.Param{sessionID()},
		map[string]*huma.Schema{"application/json": a.schema(reflect.TypeFor[SessionToken]())}, a.issueSessionToken)
	a.plain(route{method: http.MethodGet, path: ofSession + "/recording", id: "recording", summary: "What was recorded, as one page"},
		[]*huma.Param{sessionID()}, map[string]*huma.Schema{"text/html": {Type: huma.TypeString}}, a.recording)

	provide(a, op.ListRecordings())
	provide(a, op.RemoveRecording())

	token := &huma.Param{Name: tokenParameter, In: "query", Schema: &huma.Schema{Type: huma.TypeString},
		Description: "a token for the session with the scope cdp, instead of a key in the header"}
	parameters := []*huma.Param{sessionID(), token}
	a.plain(route{method: http.MethodGet, path: devtoolsPath, id: "cdp", summary: "The DevTools endpoint, a WebSocket"}, parameters, nil, a.devtools)
	version := route{method: http.MethodGet, path: devtoolsPath + "/json/version", id: "cdp-version", summary: "Where the DevTools endpoint is"}
	a.plain(version, parameters, map[string]*huma.Schema{"application/json": a.schema(reflect.TypeFor[BrowserVersion]())}, a.version)
	targets := route{method: http.MethodGet, path: devtoolsPath + "/json/list", id: "cdp-list", summary: "The pages, for DevTools clients"}
	a.plain(targets, parameters, map[string]*huma.Schema{"application/json": a.schema(reflect.TypeFor[[]BrowserTarget]())}, a.targets)
	// Clients write the same addresses in several ways.
	for path, handle := range map[string]http.HandlerFunc{
		"/json/version/{$}": a.plainly(version, a.version), "/json/list/{$}": a.plainly(targets, a.targets),
		"/json": a.plainly(targets, a.targets), "/json/{$}": a.plainly(targets, a.targets),
	} {
		a.mux.HandleFunc(http.MethodGet+" "+devtoolsPath+path, handle)
	}
}

func (a *API) issueSessionToken(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	text, err := bodyOf(req)
	if err != nil {
		return err
	}
	body, err := decode[TokenRequest](text)
	if err != nil {
		return err
	}
	life := time.Duration(0)
	if body.TTL != "" {
		if life, err = texts.Duration(body.TTL); err != nil || life <= 0 {
			return problem.New(problem.BadLimit, "write a number with s, m, h or d, such as 30m", "the ttl %s is not a positive duration", quote(body.TTL))
		}
	}
	issued, err := a.Sessions.IssueToken(req.Context(), by, req.PathValue("id"), body.Scope, life)
	if err != nil {
		return err
	}
	out := SessionToken{Token: issued.Token, Scope: issued.Scope, Session: issued.Session, ExpiresAt: issued.ExpiresAt}
	if out.Scope == identity.ScopeCDP {
		out.CDPURL, out.WSURL = a.endpoint(req, "http", issued.Session, issued.Token), a.endpoint(req, "ws", issued.Session, issued.Token)
	}
	return control.Write(w, req, out, nil)
}

// endpoint is the address of a session's DevTools endpoint.
func (a *API) endpoint(req *http.Request, scheme, id, token string) string {
	out := a.ownURL(req, scheme) + "/v1/sessions/" + url.PathEscape(id) + "/cdp"
	if token != "" {
		out += "?" + url.Values{tokenParameter: {token}}.Encode()
	}
	return out
}

// ownURL is the address of this server by the name under which the caller knows it; scheme is http or ws, and gets its s.
func (a *API) ownURL(req *http.Request, scheme string) string {
	if req.TLS != nil || a.trusted(remote(req)) && strings.EqualFold(req.Header.Get("X-Forwarded-Proto"), "https") {
		scheme += "s"
	}
	out := scheme + "://" + req.Host
	if name := (&url.URL{Host: req.Host}).Hostname(); a.PublicName != "" && strings.EqualFold(name, a.PublicName) {
		out += a.PublicPath
	}
	return out
}

// consoleURL is the address of the console. A person who asks at a loopback address, as the command line does, may be on this machine by
// SSH, or hand the link to somebody: it is the public one, where there is one. Else, without TLS, it is at localhost: passkeys
// belong to names.
func (a *API) consoleURL(req *http.Request) string {
	if a.PublicURL != "" && hostport.IsLoopback((&url.URL{Host: req.Host}).Hostname()) {
		return a.PublicURL
	}
	own := a.ownURL(req, "http")
	at, err := netip.ParseAddrPort(req.Host)
	if err != nil || !at.Addr().IsLoopback() || !strings.HasPrefix(own, "http:") {
		return own
	}
	return fmt.Sprintf("http://localhost:%d", at.Port())
}

// version says where the endpoint is, to whoever may use it.
func (a *API) version(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	said, err := a.Sessions.Devtools(req.Context(), by, req.PathValue("id"))
	if err != nil {
		return err
	}
	return control.Write(w, req, BrowserVersion{Browser: said.Product, Protocol: said.Protocol, UserAgent: said.UserAgent,
		Endpoint: a.endpoint(req, "ws", req.PathValue("id"), req.URL.Query().Get(tokenParameter))}, nil)
}

func (a *API) targets(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	var said struct {
		TargetInfos []struct {
			TargetID string `json:"targetId"`
			Type     string `json:"type"`
			Title    string `json:"title"`
			URL      string `json:"url"`
		} `json:"targetInfos"`
	}
	if err := a.askBrowser(req.Context(), by, req.PathValue("id"), "Target.getTargets", &said); err != nil {
		return err
	}
	out := []BrowserTarget{}
	for _, t := range said.TargetInfos {
		if t.Type == "page" {
			out = append(out, BrowserTarget{ID: t.TargetID, Type: t.Type, Title: t.Title, URL: t.URL})
		}
	}
	return control.Write(w, req, out, nil)
}

// errSilent is a browser that does not say what it is.
var errSilent = problem.New(problem.Timeout, "try again, or look at the session: clawjail session show ID", "the browser did not answer")

// askBrowser sends one command as a DevTools client does that comes for nothing else. The session's access
// limits it as it does such a client.
func (a *API) askBrowser(ctx context.Context, by identity.Principal, id, method string, out any) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, discoveryLimit, errSilent)
	defer cancel()
	client, err := a.Sessions.Attach(ctx, by, id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if err := client.Send(ctx, []byte(`{"id":1,"method":"`+method+`"}`)); err != nil {
		return silence(ctx, err)
	}
	for {
		frame, err := client.Receive(ctx)
		if err != nil {
			return silence(ctx, err)
		}
		var reply struct {
			ID     int                       `json:"id"`
			Error  *struct{ Message string } `json:"error"`
			Result json.RawMessage           `json:"result"`
		}
		if err := json.Unmarshal(frame, &reply); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		switch {
		case reply.ID != 1: // an event
		case reply.Error != nil:
			return problem.New(problem.MethodDenied, "the session's access decides what its clients may", "%s: %s", method, quote(reply.Error.Message))
		default:
			return json.Unmarshal(reply.Result, out)
		}
	}
}

// silence is why a browser did not answer.
func silence(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// recording writes what was recorded as a page that is saved, and not shown by a browser that has a key here.
func (a *API) recording(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	id := req.PathValue("id")
	header := http.Header{
		"Content-Type":            {"text/html; charset=utf-8"},
		"Content-Disposition":     {mime.FormatMediaType("attachment", map[string]string{"filename": "recording-" + id + ".html"})},
		"Content-Security-Policy": {"default-src 'none'; sandbox"},
	}
	a.pour(req.Context(), w, req, "Write a recording", header, func(ctx context.Context, out *lines) error {
		return a.Sessions.WriteRecording(ctx, by, id, out)
	})
	return nil
}
