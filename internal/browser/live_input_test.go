//go:build unix

package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestKeysAndTextReachThePage(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := liveSite(t, build, map[string]string{"/": `<title>keys</title><body style="margin:0">
			<textarea id=area style="position:absolute;left:0;top:0;width:300px;height:100px"></textarea><script>
			const seen = []; addEventListener('keydown', e => seen.push([e.key, e.code, e.keyCode, e.location, e.ctrlKey, e.altKey, e.repeat, e.isTrusted].join(' ')))
			</script>`})
		arrive(t, b, "/")
		takeOver(t, b)
		give(t, b, clicked(50, 50)...)
		for _, press := range []struct {
			key, code string
			modifiers int
			seen      string
			value     string
		}{
			{"a", "KeyA", 0, "a KeyA 65 0 false false false true", "a"},
			{"B", "KeyB", modifierShift, "B KeyB 66 0 false false false true", "aB"},
			{"ä", "Quote", 0, "ä Quote 222 0 false false false true", "aBä"},
			{"z", "KeyY", 0, "z KeyY 90 0 false false false true", "aBäz"},
			{"@", "KeyQ", modifierControl | modifierAlt, "@ KeyQ 50 0 false false false true", "aBäz@"},
			{"Backspace", "Backspace", 0, "Backspace Backspace 8 0 false false false true", "aBäz"},
			{"#", "Digit3", modifierAlt, "# Digit3 51 0 false false false true", "aBäz#"}, // a British Mac
			{"Backspace", "Backspace", 0, "Backspace Backspace 8 0 false false false true", "aBäz"},
			{"#", "Digit3", modifierAlt | modifierShift, "# Digit3 51 0 false true false true", "aBäz"}, // a shortcut
			{"@", "Digit2", modifierAlt, "@ Digit2 50 0 false false false true", "aBäz@"},               // a Nordic Mac
			{"Enter", "Enter", 0, "Enter Enter 13 0 false false false true", "aBäz@\n"},
			{"Backspace", "Backspace", 0, "Backspace Backspace 8 0 false false false true", "aBäz@"},
			{"ArrowLeft", "ArrowLeft", 0, "ArrowLeft ArrowLeft 37 0 false false false true", "aBäz@"},
			{"Delete", "Delete", 0, "Delete Delete 46 0 false false false true", "aBäz"},
			{"Home", "Home", 0, "Home Home 36 0 false false false true", "aBäz"},
			{"5", "Numpad5", 0, "5 Numpad5 101 3 false false false true", "5aBäz"},
			{"a", "KeyA", modifierControl, "a KeyA 65 0 true false false true", "5aBäz"},
			{"x", "KeyX", modifierControl, "x KeyX 88 0 true false false true", ""},
			{"v", "KeyV", modifierControl, "v KeyV 86 0 true false false true", "5aBäz"},
			{"z", "KeyZ", modifierControl, "z KeyZ 90 0 true false false true", ""},
			{"F5", "F5", 0, "F5 F5 116 0 false false false true", ""},
		} {
			in := strike(press.key, press.code, press.modifiers)
			if strings.HasPrefix(press.code, "Numpad") {
				in[0].Location, in[1].Location = 3, 3
			}
			give(t, b, in...)
			if got := read(t, b, "seen.at(-1)"); got != press.seen {
				t.Errorf("%s: the page saw %q and not %q", press.key, got, press.seen)
			}
			if got := read(t, b, "area.value"); got != press.value {
				t.Errorf("%s: the field has %q and not %q", press.key, got, press.value)
			}
		}
		give(t, b, LiveInput{Type: "compose", Text: "に", Start: 1, End: 1}, LiveInput{Type: "text", Text: "日本"},
			LiveInput{Type: "text", Text: " and more"})
		if got := read(t, b, "area.value"); got != "日本 and more" {
			t.Errorf("the field has %q", got)
		}
		give(t, b, strike("a", "KeyA", modifierMeta)...)
		if copied, err := b.Live().Do(within(t, 5*time.Second), LiveInput{Type: "copy"}); err != nil || copied != "日本 and more" {
			t.Errorf("copied %q, %v", copied, err)
		}
	})
}

