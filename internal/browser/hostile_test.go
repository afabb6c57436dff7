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

// hostileSite are pages that do not want to be driven.
func hostileSite() http.Handler {
	mux := http.NewServeMux()
	for path, html := range map[string]string{
		"/plain":       `<title>Plain</title><p>calm</p>`,
		"/alerts":      `<title>Alerts</title><script>onload = () => setTimeout(() => { for (;;) alert('again') }, 20)</script>`,
		"/alertsNow":   `<title>Alerts</title><script>for (;;) alert('again')</script>`,
		"/loop":        `<title>Loop</title><script>onload = () => setTimeout(() => { for (;;); }, 20)</script>`,
		"/loopNow":     `<title>Loop</title><script>for (;;);</script>`,
		"/windows":     `<title>Windows</title><script>onload = () => setInterval(() => { for (let i = 0; i < 20; i++) open('/plain?' + i) }, 1)</script>`,
		"/onward":      `<title>Onward</title><script>location = '/onward?' + Math.random()</script>`,
		"/onwardLater": `<title>Onward</title><script>onload = () => setTimeout(() => { location = '/onwardLater?' + Math.random() }, 1)</script>`,
		"/stays":       `<title>Stays</title><body onclick="clicked = true" style="height:100vh"><script>onbeforeunload = e => { e.preventDefault(); e.returnValue = 'x'; for (let i = 0; i < 100; i++) try { alert(i) } catch {} }; onunload = () => { for (;;); }</script>`,
		"/chatter":     `<title>Chatter</title><script>const say = () => { for (let i = 0; i < 500; i++) { console.log('x'.repeat(5000), {a: i}); fetch('/plain?' + i) } setTimeout(say, 1) }; say()</script>`,
		"/hashes":      `<title>Hashes</title><script>let n = 0; setInterval(() => { location.hash = n++; document.title = n }, 1)</script>`,
		"/popsAlert":   `<title>Pops</title><script>onload = () => open('/alertsNow')</script>`,
		"/popsLoop":    `<title>Pops</title><script>onload = () => open('/loopNow', '', 'noopener')</script>`,
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, html)
		})
	}
	return mux
}

// lookers are the operations that leave a page as it is; none of them may need the page's scripts.
func lookers(tab string) []Operation {
	return []Operation{
		Status{}, Tabs{}, Console{TargetID: tab}, Errors{TargetID: tab}, Requests{TargetID: tab},
		SetDialog{TargetID: tab, Accept: true}, TabAction{Action: "label", TargetID: tab, Label: "hostile"},
		TabAction{Action: "list"},
	}
}

// TestATabThatHangsIsLeftWhereNoMoreTabsMayBe needs another tab for a moment, where there are as many as there may be.
func TestATabThatHangsIsLeftWhereNoMoreTabsMayBe(t *testing.T) {
	b := openOwn(t, Shell, newGateway(t, hostileSite()).URL)
	b.tabs.limit = 1
	if tabs := do[TabsResult](t, b, Tabs{}).Tabs; len(tabs) > 1 {
		t.Fatalf("it begins with %+v", tabs)
	}
	if _, err := b.Do(t.Context(), Navigate{URL: site + "/loopNow", TimeoutMS: 1000}); problem.CodeOf(err) != problem.Timeout {
		t.Fatalf("navigate: %v", err)
	}
	if _, err := b.Do(t.Context(), OpenTab{URL: site + "/plain", NewTab: true}); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("open another: %v", err)
	}
	out, err := b.Do(t.Context(), Navigate{URL: site + "/plain", TimeoutMS: 20000})
	if result, _ := out.(Result); err != nil || result.Title != "Plain" {
		t.Errorf("navigate away: %+v, %v", out, err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return len(do[TabsResult](t, b, Tabs{}).Tabs) == 1 }, "it is one tab again")
}

