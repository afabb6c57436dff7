package api

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestEveryRouteOfTheContractReachesTheSession(t *testing.T) {
	filled := strings.NewReplacer("{targetId}", "t1", "{media}", "m1", "{name}", "a.txt")
	for _, r := range control.Routes() {
		d := newTestAPI(t)
		body := ""
		if r.HasBody() {
			body = "{}"
		}
		a := d.ask(t, r.Method, "/v1/sessions/"+someID+filled.Replace(r.Path), body)
		if a.StatusCode != http.StatusOK || !slices.Equal(d.sessions.calls, []string{"drive " + someID}) {
			t.Errorf("%s: %d %s, %q", r.ID, a.StatusCode, a.body, d.sessions.calls)
		}
		if d.sessions.op == nil || d.sessions.op.Tool() != r.New().Tool() {
			t.Errorf("%s: %T", r.ID, d.sessions.op)
		}
		if a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", r.ID, a.Header)
		}
	}
}

func TestAPictureIsAnsweredWithItsAddress(t *testing.T) {
	d := newTestAPI(t)
	d.sessions.result = browser.Picture{Media: "m/1", ContentType: "image/png", Data: []byte("picture")}
	if a := d.ask(t, "POST", "/v1/sessions/"+someID+"/screenshot", `{"fullPage":true}`); !strings.Contains(a.body, `"mediaUrl":"/v1/sessions/`+someID+`/media/m%2F1"`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if op, ok := d.sessions.op.(*browser.Screenshot); !ok || !op.FullPage {
		t.Errorf("%+v", d.sessions.op)
	}
	if a := d.ask(t, "GET", "/v1/sessions/"+someID+"/screenshot?fullPage=true", ""); a.body != "picture" || a.Header.Get("Content-Type") != "image/png" {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestAFileMayBeLargerThanOtherBodies(t *testing.T) {
	d := newTestAPI(t)
	text := strings.Repeat("x", maxBody+10)
	a := d.ask(t, "PUT", "/v1/sessions/"+someID+"/files/a.bin", text, header("Content-Type", "application/octet-stream"))
	if put, ok := d.sessions.op.(*browser.PutFile); a.StatusCode != 200 || !ok || put.Name != "a.bin" || len(put.Data) != len(text) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	d = newTestAPI(t)
	text = strings.Repeat("x", control.MaxFile+1)
	d.ask(t, "PUT", "/v1/sessions/"+someID+"/files/a.bin", text, header("Content-Type", "")).wantProblem(t, 400, problem.BadRequest)
	d.ask(t, "PUT", "/v1/sessions/"+someID+"/files/a.bin", text, func(r *http.Request) { r.ContentLength = -1 }).wantProblem(t, 400, problem.BadRequest)
	noCalls(t, d)
}

// counted counts what is read of a body.
type counted struct {
	io.Reader
	n int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

func TestMuchIsReadOnlyForWhomItMayServe(t *testing.T) {
	w := newFixture(t)
	for who, limit := range map[string]int{"acme viewer": maxBody + 4096, "acme operator": control.MaxFile + 1, "": 0} {
		body := &counted{Reader: strings.NewReader(strings.Repeat("x", control.MaxFile))}
		r := httptest.NewRequest("PUT", "/v1/sessions/"+w.session+"/files/a", body)
		r.Host, r.RemoteAddr = "127.0.0.1:18780", "127.0.0.1:40000"
		if who != "" {
			r.Header.Set("Authorization", bearer+" "+w.keys[who])
		}
		answer := httptest.NewRecorder()
		w.ServeHTTP(answer, r)
		if body.n > limit || (answer.Code == 200) != (who == "acme operator") {
			t.Errorf("%q: %d %s, after %d bytes", who, answer.Code, answer.Body, body.n)
		}
	}
}

func TestAnErrorOfTheBrowserKeepsItsCode(t *testing.T) {
	d := newTestAPI(t)
	d.sessions.fail = problem.New(problem.StaleRef, "take a new snapshot", "the ref e1 is of another page")
	p := d.ask(t, "POST", "/v1/sessions/"+someID+"/act", `{"kind":"click","ref":"e1"}`).wantProblem(t, 409, problem.StaleRef)
	if p.Hint != "take a new snapshot" {
		t.Errorf("%+v", p)
	}
}

// Every file that a slow client fetched was in memory, as many at once as it had connections.
func TestFilesThatAreFetchedAtOnceAreBounded(t *testing.T) {
	var files underway
	var leaves []func()
	for range maxFilesUnderway {
		leave, err := files.enter("agent:a s_1")
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	if _, err := files.enter("agent:a s_1"); problem.CodeOf(err) != problem.RateLimited {
		t.Errorf("one more: %v", err)
	}
	other, err := files.enter("agent:b s_1")
	if err != nil {
		t.Errorf("another caller: %v", err)
	}
	for _, leave := range append(leaves, other) {
		leave()
	}
	if len(files.of) > 0 {
		t.Errorf("afterwards there are %v", files.of)
	}
}
