//go:build unix

package browser

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/testenv"
)

func questionSite() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(w, `<title>before</title><script>function ask() { setTimeout(() => { document.title = 'said ' + confirm('sure?') }) }
			if (location.pathname === '/stay') onbeforeunload = e => { e.preventDefault(); e.returnValue = 'x' }</script><button onclick="1">b</button>`)
	})
}

// owner is a DevTools client that answers the dialogs of a tab by itself.
type owner struct {
	t       *testing.T
	b       *Browser
	id      target.ID
	session cdp.Session
	events  *cdp.Subscription
	release func()
}

func own(t *testing.T, b *Browser, id target.ID) *owner {
	t.Helper()
	session, err := b.conn.Browser().Attach(within(t, 10*time.Second), id)
	if err != nil {
		t.Fatal(err)
	}
	o := &owner{t: t, b: b, id: id, session: session, release: b.OwnDialogs(string(id))}
	if o.events, err = o.session.Subscribe(page.JavascriptDialogOpening.Method, page.JavascriptDialogClosed.Method); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.events.Close)
	if _, err := cdp.Do(within(t, 10*time.Second), o.session, page.Enable, page.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	return o
}

// asks has the page open a dialog, and waits until the client is told.
func (o *owner) asks() {
	o.t.Helper()
	if _, err := cdp.Do(within(o.t, 10*time.Second), o.session, runtime.Evaluate, runtime.EvaluateParams{Expression: "ask()"}); err != nil {
		o.t.Fatal(err)
	}
	for {
		event, err := o.events.Next(within(o.t, 10*time.Second))
		if err != nil {
			o.t.Fatal(err)
		}
		if event.Method == page.JavascriptDialogOpening.Method {
			return
		}
	}
}

func (o *owner) titled(want string) {
	o.t.Helper()
	testenv.Eventually(o.t, 10*time.Second, func() bool {
		got, err := cdp.Do(within(o.t, 10*time.Second), o.b.conn.Browser(), target.GetTargetInfo, target.GetTargetInfoParams{TargetID: o.id})
		return err == nil && got.TargetInfo.Title == want
	}, "the page is %q", want)
}

// While a client asks for a page's events, its dialogs are the client's: nobody else answers, for as long as the client may
// take, whether the tab is used by operations too or not. A dialog that it leaves behind is answered at once.
func TestDialogsOfAClientsPageAreTheClients(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, newGateway(t, questionSite()).URL)
		do[Result](t, b, Navigate{URL: site + "/"})
		used, err := b.anyTab(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		made, err := cdp.Do(within(t, 10*time.Second), b.conn.Browser(), target.CreateTarget, target.CreateTargetParams{URL: site + "/other"})
		if err != nil {
			t.Fatal(err)
		}
		for name, id := range map[string]target.ID{"a tab that operations use": used.id, "a tab of the client's alone": made.TargetID} {
			b.LetDialogsWait(time.Hour)
			o := own(t, b, id)
			o.titled("before")
			o.asks()
			if name == "a tab that operations use" {
				// It says by itself that nobody has answered: a page that was, runs scripts.
				testenv.Eventually(t, 10*time.Second, func() bool {
					used.mu.Lock()
					defer used.mu.Unlock()
					return used.asking != nil
				}, "the dialog waits for the client")
			}
			if _, err := cdp.Do(within(t, 10*time.Second), o.session, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true}); err != nil {
				t.Fatalf("%s: somebody else has answered: %v", name, err)
			}
			o.titled("said true")

			// One that does not answer does not keep the page.
			b.LetDialogsWait(time.Millisecond)
			o.asks()
			o.titled("said false")

			// Nor does one that leaves.
			b.LetDialogsWait(time.Hour)
			o.asks()
			o.release()
			if err := b.conn.Browser().Detach(within(t, 10*time.Second), o.session); err != nil {
				t.Fatal(err)
			}
			got := do[SnapshotResult](t, b, Snapshot{TargetID: string(id)})
			if got.Title != "said false" || id == used.id && len(got.Dialogs) != 2 {
				t.Errorf("%s: after the client has left: %+v", name, got)
			}
		}
		// Without a client, dialogs are answered at once, as ever.
		if _, err := cdp.Do(within(t, 10*time.Second), used.session, runtime.Evaluate, runtime.EvaluateParams{Expression: "document.title = 'x' + confirm('now?')"}); err != nil {
			t.Fatal(err)
		}
	})
}

// A page that is to be left does not wait for the client: not for a dialog, and not for the question whether to leave.
func TestNavigationDoesNotWaitForTheClientsDialog(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, newGateway(t, questionSite()).URL)
		do[Result](t, b, Navigate{URL: site + "/"})
		p, err := b.anyTab(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		b.LetDialogsWait(time.Hour)
		o := own(t, b, p.id)
		o.asks()
		if got := do[Result](t, b, Navigate{URL: site + "/stay"}); got.URL != site+"/stay" {
			t.Errorf("got %+v", got)
		}
		if now, err := b.anyTab(t.Context(), ""); err != nil || now.id != p.id {
			t.Errorf("the tab has another page: %v", err)
		}
		// The page has to be used before it may ask.
		do[ActResult](t, b, Act{Kind: "click", Selector: "button"})
		b.LetDialogsWait(time.Millisecond)
		if got := do[Result](t, b, Navigate{URL: site + "/left"}); got.URL != site+"/left" {
			t.Errorf("got %+v", got)
		}
	})
}
