//go:build unix

package browser

import (
	"fmt"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func typing(selector, text string) Act { return Act{Kind: "type", Selector: selector, Text: &text} }

func TestTypeWritesAtTheEnd(t *testing.T) {
	s := play(t, `<input id=plain value="one "><input id=mail type=email value="a@"><input id=number type=number value=1>
		<textarea id=area>first</textarea><div id=rich contenteditable><b>bold</b></div><label id=label>Name <input id=named></label>
		<my-box></my-box><script>document.querySelector('my-box').attachShadow({mode: 'open'}).innerHTML = '<input id=deep>';
		let events = ''; plain.oninput = () => { events += 'i' }</script>`)
	for _, test := range []struct{ selector, text, js, want string }{
		{"#plain", "two", "plain.value", "one two"},
		{"#mail", "b.test", "mail.value", "a@b.test"},
		{"#number", "23", "number.value", "123"},
		{"#area", "\nsecond ü", "area.value", "first\nsecond ü"},
		{"#rich", " and more", "rich.textContent", "bold and more"},
		{"#label", "Ann", "named.value", "Ann"},
		{"#deep", "below", "document.querySelector('my-box').shadowRoot.querySelector('input').value", "below"},
		{"#plain", "", "plain.value", "one two"},
	} {
		s.do(typing(test.selector, test.text))
		s.want(test.js, test.want)
	}
	s.want("events", "i")
}

func TestTypeSlowlyPressesEveryKey(t *testing.T) {
	s := play(t, `<form onsubmit="event.preventDefault(); document.title = 'sent ' + i.value"><input id=i></form>
		<script>const keys = []; i.onkeydown = e => keys.push([e.key, e.code, e.keyCode, e.shiftKey, e.isTrusted].join(' '))</script>`)
	act := typing("#i", "aB?é")
	act.Slowly, act.Submit = true, true
	s.do(act)
	s.want("document.title", "sent aB?é")
	s.want("keys.join()", "a KeyA 65 false true,B KeyB 66 true true,? Slash 191 true true,é  0 false true,Enter Enter 13 false true")
}

func TestTypeNeedsAField(t *testing.T) {
	s := play(t, `<div id=d>x</div><input id=r readonly value=kept><input id=o disabled><input id=c type=checkbox>
		<input id=thief onfocus="other.focus()"><input id=other>`)
	for _, id := range []string{"#d", "#r", "#c"} {
		s.fails(typing(id, "x"), "editable")
	}
	s.fails(typing("#o", "x"), "enabled")
	s.want("r.value", "kept")
	if e := s.fails(typing("#thief", "x"), "focus"); !strings.Contains(e.Message, "<input id=other>") {
		t.Fatal(e.Message)
	}
	s.want("other.value", "")
}

func TestAPasswordIsInNoAnswerOfItsField(t *testing.T) {
	const secret = "correct horse"
	s := play(t, `<input id=p type=password><input id=blocked type=password disabled><input id=d type=date>
		<input id=c type=checkbox><input id=thief type=password onfocus="p.focus()"><button id=b>x</button>`)
	slow := typing("#p", secret)
	slow.Slowly = true
	box := s.ref("checkbox")
	for _, act := range []Act{
		typing("#p", secret), slow, typing("#blocked", secret), typing("#thief", secret), typing("#b", secret), typing("#none", secret),
		{Kind: "fill", Fields: []ActField{{Ref: box, Value: secret}}},
		{Kind: "batch", Actions: []Act{typing("#p", secret), typing("#blocked", secret)}},
	} {
		act.TimeoutMS = 700
		for i := range act.Actions {
			act.Actions[i].TimeoutMS = 500
		}
		result, err := s.try(act)
		told := fmt.Sprintf("%+v %+v", result, err)
		if e, ok := problem.As(err); ok {
			told += fmt.Sprintf("%+v", *e)
		}
		if strings.Contains(told, "correct") {
			t.Errorf("%s: %s", act.Target(), told)
		}
	}
	if got := s.says("p.value"); !strings.Contains(fmt.Sprint(got), secret) {
		t.Fatal("nothing was typed")
	}
}

func TestPressChords(t *testing.T) {
	s := play(t, `<input id=i value="some text"><input id=j><script>const seen = [];
		for (const name of ['keydown', 'keyup']) addEventListener(name, e => seen.push([e.type, e.key, e.code, e.ctrlKey, e.shiftKey, e.location].join(' ')))</script>`)
	s.do(click("#i"))
	s.do(Act{Kind: "press", Key: "ControlOrMeta+a"})
	s.want("getSelection().toString()", "some text")
	s.want("seen.splice(0).join()", "keydown Control ControlLeft true false 1,keydown a KeyA true false 0,keyup a KeyA true false 0,keyup Control ControlLeft false false 1")
	s.do(Act{Kind: "press", Key: "Shift+x"})
	s.want("i.value", "X")
	s.do(Act{Kind: "press", Key: "Backspace"})
	s.want("i.value", "")
	s.do(Act{Kind: "press", Key: "+", DelayMS: 30})
	s.want("i.value", "+")
	s.do(Act{Kind: "press", Key: "Tab"})
	s.want("document.activeElement.id", "j")
	s.do(Act{Kind: "press", Key: "shift+tab"})
	s.want("document.activeElement.id", "i")
}

func TestSelectTakesValuesAndLabels(t *testing.T) {
	s := play(t, `<select id=one><option value="">none<option value=r>Red<option value=g>Green  leaf<option value=x disabled>Off</select>
		<select id=many multiple><option>a<option>b<option>c</select><select id=late></select><div id=d>x</div>
		<script>const seen = []; for (const name of ['input', 'change']) one.addEventListener(name, e => seen.push(e.type + one.value));
		setTimeout(() => { late.innerHTML = '<option>x<option>here' }, 400)</script>`)
	pick := func(selector string, values ...string) Act {
		return Act{Kind: "select", Selector: selector, Values: values}
	}
	s.do(pick("#late", "here"))
	s.want("late.value", "here")
	s.do(pick("#one", "r"))
	s.do(pick("#one", "Green leaf"))
	s.do(pick("#one", ""))
	s.want("seen.join()", "inputr,changer,inputg,changeg,input,change")
	s.do(pick("#many", "a", "c"))
	s.want("[...many.selectedOptions].map(o => o.value).join()", "a,c")
	s.do(pick("#many", "b"))
	s.want("[...many.selectedOptions].map(o => o.value).join()", "b")
	for _, value := range []string{"blue", "x"} {
		e := s.fails(pick("#one", value), "options")
		if !strings.Contains(fmt.Sprint(e.Details["options"]), "Green leaf") {
			t.Fatalf("%+v", e.Details)
		}
	}
	s.fails(pick("#one", "r", "g"), "select")
	s.fails(pick("#d", "r"), "select")
}

func TestFillLeavesEveryFieldAsAsked(t *testing.T) {
	s := play(t, `<input aria-label=Name value=old><textarea aria-label=Notes>old</textarea><input aria-label=Day type=date>
		<input aria-label=Colour type=color><input aria-label=Count type=number value=3><div aria-label=Rich role=textbox contenteditable>old</div>
		<input aria-label=On type=checkbox><input aria-label=Off type=checkbox checked>
		<div aria-label=Switch role=switch aria-checked=false tabindex=0 onclick="this.ariaChecked = this.ariaChecked !== 'true'">s</div>
		<input aria-label=First type=radio name=g checked><input aria-label=Second type=radio name=g>
		<select aria-label=Size><option>Small<option value=l>Large</select>
		<input aria-label=Stubborn type=checkbox onclick="event.preventDefault()">`)
	named := func(name string) string { return s.ref(`"` + name + `"`) }
	field := func(name string, value any) ActField { return ActField{Ref: named(name), Value: value} }
	s.do(Act{Kind: "fill", Fields: []ActField{
		field("Name", "Ann"), field("Notes", ""), field("Day", "2026-01-31"), field("Colour", "#FF4500"), field("Count", float64(42)),
		field("Rich", "new"), field("On", true), field("Off", "false"), field("Switch", true), field("Second", true), field("Size", "Large"),
	}})
	s.want(`[...document.querySelectorAll('[aria-label]')].map(e => e.type === 'checkbox' || e.type === 'radio' ? e.checked :
		e.role === 'switch' ? e.ariaChecked : e.value ?? e.textContent).join()`,
		"Ann,,2026-01-31,#ff4500,42,new,true,false,true,false,true,l,false")
	s.do(Act{Kind: "fill", Fields: []ActField{field("On", true)}}) // is not clicked again
	s.want("document.querySelector('[aria-label=On]').checked", true)
	for name, value := range map[string]any{"Day": "tomorrow", "First": "perhaps", "Second": false} {
		s.fails(Act{Kind: "fill", Fields: []ActField{field(name, value)}}, "value")
	}
	s.fails(Act{Kind: "fill", Fields: []ActField{field("Stubborn", true)}, TimeoutMS: 5000}, "state")
}
