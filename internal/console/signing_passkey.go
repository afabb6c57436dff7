package console

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/problem"
)

// passkeysPath is where passkeys are managed.
const passkeysPath = "/settings/passkeys"

func (c *Console) passkeyRoutes() {
	c.mux.HandleFunc("POST "+signInPath+"/passkey/begin", c.anybody(inJSON(c.beginSignIn)))
	c.mux.HandleFunc("POST "+signInPath+"/passkey", c.anybody(inJSON(c.signInWithPasskey)))
	c.post(passkeysPath+"/begin", inJSON(c.beginPasskey))
	c.post(passkeysPath+"/finish", inJSON(c.finishPasskey))
	c.post(passkeysPath+"/remove", c.removePasskey)
}

// passkeyBegun is what passkey.js gives to the browser, and takes back with its answer.
type passkeyBegun struct {
	Options   json.RawMessage `json:"options"`
	Challenge string          `json:"challenge"`
}

// passkeyAnswer is what passkey.js sends.
type passkeyAnswer struct {
	Challenge string          `json:"challenge"`
	Response  json.RawMessage `json:"response"`
	Name      string          `json:"name,omitempty"`
	Next      string          `json:"next,omitempty"`
	text      []byte
}

// destination tells passkey.js where to go.
type destination struct {
	To string `json:"to"`
}

// inJSON answers a script: with what was made, or with what was wrong.
func inJSON(handle func(q *request) (any, error)) handler {
	return func(q *request) error {
		out, err := handle(q)
		if q.started { // by another control plane
			return nil
		}
		status := http.StatusOK
		if err != nil {
			shown := sayProblem(err)
			if shown.Status >= http.StatusInternalServerError {
				q.c.Log.Error("answer a script of the console", "path", q.r.URL.Path, "code", shown.Code, "error", err)
			}
			q.sayWhen(err)
			out, status = map[string]string{"problem": shown.Sentence()}, shown.Status
		}
		text, err := json.Marshal(out)
		if err != nil {
			return err
		}
		q.started = true
		q.w.Header().Set("Content-Type", "application/json")
		q.w.WriteHeader(status)
		_, _ = q.w.Write(text) // the browser that asked has gone otherwise
		return nil
	}
}

// passkeyAnswer reads what passkey.js sent.
func (q *request) passkeyAnswer() (out passkeyAnswer, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(q.w, q.r.Body, maxFormSignedOut))
	out.text = body
	if err == nil && !utf8.Valid(body) {
		err = errors.New("it is no text")
	}
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	if err != nil {
		return out, problem.Wrap(err, problem.BadRequest, "load the page anew, and try again", "the browser's answer of the passkey did not arrive")
	}
	return out, nil
}

func (c *Console) beginSignIn(q *request) (any, error) {
	options, challenge, err := c.SignIn.BeginSignIn(q.ctx(), c.from(q.r))
	return passkeyBegun{options, challenge}, err
}

func (c *Console) signInWithPasskey(q *request) (any, error) {
	a, err := q.passkeyAnswer()
	if err != nil || q.byWhoBegan(signin.MakerOf(a.Challenge), a.text) {
		return nil, err
	}
	cookie, in, err := c.SignIn.WithPasskey(q.ctx(), a.Challenge, a.Response, c.from(q.r))
	if err != nil {
		return nil, err
	}
	c.setCookie(q, cookie, in)
	return destination{c.path + local(a.Next)}, nil
}

func (c *Console) beginPasskey(q *request) (any, error) {
	options, challenge, err := c.SignIn.BeginPasskey(q.ctx(), q.by, c.from(q.r))
	return passkeyBegun{options, challenge}, err
}

func (c *Console) finishPasskey(q *request) (any, error) {
	a, err := q.passkeyAnswer()
	if err != nil || q.byWhoBegan(signin.MakerOf(a.Challenge), a.text) {
		return nil, err
	}
	return c.SignIn.FinishPasskey(q.ctx(), q.by, a.Challenge, a.Name, a.Response, c.from(q.r))
}

func (c *Console) removePasskey(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	return q.act(local(f.Get("back")), c.SignIn.RemovePasskey(q.ctx(), q.by, f.Get("id")), "The passkey was removed.")
}

// passkeyList is what the template "passkeys" shows.
type passkeyList struct {
	All []signin.Passkey
	// Back is where to go when one was removed.
	Back string
}

// passkeys are the caller's own, for the template "passkeys". back is the page that it is on.
func (q *request) passkeys(back string) (passkeyList, error) {
	all, err := q.c.SignIn.Passkeys(q.ctx(), q.by)
	return passkeyList{All: all, Back: back}, err
}
