//go:build unix

package browser

import (
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestWaitHoldsUntilEverythingIsTrue(t *testing.T) {
	text := func(s string) *string { return &s }
	s := newStage(t, map[string]string{"/": `<div id=d>x</div><p id=h hidden>hidden</p><p id=l>leaving</p><iframe id=f></iframe>`})
	for _, test := range []struct {
		name  string
		wait  Act
		then  string // what makes it true
		check string // what is reported before
	}{
		{"text", Act{Text: text("hello  world")}, "d.innerHTML = 'hello <b>world</b>'", "text"},
		{"text that is hidden", Act{Text: text("hidden")}, "h.hidden = false", "text"},
		{"text in a shadow root", Act{Text: text("below")}, "d.attachShadow({mode: 'open'}).innerHTML = '<p>below</p>'", "text"},
		{"text in a frame", Act{Text: text("framed")}, "f.contentDocument.body.textContent = 'framed'", "text"},
		{"text that goes", Act{TextGone: "leaving"}, "l.remove()", "textGone"},
		{"selector", Act{Selector: "#new"}, "d.innerHTML = '<i id=new>x</i>'", "selector"},
		{"selector of what is hidden", Act{Selector: "#h"}, "h.hidden = false", "selector"},
		{"address", Act{URL: "**/*#there"}, "location.hash = '#there'", "url"},
		{"function", Act{Fn: "() => window.ready"}, "window.ready = true", "fn"},
		{"promise", Act{Fn: "async () => window.ready"}, "window.ready = true", "fn"},
		{"expression", Act{Fn: "window.ready > 2"}, "window.ready = 3", "fn"},
		{"two at once", Act{Selector: "#d", TextGone: "leaving"}, "l.remove()", "textGone"},
		{"time", Act{TimeMS: 50, Text: text("late")}, "d.textContent = 'late'", "text"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := s.of(t)
			s.visit("/")
			test.wait.Kind = "wait"
			s.fails(test.wait, test.check)
			s.says("setTimeout(() => { " + test.then + " }, 200)")
			test.wait.TimeoutMS = 10_000
			s.do(test.wait)
		})
	}
}

func TestWaitGoesOnInTheNextDocument(t *testing.T) {
	s := newStage(t, map[string]string{
		"/":     `<script>setTimeout(() => location = '/next', 300)</script>`,
		"/next": `<script>setTimeout(() => document.body.append('arrived'), 300)</script><img src="/never">`,
	})
	s.visit("/")
	text := "arrived"
	s.do(Act{Kind: "wait", Text: &text, URL: "**/next", LoadState: "domcontentloaded"})
	s.fails(Act{Kind: "wait", LoadState: "load"}, "loadState")
	s.says("document.images[0].src = 'data:,'")
	s.do(Act{Kind: "wait", LoadState: "load"})
}

func TestWaitForTheNetworkToBeIdle(t *testing.T) {
	s := newStage(t, map[string]string{"/": `<script>fetch('/never')</script>`, "/still": `x`})
	s.visit("/")
	s.fails(Act{Kind: "wait", LoadState: "networkidle", TimeoutMS: 2000}, "loadState")
	s.visit("/still")
	s.do(Act{Kind: "wait", LoadState: "networkidle"})
}

func TestWaitRefusesWhatIsNoSelectorAtOnce(t *testing.T) {
	s := play(t, `x`)
	if _, err := s.try(Act{Kind: "wait", Selector: "a[["}); problem.CodeOf(err) != problem.BadRequest {
		t.Fatal(err)
	}
}

func TestWaitLeavesTheTabToOthers(t *testing.T) {
	s := play(t, `<button id=b onclick="this.className='clicked'">x</button>`)
	page, err := s.b.tab(within(t, 10*time.Second), "")
	if err != nil {
		t.Fatal(err)
	}
	release, err := page.hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	// Somebody else has the tab: to look at it and to run a script goes on, and a click has to wait.
	s.do(Act{Kind: "wait", Selector: "#b"})
	s.want("b.className", "")
	if _, err := s.try(Act{Kind: "click", Selector: "#b", TimeoutMS: 500}); problem.CodeOf(err) != problem.Timeout {
		t.Fatal(err)
	}
	s.want("b.className", "")
}

func TestAPageCannotReachTheCodeThatWaits(t *testing.T) {
	s := play(t, `<p>hello</p><button id=b onclick="document.title='clicked'">x</button><form id=f><input name=isConnected><input name=parentNode><input id=i name=getBoundingClientRect></form>
		<img name=readyState><img name=activeElement><img name=elementFromPoint>
		<script>for (const name of ['querySelectorAll', 'getBoundingClientRect', 'closest', 'getAttribute', 'matches']) Element.prototype[name] = () => { throw 'mine' };
		Promise = null; Array.prototype.includes = String.prototype.includes = () => true; window.requestAnimationFrame = window.setTimeout = () => {}; window.getComputedStyle = null</script>`)
	text := "hello"
	s.do(Act{Kind: "wait", Text: &text, Selector: "#b", LoadState: "domcontentloaded"})
	s.do(click("#b"))
	s.want("document.title", "clicked")
	s.do(typing("#i", "typed"))
	s.want("i.value", "typed")
	s.do(Act{Kind: "scrollIntoView", Selector: "#f"})
	missing := "absent"
	s.fails(Act{Kind: "wait", Text: &missing}, "text")
}