func TestThePointerReachesThePage(t *testing.T) {
	b := liveSite(t, Shell, map[string]string{"/": `<body style="margin:0;height:5000px"><script>
		const seen = []; for (const kind of ['mousedown', 'mouseup', 'click', 'dblclick', 'contextmenu'])
			addEventListener(kind, e => seen.push([kind, e.clientX, e.clientY, e.button, e.detail, e.shiftKey].join(' ')));
		let moves = 0, last = ''; addEventListener('mousemove', e => { moves++; last = e.clientX + ' ' + e.clientY + ' ' + e.buttons })</script>`})
	arrive(t, b, "/")
	give(t, b, clicked(20, 30)...)
	give(t, b, LiveInput{Type: "down", X: 20, Y: 30, Clicks: 2, Buttons: 1, Modifiers: modifierShift}, LiveInput{Type: "up", X: 20, Y: 30, Clicks: 2})
	if got := read(t, b, "seen.join()"); got != "mousedown 20 30 0 1 false,mouseup 20 30 0 1 false,click 20 30 0 1 false,"+
		"mousedown 20 30 0 2 true,mouseup 20 30 0 2 false,click 20 30 0 2 false,dblclick 20 30 0 2 false" {
		t.Error(got)
	}
	for i := range 200 {
		give(t, b, LiveInput{Type: "move", X: float64(i), Y: 7, Buttons: 1})
	}
	becomes(t, b, "last", "199 7 1")
	give(t, b, LiveInput{Type: "wheel", X: 10, Y: 10, DY: 300})
	becomes(t, b, "scrollY", "300")
}

func TestAPersonGoesWhereTheyWant(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := liveSite(t, build, map[string]string{"/one": `<title>one</title><a target=_blank href=/two style="position:absolute;left:0;top:0;width:100px;height:100px">x</a>`,
			"/two": `<title>two</title>`})
		takeOver(t, b)
		give(t, b, LiveInput{Type: "go", URL: site + "/one"})
		becomes(t, b, "document.title", "one")
		give(t, b, LiveInput{Type: "go", URL: "http://site.test/two"})
		becomes(t, b, "document.title", "two")
		give(t, b, LiveInput{Type: "back"})
		becomes(t, b, "document.title", "one")
		give(t, b, LiveInput{Type: "forward"})
		becomes(t, b, "document.title", "two")
		read(t, b, "(document.title = 'stale', 0)")
		give(t, b, LiveInput{Type: "reload"})
		becomes(t, b, "document.title", "two")
		give(t, b, LiveInput{Type: "stop"}, LiveInput{Type: "back"})
		becomes(t, b, "document.title", "one")
		// A tab that a click opens is shown next.
		v := b.Live().Watch()
		defer v.Close()
		give(t, b, clicked(50, 50)...)
		nextState(t, v, "the popup is current", func(s *LiveState) bool { return len(s.Tabs) == 2 && s.Tabs[1].Current && s.Tabs[1].Title == "two" })
		give(t, b, LiveInput{Type: "tab", Tab: "t1"})
		becomes(t, b, "document.title", "one")
		give(t, b, LiveInput{Type: "open", URL: site + "/two"})
		becomes(t, b, "document.title", "two")
		give(t, b, LiveInput{Type: "close", Tab: "t3"}, LiveInput{Type: "close", Tab: "t2"})
		becomes(t, b, "document.title", "one")
	})
}

// An address that cannot be reached is told by its own name, however the person has come to it.
func TestAPersonIsToldWhatCouldNotBeLoaded(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b, _ := openSite(t, build)
		takeOver(t, b)
		fails := func(at string, in LiveInput) {
			t.Helper()
			_, err := b.Live().Do(within(t, 15*time.Second), in)
			if p, ok := problem.As(err); !ok || p.Code != problem.NavigationFailed || p.Details["url"] != at {
				t.Errorf("%s %s: %v", in.Type, in.URL, err)
			}
		}
		fails("https://refused.test/", LiveInput{Type: "go", URL: "refused.test/"})
		fails("https://refused.test/", LiveInput{Type: "reload"})
		fails("https://refused.test/there?a=b", LiveInput{Type: "go", URL: site + "/away"})
		fails("https://refused.test/there?a=b", LiveInput{Type: "reload"})
		give(t, b, LiveInput{Type: "go", URL: site + "/"})
		becomes(t, b, "document.title", "Tiny")
		fails("https://refused.test/there?a=b", LiveInput{Type: "back"})
		give(t, b, LiveInput{Type: "forward"})
		becomes(t, b, "document.title", "Tiny")
		give(t, b, LiveInput{Type: "reload"})
		becomes(t, b, "document.title", "Tiny")
	})
}

func TestTypedAddresses(t *testing.T) {
	for typed, want := range map[string]string{
		"example.com": "https://example.com", " example.com/a?b ": "https://example.com/a?b", "localhost:8080/x": "https://localhost:8080/x",
		"http://example.com": "http://example.com", "about:blank": "about:blank", "": "about:blank", "example.com:443": "https://example.com:443",
		"javascript:alert(1)": "", "file:///etc/passwd": "", "data:text/html,x": "", "chrome://settings": "", "view-source:x": "", "user:pw@example.com": "",
	} {
		if got, err := typedURL(typed); got != want || (err != nil) != (want == "") {
			t.Errorf("%q is %q, %v", typed, got, err)
		}
	}
}

