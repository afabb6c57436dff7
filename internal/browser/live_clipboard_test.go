//go:build unix

package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// boxes are six fields for a code, as logins have them. Only a paste fills them all.
const boxes = `<title>-</title><body style="margin:0"><script>
	const boxes = [];
	for (let i = 0; i < 6; i++) {
		const box = document.createElement('input'); box.maxLength = 1; document.body.append(box); boxes.push(box);
		box.addEventListener('paste', e => { e.preventDefault(); [...e.clipboardData.getData('text')].forEach((c, k) => { if (boxes[i + k]) boxes[i + k].value = c }) });
	}
	boxes[0].focus()</script>`

// A person's paste is one for the page: the page is told, and what it does not take is inserted as the browser would.
func TestAPasteIsAPasteForThePage(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := liveSite(t, build, map[string]string{"/boxes": boxes,
			"/": `<title>fields</title><input id=i><input id=p type=password><input id=m maxlength=3><input id=r readonly><textarea id=t></textarea>
				<div id=d contenteditable></div><div id=own contenteditable></div><div id=host></div><button id=button>x</button>
				<script>const shadow = host.attachShadow({mode: 'closed'}); shadow.innerHTML = '<input>';
				const seen = []; for (const kind of ['paste', 'beforeinput', 'input', 'cut', 'copy'])
					addEventListener(kind, e => seen.push(kind + ' ' + (e.inputType ?? e.clipboardData.getData('text'))), true);
				own.addEventListener('paste', e => { e.preventDefault(); own.textContent = '[' + e.clipboardData.getData('text/plain') + ']' });
				own.addEventListener('cut', e => { e.preventDefault(); e.clipboardData.setData('text/plain', 'of the editor'); own.textContent = '' })</script>`})
		arrive(t, b, "/boxes")
		takeOver(t, b)
		give(t, b, LiveInput{Type: "commit", Text: "123456"})
		if got := read(t, b, "boxes.map(b => b.value).join('')"); got != "1" {
			t.Errorf("what a keyboard has made is in the boxes as %q: nothing here tells a paste from it", got)
		}
		give(t, b, LiveInput{Type: "text", Text: "123456"})
		if got := read(t, b, "boxes.map(b => b.value).join('')"); got != "123456" {
			t.Errorf("the boxes have %q", got)
		}

		give(t, b, LiveInput{Type: "go", URL: site + "/"})
		becomes(t, b, "document.title + typeof own", "fieldsobject")
		const lines = "a  <b>&amp;\n\n\tc 😀\n"
		long := strings.Repeat(strings.Repeat("x", 79)+"\n", 3000)
		for _, test := range []struct{ focus, text, value, want, seen string }{
			{"i.focus()", "a\nb 😀", "i.value", "a b 😀", "paste a\nb 😀,beforeinput insertFromPaste,input insertText"},
			{"p.focus()", "hunter2", "p.value", "hunter2", "paste hunter2,beforeinput insertFromPaste,input insertText"},
			{"m.focus()", "12345", "m.value", "123", "paste 12345,beforeinput insertFromPaste,input insertText"},
			{"r.focus()", "no", "r.value", "", ""},
			{"t.focus()", lines, "t.value", lines, "paste " + lines + ",beforeinput insertFromPaste,input "},
			{"(t.value = '', t.focus())", long, "t.value", long, "paste " + long + ",beforeinput insertFromPaste,input "},
			{"d.focus()", "a\nb", "d.innerText", "a\nb", ""},
			{"(d.textContent = '', d.focus())", long, "d.innerText.trim().length", fmt.Sprint(len(long) - 1), ""},
			{"own.focus()", "rich\ntext", "own.textContent", "[rich\ntext]", "paste rich\ntext"},
			{"shadow.firstChild.focus()", "deep", "shadow.firstChild.value", "deep", "paste deep,beforeinput insertFromPaste,input insertText"},
			{"button.focus()", "nowhere", "document.body.innerText.includes('nowhere')", "false", "paste nowhere"},
		} {
			read(t, b, "(seen.length = 0, "+test.focus+")")
			give(t, b, LiveInput{Type: "text", Text: test.text})
			if got := read(t, b, test.value); got != test.want {
				t.Errorf("%s: it has %.200q and not %.200q", test.focus, got, test.want)
			}
			if got := read(t, b, "seen.join()"); test.seen != "" && got != test.seen {
				t.Errorf("%s: the page saw %.200q and not %.200q", test.focus, got, test.seen)
			}
		}
		// The text is not left where the next one who has the browser could paste it from.
		read(t, b, "(i.value = '', i.focus())")
		give(t, b, strike("v", "KeyV", modifierControl)...)
		if got := read(t, b, "i.value"); got != "" {
			t.Errorf("the browser's own clipboard has %.200q", got)
		}

		for _, test := range []struct{ kind, select_, copied, value, left string }{
			{"copy", "(i.value = 'one two', i.focus(), i.setSelectionRange(0, 3))", "one", "i.value", "one two"},
			{"cut", "i.setSelectionRange(0, 3)", "one", "i.value", " two"},
			{"cut", "(p.value = 'hunter2', p.focus(), p.select())", "", "p.value", "hunter2"},
			{"cut", "(own.textContent = 'x', own.focus())", "of the editor", "own.textContent", ""},
		} {
			read(t, b, "("+test.select_+", 0)")
			if copied, err := b.Live().Do(within(t, 5*time.Second), LiveInput{Type: test.kind}); err != nil || copied != test.copied {
				t.Errorf("%s of %s: copied %q, %v", test.kind, test.select_, copied, err)
			}
			if got := read(t, b, test.value); got != test.left {
				t.Errorf("%s of %s: it has %q and not %q", test.kind, test.select_, got, test.left)
			}
		}
		read(t, b, "(i.value = '', i.focus())")
		give(t, b, strike("v", "KeyV", modifierControl)...)
		if got := read(t, b, "i.value"); got != "" {
			t.Errorf("what was cut is in the browser's own clipboard: %q", got)
		}
		// The control: what the page's own key cuts is there.
		read(t, b, "(i.value = 'there', i.select())")
		give(t, b, strike("x", "KeyX", modifierControl)...)
		give(t, b, strike("v", "KeyV", modifierControl)...)
		if got := read(t, b, "i.value"); got != "there" {
			t.Errorf("the clipboard of the browser has %q", got)
		}

		give(t, b, LiveInput{Type: "compose", Text: "に", Start: 1, End: 1})
		read(t, b, "(seen.length = 0, 0)")
		give(t, b, LiveInput{Type: "text", Text: "日本"})
		if got := read(t, b, "seen.join().includes('paste') + i.value"); got != "falsethere日本" {
			t.Errorf("the outcome of a composition: %q", got)
		}
	})
}

