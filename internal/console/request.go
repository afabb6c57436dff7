package console

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/problem"
)

// request is one request of somebody who is signed in, and its answer.
type request struct {
	c       *Console
	w       http.ResponseWriter
	r       *http.Request
	by      identity.Principal
	in      signin.SignIn
	status  int  // of the answer; zero is 200
	started bool // the answer has begun
}

func (q *request) ctx() context.Context { return q.r.Context() }

// value is a parameter of the path, and query one of the address.
func (q *request) value(name string) string { return q.r.PathValue(name) }
func (q *request) query(name string) string { return q.r.URL.Query().Get(name) }

// fragment says that a part of a page is asked for by a script on it.
func (q *request) fragment() bool { return q.r.Header.Get("HX-Request") == "true" }

// frame is what every page has around its own data.
type frame struct {
	Title    string
	Path     string
	By       identity.Principal
	In       signin.SignIn
	SignedIn bool
	Theme    string
	Told     *told
	Version  string
	Sections []section
	Waiting  int // what waits for an answer in all of them
	Data     any
}

// section is one line of the navigation.
type section struct {
	Path, Name, Icon string
	Current          bool
	Waiting          int // what waits for an answer there
}

// May says whether the principal may do an operation with something of a tenant's, for showing what can be done. The service
// decides again.
func (f frame) May(op identity.Operation, tenant string) bool {
	if tenant == "" {
		tenant = f.By.TenantOr("")
	}
	return identity.Can(f.By, op, tenant) == nil
}

// AllTenants says that the principal sees more than one tenant.
func (f frame) AllTenants() bool { return f.By.Tenant == "" }

func (q *request) frame(title string, data any) frame {
	f := frame{Title: title, Path: q.r.URL.RequestURI(), By: q.by, In: q.in, SignedIn: q.in.ID != "", Theme: theme(q.r), Version: q.c.Version, Data: data}
	for _, s := range sections() {
		s.Current = s.Path == Prefix+"/" && q.r.URL.Path == s.Path || s.Path != Prefix+"/" && strings.HasPrefix(q.r.URL.Path+"/", s.Path+"/")
		if s.Path == networkPath {
			s.Waiting = q.waiting()
			f.Waiting += s.Waiting
		}
		f.Sections = append(f.Sections, s)
	}
	return f
}

// waiting is how many requests for access wait for an answer of this person's.
func (q *request) waiting() int {
	if q.in.ID == "" || identity.Can(q.by, identity.AccessAnswer, q.by.TenantOr("")) != nil {
		return 0
	}
	asked, err := q.c.Egress.AccessRequests(q.ctx(), q.by, "", false)
	if err != nil {
		q.c.Log.Warn("count the requests for access that wait", "error", err) // the page is shown all the same
		return 0
	}
	return len(asked)
}

// navigation is the menu, anew.
func (c *Console) navigation(q *request) error {
	if !q.fragment() {
		return q.goTo(Prefix + "/")
	}
	// The menu is of the page that it is on.
	if at, err := url.Parse(q.r.Header.Get("HX-Current-URL")); err == nil {
		at.Path = strings.TrimPrefix(at.Path, q.c.path)
		q.r.URL = at
	}
	return q.part("overview", "menu", nil)
}

func sections() []section {
	return []section{
		{Path: Prefix + "/", Name: "Overview", Icon: "overview"}, {Path: Prefix + "/sessions", Name: "Sessions", Icon: "sessions"},
		{Path: Prefix + "/agents", Name: "Agents", Icon: "agents"}, {Path: Prefix + "/credentials", Name: "Credentials", Icon: "credentials"},
		{Path: Prefix + "/network", Name: "Network", Icon: "network"}, {Path: Prefix + "/audit", Name: "Audit", Icon: "audit"},
		{Path: Prefix + "/settings", Name: "Settings", Icon: "settings"},
	}
}

// show answers with a page. Its template is pages/NAME.html, which defines "content".
func (q *request) show(page, title string, data any) error {
	f := q.frame(title, data)
	f.Told = q.takeTold()
	return q.write(page, "layout", f)
}

// part answers with one template of a page, for a script that puts it into its place.
func (q *request) part(page, name string, data any) error {
	return q.write(page, name, q.frame("", data))
}

