package console

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/jail"
)

func TestLogBeginsWithTheNewestLines(t *testing.T) {
	w := newFixture(t)
	furnishAgents(w)
	p := w.get("acme operator", "/console/agents/acme/writer/log")
	shows(t, p, http.StatusOK, `data-after="120-99-2"`, `data-events="/console/agents/acme/writer/events"`, "hello from &lt;img", "<summary>tool_use · opens &lt;img", "browser_navigate",
		`class="log-line stderr"`, "2.0 KiB are missing here", "the rest of the line was not kept", "It ended: signal killed, at its limit of memory.", "The program began.", "/writer/type")
	shows(t, w.get("acme viewer", "/console/agents/acme/writer/log"), http.StatusForbidden)
	w.agents.events = nil
	for range 900 {
		w.agents.events = append(w.agents.events, agent.Event{ID: "1-0-0", Type: agent.EventText, Text: "row"})
	}
	if n := strings.Count(w.get("acme operator", "/console/agents/acme/writer/log").body, "<span>row</span>"); n != logLines {
		t.Errorf("%d lines", n)
	}
	w.agents.events = nil
	shows(t, w.get("acme operator", "/console/agents/acme/writer/log"), http.StatusOK, "It has printed nothing yet.")
}

func TestLineNearTheEndIsTheBeginningOfOne(t *testing.T) {
	many := strings.Repeat("row\n", logLines+5)
	for name, c := range map[string]struct {
		offset int64
		data   string
		want   int64
	}{
		"nothing":                     {0, "", 0},
		"few lines":                   {0, "a\nb\n", 0},
		"the beginning may be lost":   {100, "half\nwhole\n", 105},
		"no line has an end":          {100, "half", 104},
		"more than are shown":         {0, many, 5 * 4},
		"more, and one that has none": {0, many + "end", 6 * 4},
	} {
		t.Run(name, func(t *testing.T) {
			if got := lineNearTheEnd(jail.LogChunk{Data: []byte(c.data), Offset: c.offset}); got != c.want {
				t.Errorf("%d, not %d", got, c.want)
			}
		})
	}
}

// flushed is an answer that is read while it is written.
type flushed struct {
	*httptest.ResponseRecorder
	wrote chan string
}

func (f *flushed) Write(b []byte) (int, error) {
	f.wrote <- string(b)
	return len(b), nil
}

func TestEventsComeAsTheyHappen(t *testing.T) {
	w := newFixture(t)
	furnishAgents(w)
	w.agents.live = make(chan agent.Event)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:18780/console/agents/acme/writer/events?after=9-0-1", nil)
	r.Header.Set("Last-Event-ID", "90-40-1")
	r.AddCookie(&http.Cookie{Name: w.cookieName(r), Value: "acme operator"})
	out := &flushed{httptest.NewRecorder(), make(chan string, 10)}
	done := make(chan struct{})
	go func() { defer close(done); w.ServeHTTP(out, r) }()
	read := func() string {
		select {
		case text := <-out.wrote:
			return text
		case <-time.After(10 * time.Second):
			t.Fatal("nothing came")
			return ""
		}
	}
	for _, text := range []string{"one", "two " + hostile} {
		w.agents.live <- agent.Event{ID: "91-40-1", At: time.Now(), Type: agent.EventText, Text: text}
		if got := read(); !strings.HasPrefix(got, "id: 91-40-1\nevent: text\ndata: {") || !strings.HasSuffix(got, "}\n\n") {
			t.Errorf("%q", got)
		}
	}
	if w.agents.after != "90-40-1" { // a browser that comes again says where it was
		t.Errorf("it began after %q", w.agents.after)
	}
	if kind := out.Header().Get("Content-Type"); kind != "text/event-stream" || out.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%v", out.Header())
	}
	close(w.agents.live)
	if got := read(); got != "event: end\ndata: {}\n\n" {
		t.Errorf("%q", got)
	}
	<-done
	shows(t, w.get("acme viewer", "/console/agents/acme/writer/events"), http.StatusForbidden)
}

func TestWhatIsTypedGoesToTheProgramAndIntoNoLog(t *testing.T) {
	w := newFixture(t)
	furnishAgents(w)
	for form, want := range map[string]string{"text=one%0D%0Atwo&newline=yes": "one\ntwo\n", "text=+kept+": " kept ", "newline=yes": "\n"} {
		p := w.send("acme operator", http.MethodPost, "/console/agents/acme/writer/type", nil, withBody(form))
		if p.location != "/console/agents/acme/writer/log" || w.agents.typed != want {
			t.Errorf("%s: to %s, %q", form, p.location, w.agents.typed)
		}
	}
	w.post("acme operator", "/console/agents/acme/writer/type", "text", "opensesame")
	if p := w.follow("acme operator", w.post("acme operator", "/console/agents/acme/writer/type", "text", "opensesame")); strings.Contains(p.body+w.written.String(), "opensesame") {
		t.Error("what was typed is told again")
	}
	p := w.post("acme operator", "/console/agents/acme/writer/type")
	shows(t, w.follow("acme operator", p), http.StatusOK, "there is nothing to type")
	p = w.post("acme operator", "/console/agents/acme/writer/programs/pr_a/type", "text", "x")
	if p.location != "/console/agents/acme/writer/programs/pr_a" || !w.agents.has("agent.type acme/writerpr_a") {
		t.Errorf("to %s: %q", p.location, w.agents.calls)
	}
}

func TestProgramsAreStartedShownAndEnded(t *testing.T) {
	w := newFixture(t)
	furnishAgents(w)
	const path = "/console/agents/acme/writer/programs"
	shows(t, w.get("acme operator", path), http.StatusOK, "echo &lt;img", "It ended: status 1.", "Start a program", path+"/pr_a/end")
	hides(t, w.get("acme operator", path), path+"/pr_b/end")
	viewer := w.get("acme viewer", path)
	shows(t, viewer, http.StatusOK, "echo &lt;img")
	hides(t, viewer, `method="post" action="/console/agents`)
	shows(t, w.post("acme viewer", path, "argv", "/bin/ls"), http.StatusForbidden)
	shows(t, w.post("acme operator", path, "argv", "/bin/ls\n"+hostile, "ttl", "long"), http.StatusUnprocessableEntity, `id="f-ttl-wrong"`, "&lt;img")
	p := w.post("acme operator", path, "argv", "/bin/ls\r\n-l /state\r\n", "where", "agent", "dir", "/state", "ttl", "5m")
	if p.location != path+"/pr_1" || len(w.agents.request.Argv) != 2 || w.agents.request.Argv[1] != "-l /state" || w.agents.request.Jail == nil || w.agents.request.TTL != 5*time.Minute {
		t.Errorf("to %s: %+v", p.location, w.agents.request)
	}
	shows(t, w.get("acme operator", path+"/pr_a"), http.StatusOK, "echo &lt;img", `data-events="`+path+`/pr_a/events"`, path+"/pr_a/type")
	shows(t, w.get("acme operator", path+"/pr_b"), http.StatusOK, `data-ended="yes"`)
	shows(t, w.get("acme operator", path+"/pr_x"), http.StatusNotFound)
	if p := w.post("acme operator", path+"/pr_a/end"); p.location != path || !w.agents.has("process.end acme/writerpr_a") {
		t.Errorf("to %s: %q", p.location, w.agents.calls)
	}
}
