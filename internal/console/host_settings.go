package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// HostBrowser is a person's host browser, as the page of its settings needs it.
type HostBrowser interface {
	// Settings are those of the configuration file, and the version of its text.
	Settings() (settings config.HostBrowser, version string, err error)
	// Change writes settings into the file. It is a conflict when the file has another version by now.
	Change(version string, to config.HostBrowser) error
	// Server says how the browser's server is doing.
	Server(ctx context.Context) (HostServer, error)
	// Restart ends the server with its browser, and starts what ran again, with the settings of the file.
	Restart(ctx context.Context) error
	// Shows says whether a page of the origin is open in the browser.
	Shows(ctx context.Context, origin string) (bool, error)
}

// HostServer is how the server of a host browser is doing.
type HostServer struct {
	Running bool // the server
	Browser bool // and its browser
	ByHand  bool // a person has started it, so nobody else starts it again
}

// HostSettings is the page on which a person changes the settings of their host browser. It is for one person at one
// machine, and for as long as the command runs that serves it.
//
// An agent can send the host browser anywhere, and has its server's token, so neither opens this page. It is opened by a code
// that the command prints and the person types into their own browser. The code is good once. No address, no argument of a program
// and no file has it. The page then carries a key in its forms: there is no cookie, which other servers of this machine would
// be sent as well. The page is not shown in the host browser, where an agent would read it, and a code that a person can have
// typed there is good no more.
type HostSettings struct {
	o HostSettingsOptions
	c *Console // its pages and files; it knows no signed-in person

	mu    sync.Mutex
	code  string
	key   string // empty before the first code was typed
	wrong int    // codes since the last right one
	open  bool   // in the host browser, or nobody knows, when it was last looked at
}

// HostSettingsOptions configure a [HostSettings]. Everything is required.
type HostSettingsOptions struct {
	Browser HostBrowser
	// Origin is where it is served, such as http://127.0.0.1:41233, and File is the configuration.
	Origin, File string
	// Code tells the person a code. It is called for the first one, and after each that was used.
	Code func(code string)
	// Used is called with each request that is not another page's.
	Used func()
	// End is called when the page is to be served no longer; why is nil when the person is done.
	End func(why error)
	Log *slog.Logger
}

// maxWrongCodes is how many wrong codes end the page: a hundred million are possible.
const maxWrongCodes = 5

// lookEvery is how often it is looked whether the page is open in the host browser. An agent whose page is there for less than
// that, while a code is pasted into it, is not seen.
const lookEvery = time.Second

// hostSettingsPolicy allows no scripts: the page has none.
const hostSettingsPolicy = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// NewHostSettings makes the page, and tells the first code.
func NewHostSettings(o HostSettingsOptions) (*HostSettings, error) {
	if o.Browser == nil || o.Origin == "" || o.File == "" || o.Code == nil || o.Used == nil || o.End == nil || o.Log == nil {
		return nil, errors.New("console: the settings of the host browser need all of their options")
	}
	settings, _, err := o.Browser.Settings()
	if err != nil {
		return nil, err
	}
	c := &Console{Options: Options{Log: o.Log}}
	if c.files, err = newAssets(themeOf(settings.Color, settings.Color)); err != nil {
		return nil, err
	}
	if c.pages, err = c.pageTemplates(); err != nil {
		return nil, err
	}
	s := &HostSettings{o: o, c: c}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renew()
	return s, nil
}

// renew makes a code. The caller holds the lock.
func (s *HostSettings) renew() {
	n, err := rand.Int(rand.Reader, big.NewInt(100_000_000))
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	s.code = fmt.Sprintf("%08d", n)
	s.o.Code(s.code[:4] + " " + s.code[4:])
}

