// Package website is the site that clawjail is tried with: pages over HTTPS on loopback, with a certificate of an
// authority of its own, and a login that knows its visitors by cookies of every kind.
//
// A visitor is logged in when every cookie of the login arrives unchanged, so a jar that was carried from one browser to
// another is right when the site says so, and not when somebody compared it.
package website

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"html/template"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The names exist nowhere but in the configuration that lets jails reach them: RFC 6761 keeps .test from ever being
// real.
const (
	Domain = "clawjail.test"
	Host   = "site." + Domain
)

// Titles of the pages.
const (
	Title      = "clawjail self-test: the script ran"
	TitleLogin = "log in"
)

// TitleOf is the title of the account of somebody who is logged in.
func TitleOf(user string) string { return "logged in as " + user }

const page = `<!doctype html><meta charset="utf-8"><title>clawjail self-test</title>
<style>html{background:#1f6f5c}</style>
<script>document.title += ": the script ran"</script>`

// Background is the colour of the first page.
func Background() (r, g, b byte) { return 0x1f, 0x6f, 0x5c }

var loginPage = template.Must(template.New("login").Parse(`<!doctype html><meta charset="utf-8"><title>log in</title>
<form method="post"><input name="user"><input name="password" type="password"><button>Log in</button></form>`))

var accountPage = template.Must(template.New("account").Parse(`<!doctype html><meta charset="utf-8"><title>logged in as {{.}}</title>
<h1>logged in as {{.}}</h1>`))

// visitor is somebody who is logged in, with the values of the cookies that say so.
type visitor struct {
	user    string
	cookies map[string]string
}

// Site is the running site.
type Site struct {
	// CA is the certificate of its authority, in PEM.
	CA   []byte
	Port int

	visits atomic.Int64
	http   *http.Server
	done   chan struct{}

	mu       sync.Mutex
	visitors map[string]visitor // by sid
}

// New starts a site. Close ends it.
func New() (*Site, error) {
	ca, certificate, err := certificates()
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve a site: %w", err)
	}
	s := &Site{CA: ca, Port: l.Addr().(*net.TCPAddr).Port, done: make(chan struct{}), visitors: map[string]visitor{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.home)
	mux.HandleFunc("GET /login", func(w http.ResponseWriter, _ *http.Request) { show(w, loginPage, nil) })
	mux.HandleFunc("POST /login", s.login)
	mux.HandleFunc("GET /welcome", s.login)
	mux.HandleFunc("GET /account", s.account)
	s.http = &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: log.New(io.Discard, "", 0), // a browser that refuses the certificate reports it itself
	}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{certificate}})) // ends with Close
	}()
	return s, nil
}

// Close ends the site.
func (s *Site) Close() {
	_ = s.http.Close() // it was on loopback, for this run
	<-s.done
}

// URL is the address of a page: "/", "/account", "/login", or "/welcome?user=NAME", which logs in without asking.
func (s *Site) URL(path string) string { return fmt.Sprintf("https://%s:%d%s", Host, s.Port, path) }

// Visits counts the visits of the first page.
func (s *Site) Visits() int64 { return s.visits.Load() }

// Values are the values of all cookies that the site has given to anybody, sorted.
func (s *Site) Values() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, v := range s.visitors {
		for _, value := range v.cookies {
			out = append(out, value)
		}
	}
	slices.Sort(out)
	return out
}

// LogOut makes every login worth nothing, as a site does when a password changes.
func (s *Site) LogOut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sid, v := range s.visitors {
		v.user = ""
		s.visitors[sid] = v
	}
}

func (s *Site) home(w http.ResponseWriter, _ *http.Request) {
	s.visits.Add(1)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, page) // a visitor who left is seen by what the browser reports
}

// loginCookies are what a login sets: one of each kind that browsers treat in their own way.
func loginCookies() []*http.Cookie {
	const day = 24 * 60 * 60
	return []*http.Cookie{
		{Name: "sid", Domain: Domain, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: 30 * day},
		{Name: "__Host-id", Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode},
		{Name: "__Secure-lang", Path: "/account", Secure: true, MaxAge: 300 * day},
		{Name: "chips", Path: "/", Secure: true, SameSite: http.SameSiteNoneMode, Partitioned: true, MaxAge: 30 * day},
	}
}

// Cookies is how many cookies a login sets.
func Cookies() int { return len(loginCookies()) }

// LogIn logs somebody in without a browser, and returns the cookies that one would have been given.
func (s *Site) LogIn(user string) []*http.Cookie {
	v := visitor{user: user, cookies: map[string]string{}}
	set := loginCookies()
	for _, c := range set {
		var value [16]byte
		rand.Read(value[:]) // never fails, see its documentation
		// With characters that other writings of the value change.
		c.Value = hex.EncodeToString(value[:]) + "/+=%"
		v.cookies[c.Name] = c.Value
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visitors[v.cookies["sid"]] = v
	return set
}

func (s *Site) login(w http.ResponseWriter, r *http.Request) {
	user := r.FormValue("user")
	if user == "" {
		http.Redirect(w, r, "/login", http.StatusSeeOther)
		return
	}
	for _, c := range s.LogIn(user) {
		http.SetCookie(w, c)
	}
	http.Redirect(w, r, "/account", http.StatusSeeOther)
}

func (s *Site) account(w http.ResponseWriter, r *http.Request) {
	if user := s.user(r); user != "" {
		show(w, accountPage, user)
		return
	}
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

// user is the signed-in user of a request; empty unless every cookie of a login is there as it was set.
func (s *Site) user(r *http.Request) string {
	sid, err := r.Cookie("sid")
	if err != nil {
		return ""
	}
	s.mu.Lock()
	v := s.visitors[sid.Value]
	s.mu.Unlock()
	for name, value := range v.cookies {
		if all := r.CookiesNamed(name); len(all) != 1 || all[0].Value != value {
			return ""
		}
	}
	return v.user
}

func show(w http.ResponseWriter, t *template.Template, data any) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = t.Execute(w, data) // a visitor who left is seen by what the browser reports
}
