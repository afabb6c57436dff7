//go:build unix

package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// crossSite serves pages under two names that are two sites, so that a frame of the other is in another process.
func crossSite(t testing.TB, build Build, htmls map[string]string) (b *Browser, here, there string) {
	t.Helper()
	var hosts [2]string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		html := strings.NewReplacer("HERE", hosts[0], "THERE", hosts[1]).Replace(htmls[r.URL.Path])
		fmt.Fprint(w, "<!doctype html><title>T</title>"+html)
	}))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	hosts = [2]string{"http://one.test:" + u.Port(), "http://two.test:" + u.Port()}
	// The server is its own proxy: it answers for both names.
	return open(t, build, server.URL), hosts[0], hosts[1]
}

func TestSnapshotLooksIntoFrames(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b, here, there := crossSite(t, build, map[string]string{
			"/": `<body style="margin:0"><button>Top</button><iframe title=Same src="/same" style="position:absolute;left:100px;top:200px;border:5px solid;padding:3px"></iframe>
				<iframe title=Other src="THERE/other" style="position:absolute;left:500px;top:100px;border:0;transform:scale(2);transform-origin:0 0"></iframe><p>after`,
			"/same":  `<body style="margin:0"><button style="position:absolute;left:10px;top:20px;width:30px;height:40px">Same</button>`,
			"/other": `<body style="margin:0"><button style="position:absolute;left:10px;top:20px;width:30px;height:40px">Other</button><iframe src="HERE/inner" style="position:absolute;left:0;top:70px;border:0"></iframe>`,
			"/inner": `<body style="margin:0"><a href="/deep" style="position:absolute;left:1px;top:2px;width:3px;height:4px">Inner</a>`,
		})
		p := visit(t, b, here+"/")
		got := take(t, b, Snapshot{})
		if want := `- button "Top" [ref=e1]
- iframe "Same" [ref=e2]:
  - button "Same" [ref=f1e1]
- iframe "Other" [ref=e3]:
  - button "Other" [ref=f2e1]
  - iframe [ref=f2e2]:
    - link "Inner" [ref=f3e1]
- paragraph: "after"`; got.Snapshot != want {
			t.Fatalf("got:\n%s\nwant:\n%s", got.Snapshot, want)
		}
		if got.Stats.Refs != 7 || got.Stats.Lines != 8 {
			t.Errorf("%+v", got.Stats)
		}
		for ref, want := range map[string][4]float64{
			"f1e1": {100 + 5 + 3 + 10, 200 + 5 + 3 + 20, 30, 40},
			"f2e1": {500 + 2*10, 100 + 2*20, 60, 80},
			"f3e1": {500 + 2*1, 100 + 2*(70+2), 6, 8},
		} {
			e, err := p.find(within(t, 5*time.Second), Where{Ref: ref})
			if err != nil {
				t.Fatal(err)
			}
			x, y, w, h, err := e.box(within(t, 5*time.Second))
			if err != nil || [4]float64{x, y, w, h} != want {
				t.Errorf("%s: %v %v %v %v, want %v, %v", ref, x, y, w, h, want, err)
			}
			if node, err := e.backendNode(within(t, 5*time.Second)); err != nil || node == 0 {
				t.Error(node, err)
			}
			var host string
			if err := e.call(within(t, 5*time.Second), `e => e.ownerDocument.defaultView === window ? location.hostname : 'elsewhere'`, &host); err != nil ||
				host == "elsewhere" || (host == "two.test") != (ref == "f2e1") {
				t.Errorf("%s runs at %q, %v", ref, host, err)
			}
			e.release()
		}
		boxes, err := p.refBoxes(within(t, 5*time.Second), 100)
		if err != nil || len(boxes) != 7 || boxes[6].Ref != "f3e1" || boxes[6].Y != 100+2*72 {
			t.Errorf("%+v, %v", boxes, err)
		}
		if few, err := p.refBoxes(within(t, 5*time.Second), 2); err != nil || len(few) != 2 {
			t.Errorf("%+v, %v", few, err)
		}

		// One frame goes to the other site, another to a new document: the old refs are of neither, and no ref comes back.
		script(t, p, fmt.Sprintf(`Promise.all([['Same', %q], ['Other', %q]].map(([title, to]) => new Promise(done => {
			const f = document.querySelector('[title=' + title + ']'); f.onload = done; f.src = to })))`, there+"/inner", here+"/same"))
		for _, ref := range []string{"f1e1", "f2e1", "f3e1"} {
			_, err := p.find(within(t, 5*time.Second), Where{Ref: ref})
			wantCode(t, err, problem.StaleRef)
		}
		again := take(t, b, Snapshot{Interactive: true})
		if strings.Count(again.Snapshot, "link \"Inner\"") != 1 || strings.Count(again.Snapshot, "button \"Same\"") != 1 {
			t.Error(again.Snapshot)
		}
		for _, ref := range []string{"f1e1", "f2e1", "f3e1"} {
			if strings.Contains(again.Snapshot, "[ref="+ref+"]") {
				t.Errorf("%s is given again:\n%s", ref, again.Snapshot)
			}
		}
		moved := refOf(t, again.Snapshot, "Inner")
		e, err := p.find(within(t, 5*time.Second), Where{Ref: moved})
		if err != nil {
			t.Fatal(err)
		}
		defer e.release()
		if x, _, _, _, err := e.box(within(t, 5*time.Second)); err != nil || x != 100+5+3+1 {
			t.Errorf("%v, %v", x, err)
		}
	})
}