// Watch looks at the host browser until ctx ends.
func (s *HostSettings) Watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.look(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// look renews the code when the page can have been open in the host browser, and is not any more. Where it cannot be said, it can.
func (s *HostSettings) look(ctx context.Context) {
	is, err := s.o.Browser.Shows(ctx, s.o.Origin)
	is = is || err != nil // a person who types a code is told the error
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open && !is {
		s.renew()
	}
	s.open = is
}

// ServeHTTP implements http.Handler.
func (s *HostSettings) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setPolicies(w.Header(), hostSettingsPolicy)
	if "http://"+r.Host != s.o.Origin || !s.ours(r) {
		http.Error(w, "This came from a page of somebody else's, or under a name of theirs.", http.StatusForbidden)
		return
	}
	s.o.Used()
	q := &request{c: s.c, w: w, r: r}
	switch at := r.Method + " " + r.URL.Path; {
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, Prefix+"/static/"):
		s.c.files.ServeHTTP(w, r)
	case at == "GET /":
		s.ask(q, nil)
	case at == "POST /":
		s.signIn(q)
	case at == "POST /save", at == "POST /restart", at == "POST /end":
		s.act(q)
	default:
		http.NotFound(w, r)
	}
}

// ours says that a request was not made by another page. A request that changes something says where it comes from.
func (s *HostSettings) ours(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "none" && site != "same-origin" {
		return false
	}
	origin := r.Header.Get("Origin")
	return origin == s.o.Origin || origin == "" && r.Method == http.MethodGet
}

// hostSettingsPage is what the page shows: a field for the code, or the settings, or that it is over.
type hostSettingsPage struct {
	Key     string
	Over    bool
	Form    *form
	File    string
	Version string
	Server  HostServer
	Windows []option
}

func (s *HostSettings) show(q *request, data hostSettingsPage, t *told) {
	data.File = s.o.File
	if err := q.write("host_settings", "layout", frame{Title: "Host browser", Told: t, Data: data}); err != nil {
		s.o.Log.Error("show the settings of the host browser", "error", err)
		if !q.started {
			http.Error(q.w, "The page could not be made.", http.StatusInternalServerError)
		}
	}
}

// ask shows the field for the code; why says why it is asked for again.
func (s *HostSettings) ask(q *request, why error) {
	data, t := hostSettingsPage{Form: blank()}, (*told)(nil)
	if why != nil {
		said := sayProblem(why)
		q.status, t = said.Status, &told{Text: said.Sentence(), Bad: true}
	}
	s.show(q, data, t)
}

// signIn takes a code.
func (s *HostSettings) signIn(q *request) {
	f, err := q.form()
	if err != nil {
		s.ask(q, err)
		return
	}
	inside, err := s.o.Browser.Shows(q.ctx(), s.o.Origin)
	if err != nil {
		s.ask(q, err)
		return
	}
	given := strings.Join(f.Words("code"), "")
	s.mu.Lock()
	right := subtle.ConstantTimeCompare([]byte(given), []byte(s.code)) == 1
	switch {
	case inside || s.open:
		s.open = true // it may be gone before it is looked again
		if right {
			s.renew() // an agent may have read it; the answer does not say that it was the right one
		}
		err = problem.New(problem.Forbidden, "close it there, open the address in your own browser, and type the newest code that the command has printed",
			"this page is open in the agent's browser, where an agent could read it")
	case s.wrong >= maxWrongCodes:
		err = errTooMany()
	case !right:
		err = problem.New(problem.Unauthorized, "the command that opened this page has printed it", "this is not the code")
		if s.wrong++; s.wrong >= maxWrongCodes {
			err = errTooMany()
			s.key = ""
			s.o.End(err)
		}
	default:
		s.wrong, s.key = 0, rand.Text()
		s.renew() // it was good once
	}
	key := s.key
	s.mu.Unlock()
	if err != nil {
		s.ask(q, err)
		return
	}
	s.settings(q, key, nil, nil)
}

func errTooMany() error {
	return problem.New(problem.RateLimited, "run `clawjail browser settings` again; if it was not you who typed them, look at what agents do in their browser",
		"%d wrong codes were typed into the settings of the host browser", maxWrongCodes)
}

