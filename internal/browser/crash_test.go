//go:build unix

package browser

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// crashSite says on reached which of its addresses that do not answer were asked for.
func crashSite(reached chan<- string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		switch r.URL.Path {
		case "/hang":
			reached <- r.URL.RawQuery
			<-r.Context().Done()
		case "/framed":
			io.WriteString(w, `<title>Framed</title><p>outer</p><iframe sandbox="allow-scripts" src="/inner"></iframe>`)
		default:
			io.WriteString(w, `<title>Page</title><p>here</p><script>console.log('said before')</script>`)
		}
	})
}

// The end of a page's process ends all that waits for the page, with a code of its own, and nothing else: the tab is shown
// as crashed, and goes on at the next address.
func TestAPageThatCrashesIsKnownAtOnce(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		reached := make(chan string, 10)
		b := openOwn(t, build, newGateway(t, crashSite(reached)).URL)
		do[Result](t, b, Navigate{URL: site + "/"})
		viewer := b.Live().Watch()
		defer viewer.Close()
		nextState(t, viewer, "a tab is there", func(s *LiveState) bool { return len(s.Tabs) == 1 && !s.Tabs[0].Crashed })
		// A tab that nobody controls, and one that is on its way.
		_, err := cdp.Do(within(t, 10*time.Second), b.conn.Browser(), target.CreateTarget, target.CreateTargetParams{URL: site + "/other"})
		if err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 10*time.Second, func() bool {
			tabs, err := b.Tabs(within(t, 5*time.Second))
			return err == nil && len(tabs) == 2 && tabs[1].Title == "Page"
		}, "the other tab is there")
		ended := make(chan error, 3)
		waits := func(op Operation) {
			go func() {
				_, err := b.Do(within(t, 60*time.Second), op)
				ended <- err
			}()
		}
		never := "never"
		waits(Act{Kind: "wait", TargetID: "t1", Text: &never, TimeoutMS: 60000})
		waits(Eval{JS: "(fetch('/hang?script'), new Promise(() => {}))", TargetID: "t1", Await: true, TimeoutMS: 60000})
		if got := <-reached; got != "script" {
			t.Fatal(got)
		}
		waits(Snapshot{TargetID: "t1"}) // before, or after
		if n := kill(t, b, "renderer"); n == 0 {
			t.Fatal("no page has a process")
		}
		late := time.After(testenv.Patience * 2 * time.Second)
		failed := 0
		for range cap(ended) {
			select {
			case err := <-ended:
				if err != nil {
					failed++
				}
				if err != nil && problem.CodeOf(err) != problem.PageCrashed {
					t.Errorf("got %v", err)
				}
			case <-late:
				t.Fatal("an operation waits for a page that is gone")
			}
		}
		if failed < 2 {
			t.Errorf("%d of what waited failed", failed)
		}
		nextState(t, viewer, "both tabs have crashed", func(s *LiveState) bool { return len(s.Tabs) == 2 && s.Tabs[0].Crashed && s.Tabs[1].Crashed })
		for _, op := range []Operation{Snapshot{TargetID: "t1"}, Snapshot{TargetID: "t2"}, Screenshot{TargetID: "t1"}, Act{Kind: "press", TargetID: "t1", Key: "a"},
			Act{Kind: "batch", TargetID: "t1", Actions: []Act{{Kind: "press", Key: "a"}}}, Eval{JS: "1", TargetID: "t2"}} {
			if _, err := b.Do(within(t, 30*time.Second), op); problem.CodeOf(err) != problem.PageCrashed {
				t.Errorf("%s: %v", op.Tool(), err)
			}
		}
		if got := do[ConsoleResult](t, b, Console{TargetID: "t1"}); len(got.Messages) == 0 || got.Messages[0].Text != "said before" {
			t.Errorf("what it had said: %+v", got)
		}
		if has, err := b.Live().Secrets(within(t, 10*time.Second)); err != nil || len(has) != 0 {
			t.Errorf("passwords in pages that are gone: %v, %v", has, err)
		}
		for _, tab := range []string{"t1", "t2"} {
			if got := do[Result](t, b, Navigate{URL: site + "/again", TargetID: tab}); got.Title != "Page" || got.Status != 200 || got.TargetID != tab {
				t.Errorf("afterwards: %+v", got)
			}
			do[SnapshotResult](t, b, Snapshot{TargetID: tab})
		}
		nextState(t, viewer, "both tabs are well", func(s *LiveState) bool { return !s.Tabs[0].Crashed && !s.Tabs[1].Crashed })

		// And again.
		go func() {
			_, err := b.Do(within(t, 60*time.Second), Eval{JS: "(fetch('/hang?again'), new Promise(() => {}))", TargetID: "t1", Await: true, TimeoutMS: 60000})
			ended <- err
		}()
		<-reached
		kill(t, b, "renderer")
		if err := <-ended; problem.CodeOf(err) != problem.PageCrashed {
			t.Errorf("a second time: %v", err)
		}
		if _, err := b.Live().Do(within(t, 10*time.Second), LiveInput{Type: "reload"}); err != nil {
			t.Errorf("a person loads it again: %v", err)
		}
		testenv.Eventually(t, 10*time.Second, func() bool {
			_, err := b.Do(within(t, 5*time.Second), Snapshot{TargetID: "t1"})
			return err == nil
		}, "the page is there again")
	})
}

// A frame whose process has ended is left out, and keeps nobody waiting.
func TestAFrameThatCrashesKeepsNobodyWaiting(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := openOwn(t, build, newGateway(t, crashSite(nil)).URL)
		do[Result](t, b, Navigate{URL: site + "/framed"})
		if got := do[SnapshotResult](t, b, Snapshot{}); !strings.Contains(got.Snapshot, "here") || !strings.Contains(got.Snapshot, "outer") {
			t.Fatalf("the frame is not seen: %s", got.Snapshot)
		}
		p, err := b.anyTab(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		f := p.frameOf(1)
		if f == nil || !f.own {
			t.Fatal("the frame has no process of its own")
		}
		// It answers nothing any more, this command included.
		if err := f.session.Call(within(t, 10*time.Second), "Page.crash", nil, nil); !errors.Is(err, cdp.ErrSessionGone) {
			t.Fatal(err)
		}
		for range 2 {
			got, err := b.Do(within(t, 2*time.Second), Snapshot{TimeoutMS: 30000})
			if err != nil || !strings.Contains(got.(SnapshotResult).Snapshot, "outer") {
				t.Errorf("got %+v, %v", got, err)
			}
		}
	})
}