func TestSnapshotLooksIntoSoManyFrames(t *testing.T) {
	b, p := show(t, Shell, strings.Repeat(`<iframe srcdoc="<button>x</button>" style="width:9px;height:9px"></iframe>`, maxFrames+5))
	for range 3 {
		got := take(t, b, Snapshot{})
		if n := strings.Count(got.Snapshot, "- button"); n != maxFrames || !got.Truncated {
			t.Errorf("%d frames were looked into; truncated: %v", n, got.Truncated)
		}
		script(t, p, `document.querySelectorAll('iframe').forEach(f => f.replaceWith(f.cloneNode()));
			new Promise(loaded => { const wait = () => [...document.querySelectorAll('iframe')].every(f => f.contentDocument?.querySelector('button')) ? loaded() : setTimeout(wait, 5); wait() })`)
	}
	if kept := len(p.keptFrames()); kept > keptFrames {
		t.Errorf("%d frames are kept", kept)
	}
}

func TestSnapshotGoesOnWithoutAFrameThatHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: -short leaves full Chromium out; run `make test`")
	}
	b, here, _ := crossSite(t, Full, map[string]string{
		"/":     `<h1>Top</h1><iframe title=Hangs src="THERE/busy"></iframe><iframe title=Good srcdoc="<button>good</button>"></iframe>`,
		"/busy": `<script>onmessage = e => { e.source.postMessage('hangs', '*'); setTimeout(() => { for (;;); }) }</script>`,
	})
	p := visit(t, b, here+"/")
	script(t, p, `new Promise(hangs => { onmessage = hangs; frames[0].postMessage('hang', '*') })`)
	got := take(t, b, Snapshot{TimeoutMS: 4000})
	if !strings.Contains(got.Snapshot, `button "good"`) || !strings.Contains(got.Snapshot, `heading "Top"`) || !got.Truncated {
		t.Errorf("%+v", got)
	}
}

func TestWorldIsOfTheDocumentAndNotThePages(t *testing.T) {
	b, p := show(t, Shell, `<script>window.mark = 'page'</script>`)
	evaluate := func() any {
		t.Helper()
		world, err := p.world(within(t, 5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			Result struct {
				Value any `json:"value"`
			} `json:"result"`
		}
		if err := p.session.Call(within(t, 5*time.Second), "Runtime.evaluate", map[string]any{
			"contextId": world, "expression": `[typeof mark, typeof kept, location.search, globalThis.kept = 1].slice(0, 3).join()`, "returnByValue": true,
		}, &answer); err != nil {
			t.Fatal(err)
		}
		return answer.Result.Value
	}
	for _, want := range []string{"undefined,undefined,", "undefined,number,"} {
		if got := evaluate(); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	visit(t, b, site+"/?2")
	if got := evaluate(); got != "undefined,undefined,?2" {
		t.Errorf("after a navigation: %v", got)
	}
	script(t, p, `new Promise(done => { onpageshow = done; history.replaceState(0, '', '/?3'); done() })`)
	if got := evaluate(); got != "undefined,number,?3" {
		t.Errorf("within the document: %v", got)
	}
}

// keptFrames are those below the main frame that are known.
func (p *Page) keptFrames() []*frame {
	p.view.mu.Lock()
	defer p.view.mu.Unlock()
	return p.view.frames
}
