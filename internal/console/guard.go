package console

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/problem"
)

// contentPolicy is the Content-Security-Policy of every page. Pictures of pages come as files of ours or as blobs that our
// script has made of them.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// maxForm bounds the body of a form that has no files, and maxFormSignedOut that of somebody who is not signed in, which takes no
// room of others, and that of a new passkey.
const (
	maxForm          = 1 << 20
	maxFormSignedOut = 64 << 10
)

// handler makes one page, or does one thing, for somebody who is signed in.
type handler func(q *request) error

// guard is what every request passes.
func (c *Console) guard(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.fail(&request{c: c, w: w, r: r}, problem.New(problem.Forbidden, "open the console and do it there", "the request came from the page of another site"))
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setPolicies(w.Header(), contentPolicy)
		protection.Handler(next).ServeHTTP(w, r)
	})
}

// setPolicies tells the browser what a page may do, and what others may do with it.
func setPolicies(h http.Header, content string) {
	h.Set("Content-Security-Policy", content)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()")
	h.Set("Cache-Control", "no-store")
}

// signedIn lets who is signed in pass. Everybody else is asked to sign in, and comes back to where they wanted to go.
func (c *Console) signedIn(handle handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := &request{c: c, w: w, r: r}
		cookie, err := r.Cookie(c.cookieName(r))
		if err != nil {
			c.askToSignIn(q)
			return
		}
		q.by, q.in, err = c.SignIn.Who(r.Context(), cookie.Value)
		if err != nil {
			if problem.CodeOf(err) == problem.Unauthorized {
				c.askToSignIn(q)
				return
			}
			c.fail(q, err)
			return
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		release, err := c.SignIn.WatchValidity(ctx, q.by, q.in, cancel)
		if problem.CodeOf(err) == problem.RateLimited {
			c.fail(q, err)
			return
		}
		if err != nil {
			c.askToSignIn(q)
			return
		}
		defer release()
		q.r = r.WithContext(ctx)
		if err := handle(q); err != nil {
			c.fail(q, err)
		}
	}
}

// askToSignIn sends somebody to the page where they can. A browser that came here from another site has not sent the
// cookie: it is asked to come again, from here.
func (c *Console) askToSignIn(q *request) {
	switch {
	case q.fragment():
		q.w.Header().Set("HX-Redirect", signInPath)
		q.w.WriteHeader(http.StatusUnauthorized)
	case q.r.Method != http.MethodGet || !strings.Contains(q.r.Header.Get("Accept"), "text/html"):
		c.fail(q, problem.New(problem.Unauthorized, "sign in at "+signInPath, "you are not signed in"))
	case q.r.Header.Get("Sec-Fetch-Site") == "cross-site" && q.r.Header.Get("Sec-Fetch-Mode") == "navigate":
		q.w.Header().Set("Refresh", "0")
		_ = q.show("bounce", "One moment", nil) // a browser that does not get it comes again
	default:
		http.Redirect(q.w, q.r, signInPath+"?next="+url.QueryEscape(q.r.URL.RequestURI()), http.StatusSeeOther)
	}
}

// onlyHost begins the name of a cookie that no other host can have set, nor anybody without TLS, and onlyTLS of one that nobody has
// without TLS (RFC 6265bis, 4.1.3): else a neighbour signs somebody in as themselves, who stores secrets there.
const (
	onlyHost = "__Host-"
	onlyTLS  = "__Secure-"
)

// cookieName is under what the sign-in is kept. Cookies do not know ports: each has a name of its own.
func (c *Console) cookieName(r *http.Request) string {
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		port = "default"
	}
	name := "clawjail-" + port
	switch {
	case !c.secure(r):
		return name
	case c.path == "":
		return onlyHost + name
	}
	return onlyTLS + name
}

// newCookie is one for the console alone, which a browser keeps until it ends. One that is bound to the host has no path, by its name;
// everything there is clawjail's, and the rest of it takes no cookies.
func (c *Console) newCookie(r *http.Request, name, value string) *http.Cookie {
	out := &http.Cookie{Name: name, Value: value, Path: c.path + Prefix, HttpOnly: true, Secure: c.secure(r), SameSite: http.SameSiteStrictMode}
	if strings.HasPrefix(name, onlyHost) {
		out.Path = "/"
	}
	return out
}

