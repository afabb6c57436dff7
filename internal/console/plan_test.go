package console

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// withBody sends a body as a form.
func withBody(body string) func(*http.Request) {
	return func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
}

const aFile = "clawbots:\n  - name: dev-bot # & <b>\n"

func TestPlanSaysWhatIsDoneAndWhatIsLost(t *testing.T) {
	w := newFixture(t)
	furnishAgents(w)
	shows(t, w.get("acme operator", "/console/agents/plan"), http.StatusOK, "<h1>Plan of clawbots.yml</h1>", `type="file"`)
	shows(t, w.get("acme viewer", "/console/agents/plan"), http.StatusForbidden)
	shows(t, w.post("acme viewer", "/console/agents/plan", "text", aFile), http.StatusForbidden)
	shows(t, w.post("acme viewer", "/console/agents/plan/apply", "text", aFile), http.StatusForbidden)
	p := w.post("acme operator", "/console/agents/plan", "text", strings.ReplaceAll(aFile, "\n", "\r\n"), "prune", "yes", "dir", "/srv")
	shows(t, p, http.StatusOK, "3 changes", "create", "512MiB → 1GiB", "exposes: /srv/&lt;img", "what is in /state is deleted for good", "1 agent will be removed", "Apply this plan",
		"# &amp; &lt;b&gt;", "the workspace of &lt;img", "1 agent declared before")
	if !w.agents.sync.DryRun || !w.agents.sync.Prune || w.agents.sync.Dir != "/srv" || w.agents.sync.Text != aFile || w.agents.sync.Tenant != "acme" {
		t.Errorf("%+v", w.agents.sync)
	}
	shows(t, w.post("acme operator", "/console/agents/plan", "text", aFile, "prune", "yes", "keep_state", "yes"), http.StatusOK, "/state stays")
}

func TestMistakesOfAFileStandAtTheirPlace(t *testing.T) {
	w := newFixture(t)
	p := w.post("acme operator", "/console/agents/plan", "text", "clawbots:\n  - name: dev-bot\n    memroy: "+hostile+"\n")
	shows(t, p, http.StatusUnprocessableEntity, "line 3, column 5", "unknown key", "<pre>    memroy: &lt;img", "memroy")
	hides(t, p, "Apply this plan")
	shows(t, w.post("acme operator", "/console/agents/plan", "text", ""), http.StatusUnprocessableEntity, `role="alert"`)
	shows(t, w.send("acme operator", http.MethodPost, "/console/agents/plan", nil, withBody("text=%ff%00")), http.StatusUnprocessableEntity, "The file is not text.")
}

func TestFileIsUploaded(t *testing.T) {
	w := newFixture(t)
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "clawbots.yml")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(part, aFile)
	form.WriteField("text", "something else")
	form.Close()
	p := w.send("acme operator", http.MethodPost, "/console/agents/plan", nil, withBody(body.String()), func(r *http.Request) { r.Header.Set("Content-Type", form.FormDataContentType()) })
	shows(t, p, http.StatusOK, "dev-bot")
	if w.agents.sync.Text != aFile {
		t.Errorf("%q", w.agents.sync.Text)
	}
}

var markField = regexp.MustCompile(`name="mark" value="([0-9a-f]+)"`)

func TestPlanIsAppliedAsItWasAgreedTo(t *testing.T) {
	w := newFixture(t)
	furnishAgents(w)
	planned := w.post("acme operator", "/console/agents/plan", "text", aFile)
	mark := markField.FindStringSubmatch(planned.body)
	if mark == nil {
		t.Fatal(planned.body)
	}
	p := w.post("acme operator", "/console/agents/plan/apply", "text", aFile, "mark", mark[1])
	shows(t, p, http.StatusOK, "create …", "create, done", "312 ms", "restart, failed", "the workspace &lt;img", "1 step that failed", "</html>")
	hides(t, p, "here-")
	if w.agents.sync.DryRun || w.agents.sync.Text != aFile {
		t.Errorf("%+v", w.agents.sync)
	}
	// Something else than what was agreed to is not done.
	w.agents.plan.Steps[1].Why = []string{"limits.memory: 512MiB → 2GiB"}
	p = w.post("acme operator", "/console/agents/plan/apply", "text", aFile, "mark", mark[1])
	shows(t, p, http.StatusOK, "Nothing was done: something has changed since that plan.", "2GiB", "Apply this plan")
	if !w.agents.sync.DryRun {
		t.Error("another plan was applied")
	}
	shows(t, w.post("acme operator", "/console/agents/plan/apply", "text", aFile), http.StatusOK, "Nothing was done")
}

// timed is a connection that takes nothing once it has a deadline, as one does whose reader does not read.
type timed struct {
	*httptest.ResponseRecorder
	deadlines []time.Time
	tried     int
}

func (w *timed) SetWriteDeadline(at time.Time) error {
	w.deadlines = append(w.deadlines, at)
	return nil
}

func (w *timed) Write([]byte) (int, error) {
	w.tried++
	return 0, os.ErrDeadlineExceeded
}

func TestWhoDoesNotReadAPlanIsNotWaitedFor(t *testing.T) {
	w := newFixture(t)
	furnishAgents(w)
	mark := markField.FindStringSubmatch(w.post("acme operator", "/console/agents/plan", "text", aFile).body)
	out, began := &timed{ResponseRecorder: httptest.NewRecorder()}, time.Now()
	w.ServeHTTP(out, w.request("acme operator", http.MethodPost, "/console/agents/plan/apply", blank("text", aFile, "mark", mark[1]).Values))
	if out.tried != 1 || len(out.deadlines) != 2 || out.deadlines[0].Before(began.Add(stepTimeout)) || !out.deadlines[1].IsZero() {
		t.Errorf("written %d times, with the deadlines %v: want one try, with one that is taken away again", out.tried, out.deadlines)
	}
	if w.agents.sync.DryRun {
		t.Error("what was begun is not done")
	}
}
