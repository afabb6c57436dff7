//go:build unix

package browser

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

func dialogSite() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(w, `<title>Asks</title><script>
			document.title = prompt('name?', 'nobody') + ' ' + confirm('sure?')</script><input type="file" id="f">`)
	})
}

func TestAnArmedAnswerIsForOneDialog(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, newGateway(t, dialogSite()).URL)
		if got := do[Result](t, b, Navigate{URL: site + "/1"}); got.Title != "null false" || len(got.Dialogs) != 2 || got.Dialogs[0].Accepted {
			t.Errorf("nobody said anything: %+v", got)
		}
		do[Done](t, b, SetDialog{Accept: true, PromptText: "me"})
		got := do[Result](t, b, Navigate{URL: site + "/2"})
		if got.Title != "me false" || len(got.Dialogs) != 2 || !got.Dialogs[0].Accepted || got.Dialogs[1].Accepted {
			t.Errorf("the first was answered: %+v", got)
		}
		do[Done](t, b, SetDialog{Accept: false})
		if got := do[Result](t, b, Navigate{URL: site + "/3"}); got.Title != "null false" {
			t.Errorf("dismissed: %+v", got)
		}
	})
}

func TestAnArmedAnswerIsForgotten(t *testing.T) {
	b := open(t, Shell, newGateway(t, dialogSite()).URL)
	now := time.Now()
	b.now = func() time.Time { return now }
	do[Done](t, b, SetDialog{Accept: true, PromptText: "me", TimeoutMS: 1000})
	p, err := b.tab(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.armed.until = now.Add(-time.Second)
	p.mu.Unlock()
	if got := do[Result](t, b, Navigate{URL: site + "/"}); got.Title != "null false" {
		t.Errorf("got %+v", got)
	}
}

func TestAFileChooserIsKeptAndNotShown(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, newGateway(t, dialogSite()).URL)
		do[Result](t, b, Navigate{URL: site + "/"})
		p, err := b.tab(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		before := p.generation()
		click := map[string]any{"expression": `document.getElementById('f').click()`, "userGesture": true}
		if err := p.session.Call(within(t, 5*time.Second), "Runtime.evaluate", click, nil); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 5*time.Second, p.fileChooserWaits, "the chooser was seen")
		if node, mode, ok := p.takeFileChooser(); !ok || node == 0 || mode != "selectSingle" {
			t.Errorf("got %d, %q, %v", node, mode, ok)
		}
		if _, _, ok := p.takeFileChooser(); ok {
			t.Error("it was taken twice")
		}
		if p.generation() != before {
			t.Error("the generation changed without a new document")
		}
		do[Result](t, b, Navigate{URL: site + "/other"})
		if p.generation() <= before {
			t.Errorf("the generation is %d, and was %d", p.generation(), before)
		}
	})
}
