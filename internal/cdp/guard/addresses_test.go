//go:build unix

package guard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// documents serves a PDF, and a page with a frame of another site.
func documents(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, port, _ := strings.Cut(r.Host, ":")
		switch r.URL.Path {
		case "/a.pdf":
			w.Header().Set("Content-Type", "application/pdf")
			_, _ = w.Write([]byte("%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj " +
				"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 10 10]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF"))
		case "/embed":
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, `<embed src="/a.pdf" type="application/pdf"><iframe src="http://b.test:%s/a.pdf"></iframe>`, port)
		case "/inner":
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, `<script>document.title = window.early</script>`)
		default:
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, `<iframe src="http://b.test:%s/inner"></iframe>`, port)
		}
	}))
	t.Cleanup(server.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	return "http://a.test:" + port
}

// wander opens an address and goes into everything that attaches, as an attacker does: it asks for frames of frames, puts a
// script into every document, and lets each run. It returns where the scripts of the client ran.
func wander(t *testing.T, u *user, address string) (places []string) {
	t.Helper()
	_, first := u.page("")
	found := map[int]bool{}
	probe := func(session string) {
		found[u.post(session, "Runtime.evaluate",
			`{"expression":"location.href+' '+typeof (globalThis.chrome||{}).tabs","returnByValue":true}`)] = true
	}
	sessions := []string{first}
	const auto = `{"autoAttach":true,"waitForDebuggerOnStart":true,"flatten":true}`
	u.onEvent = func(m message) {
		if m.Method != "Target.attachedToTarget" {
			return
		}
		session := findText([]byte(m.Params), "sessionId")
		sessions = append(sessions, session)
		u.post(session, "Page.addScriptToEvaluateOnNewDocument", `{"source":"window.early='here'"}`)
		u.post(session, "Target.setAutoAttach", auto)
		u.post(session, "Runtime.runIfWaitingForDebugger", `{}`)
	}
	u.must(first, "Target.setAutoAttach", auto)
	u.post(first, "Page.navigate", fmt.Sprintf(`{"url":%q}`, address))
	for end, next := time.Now().Add(4*time.Second), time.Now().Add(time.Second); time.Now().Before(end); {
		ctx, cancel := context.WithDeadline(context.Background(), next)
		frame, err := u.client.Receive(ctx)
		cancel()
		if err != nil {
			next = time.Now().Add(time.Second)
			for _, session := range sessions {
				probe(session)
			}
			continue
		}
		var m message
		if err := json.Unmarshal(frame, &m); err != nil {
			t.Fatal(err)
		}
		if m.Method != "" {
			u.onEvent(m)
		} else if found[m.ID] && m.Error == nil {
			places = append(places, findText(find([]byte(m.Result), "result"), "value"))
		}
	}
	u.onEvent = nil
	return places
}

func TestNoClientHasASessionInTheBrowsersOwnPages(t *testing.T) {
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		_, mux := open(t, program, flags...)
		site := documents(t)
		for _, path := range []string{"/a.pdf", "/embed"} {
			for _, place := range wander(t, guarded(t, mux, Options{Mode: Operator}), site+path) {
				address, tabs, _ := strings.Cut(place, " ")
				if privileged(address) || tabs != "undefined" {
					t.Errorf("%s: a script of the client ran in %s", path, place)
				}
			}
		}
		if len(flags) == 0 {
			return // the shell has no viewer
		}
		if places := strings.Join(wander(t, join(t, mux, nil), site+"/a.pdf"), "\n"); !strings.Contains(places, "chrome-extension://") ||
			!strings.Contains(places, " object") {
			t.Errorf("without the guard the same walk ends in %q: this test shows nothing", places)
		}
	})
}

// Clients put their scripts into a frame before it runs.
func TestFramesOfOtherSitesBeginWithTheClientsScripts(t *testing.T) {
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		_, mux := open(t, program, flags...)
		u := guarded(t, mux, Options{Mode: Operator})
		site := documents(t)
		places := strings.Join(wander(t, u, site+"/"), "\n")
		if !strings.Contains(places, "http://b.test") || !strings.Contains(places, "http://a.test") {
			t.Fatalf("scripts ran in %q", places)
		}
		for _, m := range u.received {
			if m.Method == "" && m.Error != nil {
				t.Errorf("refused: %s", m.Error.Message)
			}
		}
	})
}