// act does what a form of the page says, when it has the key.
func (s *HostSettings) act(q *request) {
	f, err := q.form()
	if err != nil {
		s.ask(q, err)
		return
	}
	s.mu.Lock()
	key := s.key
	s.mu.Unlock()
	if key == "" || subtle.ConstantTimeCompare([]byte(f.Values.Get("key")), []byte(key)) != 1 {
		s.ask(q, problem.New(problem.Unauthorized, "type the newest code that the command has printed", "this page is out of date, or was not opened by the command"))
		return
	}
	switch q.r.URL.Path {
	case "/save":
		s.save(q, key, f)
	case "/restart":
		if err := s.o.Browser.Restart(q.ctx()); err != nil {
			s.settings(q, key, nil, failure(q, err))
			return
		}
		s.settings(q, key, nil, &told{Text: "The browser has the settings of the file."})
	default:
		s.mu.Lock()
		s.key = ""
		s.mu.Unlock()
		s.show(q, hostSettingsPage{Over: true}, nil)
		s.o.End(nil)
	}
}

func failure(q *request, err error) *told {
	said := sayProblem(err)
	q.status = said.Status
	return &told{Text: said.Sentence(), Bad: true}
}

// hostBrowserFields are the fields of the form by the keys of the configuration.
var hostBrowserFields = map[string]string{
	"browser.control_url": "control_url", "browser.color": "color", "browser.headless": "headless", "browser.executable": "executable", "browser.listen": "listen",
	"browser.tls": "tls_cert", "browser.tls.cert": "tls_cert", "browser.tls.key": "tls_key", "browser.token": "token",
}

func (s *HostSettings) save(q *request, key string, f *form) {
	to := config.HostBrowser{Enabled: f.Has("enabled"), ControlURL: f.Get("control_url"), Color: f.Get("color"), Headless: config.Headless(f.Get("headless")),
		AttachOnly: f.Has("attach_only"), Executable: f.Get("executable")}
	listen, err := config.ParseListen(f.Get("listen"))
	if err == nil {
		to.Remote = config.RemoteBrowser{Listen: listen, TLS: config.TLS{Cert: f.Get("tls_cert"), Key: f.Get("tls_key")}, Token: f.Get("token")}
		err = s.o.Browser.Change(f.Get("version"), to)
	} else {
		said := sayProblem(err)
		f.wrong("listen", said.Message, said.Hint)
		err = to.Validate() // what else is wrong
	}
	if flaws := flawsOf(err); flaws != nil { // of what was filled in, and not of a file
		err = &problem.ValidationError{Code: problem.BadRequest, Flaws: flaws}
	}
	if err != nil && (problem.CodeOf(err) == problem.Conflict || !f.refuse(err, hostBrowserFields)) {
		s.settings(q, key, nil, failure(q, err))
		return
	}
	if !f.ok() {
		q.status = http.StatusUnprocessableEntity
		s.settings(q, key, f, nil)
		return
	}
	s.settings(q, key, nil, &told{Text: "Saved in " + s.o.File + "."})
}

// settings shows the settings; f is the form when something of it was wrong.
func (s *HostSettings) settings(q *request, key string, f *form, t *told) {
	settings, version, err := s.o.Browser.Settings()
	if err != nil {
		s.ask(q, err)
		return
	}
	data := hostSettingsPage{Key: key, Form: f, Version: version, Windows: []option{{Value: string(config.HeadlessAuto), Label: "where there is a display"},
		{Value: string(config.HeadlessNo), Label: "always"}, {Value: string(config.HeadlessYes), Label: "never"}}}
	if f == nil {
		data.Form = hostBrowserForm(settings)
	} else {
		data.Version = f.Get("version")
	}
	if data.Server, err = s.o.Browser.Server(q.ctx()); err != nil && t == nil {
		t = &told{Text: sayProblem(err).Sentence(), Bad: true}
	}
	s.show(q, data, t)
}

func hostBrowserForm(b config.HostBrowser) *form {
	listen := ""
	if b.Remote.On() {
		listen = b.Remote.Listen.String()
	}
	ticked := func(on bool) string { return map[bool]string{true: "yes"}[on] }
	return blank("enabled", ticked(b.Enabled), "control_url", b.ControlURL, "color", b.Color, "headless", string(b.Headless), "attach_only", ticked(b.AttachOnly),
		"executable", b.Executable, "listen", listen, "tls_cert", b.Remote.TLS.Cert, "tls_key", b.Remote.TLS.Key, "token", b.Remote.Token)
}

// Defaults are what holds where nothing is said, for the page's text.
func (hostSettingsPage) Defaults() config.HostBrowser { return config.Default().HostBrowser }
