//go:build unix

package browser

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func logSite() http.Handler {
	mux := http.NewServeMux()
	for path, html := range map[string]string{
		"/talks": `<title>Talks</title><script>
			console.debug('d'); console.log('said', 1, {a: 1}, null, undefined, NaN); console.warn('w'); console.error('e');
			fetch('/missing?q=1', {method: 'POST', body: 'secret-body', headers: {'X-Secret': 'secret-header'}});
			fetch('/moved'); fetch('http://dead.test/').catch(() => {});
			setTimeout(() => { throw new Error('uncaught one') }, 1); Promise.reject('uncaught two')</script>`,
		"/floods": `<title>Floods</title><script>
			for (let i = 0; i < 600; i++) console.log(i + ' ' + 'x'.repeat(3000));
			for (let i = 0; i < 600; i++) queueMicrotask(() => { throw new Error(i + 'y'.repeat(3000)) });
			for (let i = 0; i < 600; i++) fetch('/nothing?' + i + 'z'.repeat(3000)).catch(() => {});
			setTimeout(() => { document.title = 'flooded' }, 10)</script>`,
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, html)
		})
	}
	mux.HandleFunc("GET /moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/nothing", http.StatusFound) })
	mux.HandleFunc("GET /nothing", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	return mux
}

func TestWhatAPageSaysAndAsksForIsListed(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, newGateway(t, logSite()).URL)
		do[Result](t, b, Navigate{URL: site + "/talks"})
		find := func(text string) *ConsoleMessage {
			for _, m := range do[ConsoleResult](t, b, Console{}).Messages {
				if strings.Contains(m.Text, text) {
					return &m
				}
			}
			return nil
		}
		testenv.Eventually(t, 5*time.Second, func() bool { return find("e") != nil && find("404") != nil }, "the console is full")
		said := find("said")
		if said == nil || said.Text != "said 1 Object null undefined NaN" || said.Level != "info" || said.URL != site+"/talks" || said.Line != 2 || said.At.IsZero() {
			t.Errorf("said %+v", said)
		}
		for level, maximum := range map[string]string{"debug": "d", "info": "said", "warning": "w", "error": "e"} {
			got := do[ConsoleResult](t, b, Console{Level: level})
			if len(got.Messages) == 0 || !strings.HasPrefix(got.Messages[0].Text, maximum) || got.Truncated || got.TargetID != "t1" {
				t.Errorf("%s: %+v", level, got)
			}
		}
		if got := do[ConsoleResult](t, b, Console{Max: 1}); len(got.Messages) != 1 || !got.Truncated {
			t.Errorf("the newest one: %+v", got)
		}

		testenv.Eventually(t, 5*time.Second, func() bool { return len(do[ErrorsResult](t, b, Errors{}).Errors) == 2 }, "two exceptions")
		var faults strings.Builder
		for _, e := range do[ErrorsResult](t, b, Errors{Clear: true}).Errors {
			faults.WriteString(e.Level + " " + e.Text + "\n")
		}
		if all := faults.String(); !strings.Contains(all, "error Uncaught Error: uncaught one") || !strings.Contains(all, "uncaught two") {
			t.Errorf("exceptions %s", all)
		}
		if got := do[ErrorsResult](t, b, Errors{}); got.Errors == nil || len(got.Errors) != 0 {
			t.Errorf("after they were cleared: %+v", got)
		}

		requests := func(filter string) []Request { return do[RequestsResult](t, b, Requests{Filter: filter}).Requests }
		testenv.Eventually(t, 5*time.Second, func() bool {
			post, moved, dead := requests("/missing"), requests("/nothing"), requests("dead.test")
			return len(post) == 1 && post[0].Status != 0 && len(moved) == 1 && moved[0].Status == 204 && len(dead) == 1 && dead[0].Error != ""
		}, "all requests have ended: %+v", requests(""))
		if got := requests("/missing"); got[0].Method != "POST" || got[0].Type != "fetch" || got[0].URL != site+"/missing?q=1" {
			t.Errorf("the post: %+v", got)
		}
		if got := requests("/moved"); len(got) != 1 || got[0].Status != 302 {
			t.Errorf("the redirect: %+v", got)
		}
		if got := requests("/talks"); len(got) != 1 || got[0].Type != "document" || got[0].Status != 200 {
			t.Errorf("the document: %+v", got)
		}
		if got := requests("dead.test"); !strings.Contains(got[0].Error, "ERR_") {
			t.Errorf("the one that failed: %+v", got)
		}
		do[RequestsResult](t, b, Requests{Clear: true})
		if got := do[RequestsResult](t, b, Requests{}); got.Requests == nil || len(got.Requests) != 0 {
			t.Errorf("after they were cleared: %+v", got)
		}
	})
}

func TestLogsOfAPageThatFloodsStayWithinTheirBounds(t *testing.T) {
	b := open(t, Shell, newGateway(t, logSite()).URL)
	if _, err := b.Do(t.Context(), Navigate{URL: site + "/floods"}); err != nil && problem.CodeOf(err) != problem.Timeout {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, func() bool {
		console, faults := do[ConsoleResult](t, b, Console{}), do[ErrorsResult](t, b, Errors{})
		requests := do[RequestsResult](t, b, Requests{})
		return console.Truncated && faults.Truncated && requests.Truncated &&
			len(console.Messages) > 10 && len(faults.Errors) > 10 && len(requests.Requests) > 10
	}, "everything is full")
	p, err := b.tab(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	if p.console.bytes > maxConsoleBytes || p.faults.bytes > maxConsoleBytes || p.requests.bytes > maxRequestBytes ||
		len(p.console.items) > maxConsole || len(p.faults.items) > maxConsole || len(p.requests.items) > maxRequests ||
		len(p.byID) > 2*maxRequests {
		t.Errorf("kept %d, %d, %d bytes", p.console.bytes, p.faults.bytes, p.requests.bytes)
	}
	p.mu.Unlock()
	for _, m := range do[ConsoleResult](t, b, Console{}).Messages {
		if len(m.Text) > maxLine {
			t.Errorf("a message of %d bytes", len(m.Text))
		}
	}
	for _, r := range do[RequestsResult](t, b, Requests{}).Requests {
		if len(r.URL) > maxLogURL {
			t.Errorf("an address of %d bytes", len(r.URL))
		}
	}
}

func TestARingKeepsTheNewest(t *testing.T) {
	r := ring[int]{limit: 3, maxBytes: 10}
	for i := range 5 {
		r.add(i, 1)
	}
	if items, cut := r.take(false); len(items) != 3 || items[0] != 2 || !cut {
		t.Errorf("by number: %v, %v", items, cut)
	}
	r.add(5, 9)
	if items, _ := r.take(false); len(items) != 2 || items[0] != 4 {
		t.Errorf("by size: %v", items)
	}
	r.add(6, 100)
	if items, _ := r.take(true); len(items) != 1 || items[0] != 6 {
		t.Errorf("one that is too large: %v", items)
	}
	if items, cut := r.take(false); len(items) != 0 || cut {
		t.Errorf("after it was cleared: %v, %v", items, cut)
	}
}
