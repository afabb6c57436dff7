package console

import (
	"bytes"
	"context"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/problem"
)

// signInPath is where people sign in.
const signInPath = Prefix + "/sign-in"

// themeLife is how long a browser keeps the colours that were chosen.
const themeLife = 365 * 24 * time.Hour

func (c *Console) signInRoutes() {
	c.mux.HandleFunc("GET "+signInPath, c.anybody(c.signInPage))
	c.mux.HandleFunc("POST "+signInPath, c.anybody(c.signIn))
	c.passkeyRoutes()
	c.post("/sign-out", c.signOut)
	c.post("/theme", c.chooseTheme)
}

// anybody lets everybody pass: to where people sign in.
func (c *Console) anybody(handle handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := &request{c: c, w: w, r: r}
		if err := handle(q); err != nil {
			c.fail(q, err)
		}
	}
}

// signInData is what the page where people sign in shows.
type signInData struct {
	Form *form
	// Code is that of a link, and Next where to go then.
	Code, Next string
}

// signInPage asks for a key, or shows the button of a link. Looking at a link does not use it up: programs that look at what
// is behind links must not take it from people.
func (c *Console) signInPage(q *request) error {
	next := local(q.query("next"))
	if cookie, err := q.r.Cookie(c.cookieName(q.r)); err == nil {
		if _, _, err := c.SignIn.Who(q.ctx(), cookie.Value); err == nil {
			http.Redirect(q.w, q.r, next, http.StatusSeeOther)
			return nil
		}
	}
	return q.show("sign-in", "Sign in", signInData{Form: blank(), Code: q.query("code"), Next: next})
}

// signIn takes a key, or the code of a link.
func (c *Console) signIn(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	data := signInData{Form: f, Code: f.Get("code"), Next: local(f.Get("next"))}
	if data.Code != "" && q.byWhoBegan(data.Code, []byte(f.Values.Encode())) {
		return nil
	}
	var cookie string
	var in signin.SignIn
	switch key := f.Get("key"); {
	case data.Code != "":
		cookie, in, err = c.SignIn.WithLink(q.ctx(), data.Code, c.from(q.r))
	case key == "":
		f.wrong("key", "write your key", "or ask for a link: clawjail console")
		return q.again("sign-in", "Sign in", data)
	default:
		cookie, in, err = c.SignIn.WithKey(q.ctx(), key, c.from(q.r))
	}
	if err != nil {
		return q.notSignedIn(data, err)
	}
	c.setCookie(q, cookie, in)
	http.Redirect(q.w, q.r, data.Next, http.StatusSeeOther)
	return nil
}

// byWhoBegan has the control plane answer that has begun a sign-in, where that is another one that can be asked.
func (q *request) byWhoBegan(begun string, body []byte) bool {
	there, err := api.ElsewhereOfSignIn(q.r, begun)
	if err != nil || there == nil {
		return false // and is none of this one's
	}
	r := q.r.Clone(q.ctx())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	q.started = true
	there.ServeHTTP(q.w, r)
	return true
}

// notSignedIn shows the page again, with why. A link that was used up has no button any more.
func (q *request) notSignedIn(data signInData, err error) error {
	shown := sayProblem(err)
	if shown.Status >= http.StatusInternalServerError {
		return err
	}
	if data.Code != "" && shown.Code != problem.RateLimited {
		data.Code = ""
		data.Form.Problem = &shown
	} else {
		data.Form.wrong("key", shown.Message, shown.Hint)
	}
	q.sayWhen(err)
	q.status = shown.Status
	return q.show("sign-in", "Sign in", data)
}

// sayWhen tells the browser when it may try again, if the error knows.
func (q *request) sayWhen(err error) {
	if wait, ok := identity.RetryAfter(err); ok {
		q.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
}

// signOut ends the caller's own sign-in, and what is open with it.
func (c *Console) signOut(q *request) error {
	// This request is held by the sign-in that it ends.
	if err := c.SignIn.End(context.WithoutCancel(q.ctx()), q.by, q.in.ID); err != nil && problem.CodeOf(err) != problem.NotFound {
		return err
	}
	c.setCookie(q, "", signin.SignIn{})
	return q.done(Prefix+"/", "You are signed out.")
}

// chooseTheme keeps the colours that were chosen in the browser.
func (c *Console) chooseTheme(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	cookie := c.newCookie(q.r, themeCookie, f.Get("theme"))
	cookie.MaxAge = int(themeLife.Seconds())
	if cookie.Value != "light" && cookie.Value != "dark" {
		cookie.Value, cookie.MaxAge = "", -1 // as the system has them
	}
	http.SetCookie(q.w, cookie)
	http.Redirect(q.w, q.r, local(f.Get("back")), http.StatusSeeOther)
	return nil
}