func TestNoHostilePageHoldsUpAnOperation(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		const maximum = 20 // a hundred take longer
		b := openOwn(t, build, newGateway(t, hostileSite()).URL)
		b.tabs.limit = maximum
		for _, test := range []struct {
			page        string
			ends        bool // its load event comes, on a machine that has the time
			shell, full bool // it is tried with that build, and not only in make test-long
			closed      bool // likewise it is closed from outside, which asks the most of those that hang, ask or want to stay
		}{
			{"/alerts", true, false, true, true}, {"/alertsNow", false, true, false, false}, {"/loop", true, false, false, true}, {"/loopNow", false, true, false, true},
			{"/windows", true, true, false, false}, {"/onward", false, true, false, false}, {"/onwardLater", true, false, false, false}, {"/stays", true, true, true, true},
			{"/chatter", true, true, false, false}, {"/hashes", true, true, false, false}, {"/popsAlert", true, false, false, false}, {"/popsLoop", true, true, false, false},
		} {
			if tried := build == Full && test.full || build == Shell && test.shell; !tried && !testenv.IsLong() {
				continue
			}
			t.Run(strings.TrimPrefix(test.page, "/"), func(t *testing.T) {
				opened, err := b.Do(t.Context(), OpenTab{URL: site + test.page, NewTab: true, TimeoutMS: 1000})
				if !test.ends && err == nil {
					t.Errorf("open: %+v", opened)
				}
				if err != nil && problem.CodeOf(err) != problem.Timeout {
					t.Errorf("open: %v", err)
				}
				tab := b.tabs.currentTab().handle()
				for _, op := range lookers(tab) {
					if _, err := b.Do(t.Context(), op); err != nil {
						t.Errorf("%s: %v", op.Tool(), err)
					}
				}
				// Other tabs that it has opened are driven as well.
				var others []Tab
				pops := strings.HasPrefix(test.page, "/pops") && build == Shell // full Chromium lets it open none by itself
				testenv.Eventually(t, 10*time.Second, func() bool { others = do[TabsResult](t, b, Tabs{}).Tabs; return !pops || len(others) > 2 }, "it opens another")
				if len(others) > 2 {
					last := others[len(others)-1].TabID
					if _, err := b.Do(t.Context(), Navigate{URL: site + "/plain", TargetID: last, TimeoutMS: 20000}); err != nil && problem.CodeOf(err) != problem.TabNotFound {
						t.Errorf("navigate %+v: %v", others[len(others)-1], err)
					}
				}
				// It is left, and its tab is good for another page.
				// Where it goes on by itself all the time, it may be quicker once.
				out, err := b.Do(t.Context(), Navigate{URL: site + "/plain", TargetID: tab, TimeoutMS: 20000})
				for again := 0; again < 5 && err == nil && out.(Result).Title == "Onward"; again++ {
					out, err = b.Do(t.Context(), Navigate{URL: site + "/plain", TargetID: tab, TimeoutMS: 20000})
				}
				// These two keep a slow machine busy for longer than a navigation may take; that it ends then is the promise.
				busy := (test.page == "/popsAlert" || test.page == "/chatter") && problem.CodeOf(err) == problem.Timeout
				if result, _ := out.(Result); !busy && (err != nil || result.Title != "Plain") {
					t.Errorf("navigate away: %+v, %v", out, err)
				}
				// And back, to be closed from outside.
				if test.closed || testenv.IsLong() {
					_, _ = b.Do(t.Context(), Navigate{URL: site + test.page, TargetID: tab, TimeoutMS: 1000})
				}
				if _, err := b.Do(t.Context(), CloseTab{TargetID: tab}); err != nil {
					t.Errorf("close: %v", err)
				}
				for {
					tabs := do[TabsResult](t, b, Tabs{}).Tabs
					if len(tabs) > maximum+20 {
						t.Errorf("%d tabs", len(tabs))
					}
					if len(tabs) == 1 {
						break
					}
					last := tabs[len(tabs)-1].TabID
					if _, err := b.Do(t.Context(), CloseTab{TargetID: last}); err != nil && problem.CodeOf(err) != problem.TabNotFound {
						t.Fatalf("close %s: %v", last, err)
					}
				}
			})
		}
	})
}