// A page that asks something or leaves while it is told of a paste holds nobody up.
func TestAPasteIntoAPageThatAsksOrLeaves(t *testing.T) {
	b := liveSite(t, Shell, map[string]string{"/": `<title>fine</title><input id=i autofocus><script>
		i.addEventListener('paste', e => { const text = e.clipboardData.getData('text');
			if (text === 'ask') alert(text); if (text === 'leave') location = '/two' })</script>`,
		"/two": `<title>two</title>`})
	arrive(t, b, "/")
	l := takeOver(t, b)
	v := l.Watch()
	defer v.Close()
	give(t, b, LiveInput{Type: "text", Text: "ask"})
	var asked Popup
	nextState(t, v, "the page asks", func(s *LiveState) bool {
		if len(s.Popups) == 1 {
			asked = s.Popups[0]
		}
		return len(s.Popups) == 1
	})
	if _, err := l.Do(within(t, 5*time.Second), LiveInput{Type: "text", Text: "late"}); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("while it asks: %v", err)
	}
	give(t, b, LiveInput{Type: "answer", Popup: asked.ID, Accept: true})
	becomes(t, b, "i.value", "ask") // behind the answer
	give(t, b, LiveInput{Type: "text", Text: "leave"})
	becomes(t, b, "document.title", "two")
}