func TestAPageThatHangsHoldsNobodyUp(t *testing.T) {
	b := openOwn(t, Shell, newGateway(t, livePages(map[string]string{
		"/": `<title>fine</title><body onkeydown="if (event.key === 'q') for (const end = Date.now() + 6000; Date.now() < end;);">`})).URL)
	arrive(t, b, "/")
	takeOver(t, b)
	_, err := b.Live().Do(within(t, 10*time.Second), LiveInput{Type: "keydown", Key: "q", Code: "KeyQ"})
	if problem.CodeOf(err) != problem.Timeout {
		t.Fatalf("a page that hangs: %v", err)
	}
	started := time.Now()
	for range 5 {
		if _, err := b.Live().Do(within(t, 10*time.Second), LiveInput{Type: "keydown", Key: "a", Code: "KeyA"}); problem.CodeOf(err) != problem.Timeout {
			break // it may be back on a slow machine
		}
	}
	if took := time.Since(started); took > 10*time.Second {
		t.Errorf("five keys took %v", took)
	}
	give(t, b, LiveInput{Type: "open", URL: site + "/"})
	becomes(t, b, "document.title", "fine")
	give(t, b, strike("a", "KeyA", 0)...)
}

func TestWhatIsTypedBehindAClickThatWasLostGoesNowhere(t *testing.T) {
	b := liveSite(t, Shell, map[string]string{"/": `<title>fine</title><input id=user autofocus><input id=password style="position:absolute;left:20px;top:60px">
		<script>addEventListener('keydown', e => { if (e.key === 'q') { for (const end = Date.now() + 4000; Date.now() < end;); document.title = 'back' } })</script>`})
	arrive(t, b, "/")
	takeOver(t, b)
	do := func(in LiveInput) error {
		_, err := b.Live().Do(within(t, 10*time.Second), in)
		return err
	}
	click := LiveInput{Type: "down", X: 30, Y: 70, Buttons: 1, Clicks: 1}
	if err := do(LiveInput{Type: "keydown", Key: "q", Code: "KeyQ"}); problem.CodeOf(err) != problem.Timeout {
		t.Fatalf("a page that hangs: %v", err)
	}
	if err := do(click); problem.CodeOf(err) != problem.Timeout {
		t.Fatalf("a click while it hangs: %v", err)
	}
	becomes(t, b, "document.title", "back")
	if err := do(LiveInput{Type: "text", Text: "hunter2"}); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("typed behind it: %v", err)
	}
	give(t, b, click, LiveInput{Type: "up", X: 30, Y: 70, Clicks: 1}, LiveInput{Type: "text", Text: "hunter2"})
	becomes(t, b, "user.value.replace('q', '') + '|' + password.value", "|hunter2")
}

func TestLetGoRaisesWhatIsDownAndRestoresTheWindow(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := liveSite(t, build, map[string]string{"/": `<body style="margin:0;height:900px"><script>
			const seen = []; for (const kind of ['keyup', 'mouseup']) addEventListener(kind, e => seen.push(kind + ' ' + (e.code || e.button)))</script>`})
		arrive(t, b, "/")
		before := read(t, b, "innerWidth + ' ' + innerHeight")
		l := takeOver(t, b)
		give(t, b, LiveInput{Type: "size", Width: 640, Height: 480})
		becomes(t, b, "innerWidth + ' ' + innerHeight", "640 480")
		v := l.Watch()
		defer v.Close()
		nextFrame(t, v, func(f *Frame) bool { return f.Width == 640 && f.Height == 480 })
		give(t, b, LiveInput{Type: "size", Width: 700, Height: 500})
		becomes(t, b, "innerWidth + ' ' + innerHeight", "700 500")
		give(t, b, LiveInput{Type: "keydown", Key: "Shift", Code: "ShiftLeft", Modifiers: modifierShift},
			LiveInput{Type: "down", X: 5, Y: 5, Buttons: 1, Clicks: 1})
		read(t, b, "(console.log('typed: hunter2'), fetch('/hunter2').then(() => window.fetched = 1), 0)")
		becomes(t, b, "window.fetched", "1")
		if err := l.LetGo(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		becomes(t, b, "seen.join()", "keyup ShiftLeft,mouseup 0")
		becomes(t, b, "innerWidth + ' ' + innerHeight", before)
		if log := fmt.Sprintf("%+v", do[ConsoleResult](t, b, Console{})); strings.Contains(log, "hunter2") {
			t.Errorf("the console has %s", log)
		}
		if log := fmt.Sprintf("%+v", do[RequestsResult](t, b, Requests{})); strings.Contains(log, "hunter2") || !strings.Contains(log, site) {
			t.Errorf("the requests are %s", log)
		}
		read(t, b, "console.log('afterwards')")
		becomes(t, b, "1", "1")
		if log := fmt.Sprintf("%+v", do[ConsoleResult](t, b, Console{})); !strings.Contains(log, "afterwards") {
			t.Errorf("the console has %s", log)
		}
	})
}