func TestEvaluateRunsInThePagesOwnWorld(t *testing.T) {
	s := play(t, `<p id=p>text</p><script>var mine = 7</script>`)
	ref := ""
	for _, test := range []struct {
		fn   string
		ref  bool
		want any
	}{
		{"() => mine", false, 7.0}, {"mine + 1", false, 8.0}, {"async () => mine", false, 7.0}, {"undefined", false, nil},
		{"function () { return 'f' }", false, "f"}, {"0 / 0", false, "NaN"}, {"10n", false, "10n"},
		{"e => e.textContent + mine", true, "text7"}, {"e => e === p", true, true},
		{"mine // with a comment", false, 7.0},
	} {
		act := Act{Kind: "evaluate", Fn: test.fn}
		if test.ref {
			if ref == "" {
				s.says("p.setAttribute('role', 'button')")
				ref = s.ref("text")
			}
			act.Ref = ref
		}
		if got := s.do(act).Value; got != test.want {
			t.Errorf("%s is %v, want %v", test.fn, got, test.want)
		}
	}
	for _, fn := range []string{"() => { throw new Error('on purpose') }", "syntax error", "() => Promise.reject('no')", "'x'.repeat(2 << 20)", "window"} {
		s.fails(Act{Kind: "evaluate", Fn: fn}, "script")
	}
	// A script that hangs is ended, and the page goes on.
	for _, act := range []Act{{Fn: "() => { for (;;); }"}, {Fn: "() => { for (;;); }", Ref: ref}, {Fn: "() => new Promise(() => {})"}} {
		act.Kind = "evaluate"
		s.fails(act, "responsive")
		s.want("mine", 7.0)
	}
}

func TestBatchTellsHowEveryActionWent(t *testing.T) {
	s := newStage(t, map[string]string{
		"/":     `<input id=i><button id=b onclick="document.title = i.value">x</button><a id=a href="/next">n</a>`,
		"/next": `<button id=c onclick="document.title='there'">c</button>`,
	})
	s.visit("/")
	result := s.do(Act{Kind: "batch", Actions: []Act{
		typing("#i", "abc"), click("#b"), {Kind: "evaluate", Fn: "document.title"},
		{Kind: "batch", Actions: []Act{click("#a"), click("#c"), {Kind: "evaluate", Fn: "document.title"}}},
	}})
	nested, _ := result.Results[3].Value.([]ActStep)
	if !result.OK || len(result.Results) != 4 || result.Results[2].Value != "abc" || len(nested) != 3 || nested[2].Value != "there" ||
		result.URL != site+"/next" {
		t.Fatalf("%+v", result)
	}

	missing := Act{Kind: "click", Selector: "#none", TimeoutMS: 500}
	goOn := false
	for _, test := range []struct {
		stop  *bool
		steps int
	}{{nil, 2}, {&goOn, 3}} {
		result := s.do(Act{Kind: "batch", StopOnError: test.stop, Actions: []Act{click("#c"), missing, click("#c")}})
		if result.OK || len(result.Results) != test.steps || !result.Results[0].OK || result.Results[1].OK ||
			result.Results[1].Code != problem.ActOperationFailed || !strings.Contains(result.Results[1].Error, "#none") {
			t.Fatalf("%+v", result)
		}
	}
	// Its own time bounds that of all.
	result = s.do(Act{Kind: "batch", StopOnError: &goOn, TimeoutMS: 800, Actions: []Act{{Kind: "wait", TimeMS: 20_000}, click("#c")}})
	if result.OK || len(result.Results) != 1 {
		t.Fatalf("%+v", result)
	}
}

func TestBatchStaysInItsTab(t *testing.T) {
	s := newStage(t, map[string]string{"/": `<button id=b onclick="document.title='clicked'">x</button>`})
	s.visit("/")
	out, err := s.b.Do(t.Context(), OpenTab{URL: site + "/", NewTab: true})
	if err != nil {
		t.Fatal(err)
	}
	tab := out.(OpenTabResult).TabID
	named := click("#b")
	named.TargetID = tab
	if result := s.do(Act{Kind: "batch", TargetID: tab, Actions: []Act{named}}); !result.OK || result.TargetID != tab {
		t.Fatalf("%+v", result)
	}
	for _, other := range []string{"t1", "t99"} {
		act := click("#b")
		act.TargetID = other
		_, err := s.try(Act{Kind: "batch", TargetID: tab, Actions: []Act{{Kind: "evaluate", Fn: "document.title = 'begun'"}, {Kind: "batch", Actions: []Act{act}}}})
		if problem.CodeOf(err) != problem.ActTargetIDMismatch {
			t.Fatalf("%s: %v", other, err)
		}
	}
	if got := s.do(Act{Kind: "evaluate", TargetID: tab, Fn: "document.title"}).Value; got != "clicked" {
		t.Fatalf("a refused batch was begun: %v", got)
	}
}