// setCookie keeps a sign-in in the browser, or takes it away.
func (c *Console) setCookie(q *request, text string, in signin.SignIn) {
	cookie := c.newCookie(q.r, c.cookieName(q.r), text)
	if text == "" {
		cookie.MaxAge = -1
	} else {
		cookie.Expires = in.ExpiresAt
	}
	http.SetCookie(q.w, cookie)
}

// secure says whether the browser has reached us by TLS.
func (c *Console) secure(r *http.Request) bool {
	return r.TLS != nil || c.fromProxy(r) && strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

// fromProxy says whether a proxy that may speak for its clients has sent a request.
func (c *Console) fromProxy(r *http.Request) bool {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && slices.ContainsFunc(c.BehindProxy, func(p netip.Prefix) bool { return p.Contains(at.Addr().Unmap()) })
}

// origin is that of the console, as the browser has it.
func (c *Console) origin(r *http.Request) string {
	if c.byPublicName(r) {
		return config.PublicOrigin(c.Config.PublicURL)
	}
	if c.secure(r) {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// address is that of this server, as the browser has it. Its path is in it for who comes by the proxy.
func (c *Console) address(r *http.Request) string {
	if c.byPublicName(r) {
		return c.Config.PublicURL
	}
	return c.origin(r)
}

// from is where a request comes from. Its origin is left out where it may be another server's: all ports of a host have the
// same passkeys, and what a browser has signed for a page at another port can be handed on to here by whoever is there, with
// the Host of their own page.
func (c *Console) from(r *http.Request) signin.From {
	out := signin.From{Remote: identity.ClientAddr(r, c.BehindProxy), UserAgent: r.UserAgent()}
	if c.ownPort(r) {
		out.Origin = c.origin(r)
	}
	return out
}

// byPublicName says whether a proxy hands on what was sent to the public address, by its name and port.
func (c *Console) byPublicName(r *http.Request) bool {
	if c.Config.PublicURL == "" || !c.fromProxy(r) {
		return false
	}
	scheme, _, _ := strings.Cut(c.Config.PublicURL, "://")
	return config.PublicOrigin(scheme+"://"+r.Host) == config.PublicOrigin(c.Config.PublicURL)
}

// ownPort says whether the browser names the port that it has reached. A proxy in front has that of the public address.
func (c *Console) ownPort(r *http.Request) bool {
	if c.byPublicName(r) {
		return true
	}
	_, port, err := net.SplitHostPort(r.Host)
	switch {
	case err == nil:
	case r.TLS != nil:
		port = "443"
	default:
		port = "80"
	}
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && strconv.Itoa(at.Port) == port
}

// local is a path of the console to go to; the overview for anything else. No other site is ever gone to.
func local(path string) string {
	u, err := url.Parse(path)
	if err != nil || u.IsAbs() || u.Host != "" || u.User != nil || strings.ContainsAny(path, "\\\r\n\t") ||
		u.Path != Prefix && !strings.HasPrefix(u.Path, Prefix+"/") || strings.HasPrefix(u.Path, signInPath) ||
		slices.Contains(strings.Split(u.Path, "/"), "..") {
		return Prefix + "/"
	}
	return u.RequestURI()
}

func nothingHere(q *request) error {
	if q.r.Method != http.MethodGet {
		return problem.New(problem.BadRequest, "go back, and use the buttons of the page", "this address takes no such request")
	}
	return problem.New(problem.NotFound, "choose an item on the left", "there is nothing at this address")
}

// fail shows an error. The text of one without a code is in the log only.
func (c *Console) fail(q *request, err error) {
	if q.r.Context().Err() != nil && errors.Is(err, q.r.Context().Err()) {
		if cause := context.Cause(q.r.Context()); problem.CodeOf(cause) != problem.Internal {
			err = cause
		}
	}
	shown := sayProblem(err)
	if shown.Status >= http.StatusInternalServerError && q.r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		return // the browser has gone: a page was left, a stream of events was closed
	}
	if shown.Status >= http.StatusInternalServerError {
		c.Log.Log(q.r.Context(), problem.Level(shown.Status), "serve a page of the console", "path", q.r.URL.Path, "code", shown.Code, "error", err)
	}
	if q.started {
		return
	}
	if q.fragment() {
		q.w.Header().Set("HX-Reswap", "none")
		q.w.Header().Set("HX-Trigger", `{"problem":`+asJSON(shown.Message)+`}`)
		q.w.WriteHeader(shown.Status)
		return
	}
	q.status = shown.Status
	if err := q.show("problem", shown.Title, shown); err != nil {
		c.Log.Error("show a problem", "error", err)
	}
}