func (q *request) write(page, name string, f frame) error {
	// Whole, so that a page is never left half-made.
	var out bytes.Buffer
	if err := q.c.pages.write(&out, page, name, f); err != nil {
		return err
	}
	q.started = true
	q.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if q.status != 0 {
		q.w.WriteHeader(q.status)
	}
	_, _ = q.w.Write(q.c.below(out.Bytes())) // the browser that asked has gone otherwise
	return nil
}

// again shows a page with a form once more, with what was wrong.
func (q *request) again(page, title string, data any) error {
	q.status = http.StatusUnprocessableEntity
	return q.show(page, title, data)
}

// told is one sentence that the next page shows once.
type told struct {
	Text string `json:"text"`
	Bad  bool   `json:"bad,omitempty"`
}

// done goes to a page, which says what was done.
func (q *request) done(path, format string, args ...any) error {
	return q.tell(path, told{Text: fmt.Sprintf(format, args...)})
}

// failed goes to a page, which says what was wrong. It is for actions that are buttons alone; what has fields shows them again.
func (q *request) failed(path string, err error) error {
	shown := sayProblem(err)
	switch {
	case shown.Status >= http.StatusInternalServerError:
		return err
	case slices.Contains([]string{problem.Forbidden, problem.NotFound, problem.Unauthorized}, shown.Code):
		return err // a page of its own, with that status
	}
	return q.tell(path, told{Text: shown.Sentence(), Bad: true})
}

// act is done or failed.
func (q *request) act(path string, err error, format string, args ...any) error {
	if err != nil {
		return q.failed(path, err)
	}
	return q.done(path, format, args...)
}

func (q *request) toldCookie() string { return q.c.cookieName(q.r) + "-told" }

func (q *request) tell(path string, t told) error {
	t.Text = texts.Clip(t.Text, 1000)
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	cookie := q.c.newCookie(q.r, q.toldCookie(), base64.RawURLEncoding.EncodeToString(text))
	cookie.MaxAge = 60
	http.SetCookie(q.w, cookie)
	q.started = true
	http.Redirect(q.w, q.r, local(path), http.StatusSeeOther)
	return nil
}

// takeTold is what the last request left to be said.
func (q *request) takeTold() *told {
	cookie, err := q.r.Cookie(q.toldCookie())
	if err != nil {
		return nil
	}
	taken := q.c.newCookie(q.r, cookie.Name, "")
	taken.MaxAge = -1
	http.SetCookie(q.w, taken)
	var out told
	text, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil || json.Unmarshal(text, &out) != nil {
		return nil // of somebody else
	}
	return &out
}

// themeCookie is under what the colours that were chosen are kept.
const themeCookie = "clawjail-theme"

// theme is the one that was chosen: light or dark; empty is what the system has.
func theme(r *http.Request) string {
	if cookie, err := r.Cookie(themeCookie); err == nil && (cookie.Value == "light" || cookie.Value == "dark") {
		return cookie.Value
	}
	return ""
}

// said is a problem as a page shows it.
type said struct {
	Title, Message, Hint, Code string
	Status                     int
	Flaws                      []problem.Flaw
}

// Sentence is all of it in one line.
func (s said) Sentence() string {
	text := s.Message
	if s.Hint != "" {
		text += " — " + s.Hint
	}
	return text
}

func sayProblem(err error) said {
	p, ok := problem.As(err)
	if !ok {
		return said{Title: "Something went wrong", Message: problem.Unexpected, Hint: "look into the log of the control plane", Code: problem.Internal,
			Status: http.StatusInternalServerError}
	}
	out := said{Title: "This did not work", Message: p.Message, Hint: p.Hint, Code: p.Code, Status: problem.Status(p.Code), Flaws: flawsOf(err)}
	switch p.Code {
	case problem.NotFound:
		out.Title = "Nothing here"
	case problem.Forbidden:
		out.Title = "Not allowed"
	case problem.Unauthorized:
		out.Title = "Not signed in"
	}
	return out
}

// flawsOf is everything that is wrong with an input, one by one.
func flawsOf(err error) []problem.Flaw {
	var many *problem.ValidationError
	if errors.As(err, &many) {
		return many.Flaws
	}
	return nil
}

func asJSON(text string) string {
	out, err := json.Marshal(text)
	if err != nil {
		return `""` // a text has JSON
	}
	return string(out)
}
