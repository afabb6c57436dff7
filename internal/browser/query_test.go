//go:build unix

package browser

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// readSite are pages that are queried and read.
func readSite() http.Handler {
	mux := http.NewServeMux()
	page := func(path, html string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, html)
		})
	}
	page("/form", `<!DOCTYPE html><html><head><title>In</title><script>if (1 < 2) { var x = "<b>" }</script></head><body>`+
		`<form id="login" class="a b"><input name="user" value="ada"><input type="password" name="p" value="hunter2-attribute">`+
		`<input name="shown" type="text" autocomplete="current-password" value="hunter2-shown">`+
		`<select><option value="1">one<option value="2" selected>two</select><textarea>t&lt;x</textarea></form>`+
		`<a href="/there?a=1&amp;b=2" title='say "x"'>Go &amp; see</a><!-- note --><br><svg><linearGradient id="g"/></svg>`+
		`<template><p>inside</p></template><p hidden>unseen</p>`+
		`<script>document.querySelector('[name=p]').value = 'hunt' + 'er2-typed'</script></body></html>`)
	// A form whose inputs have the names of what a program would call.
	page("/clobbered", `<form id="f"><input name="attributes"><input name="firstChild"><input name="getAttribute"><input name="outerHTML">
		<input name="localName"><input name="nodeType"><input name="nextSibling" type="password" value="hunter2"></form>
		<form name="querySelectorAll"></form><form name="querySelector"></form><form name="body"></form><form name="documentElement"></form>`)
	page("/hostile", `<p id="p">right</p><script>
		for (const what of [Document.prototype, Element.prototype, Node.prototype, String.prototype, Array.prototype, JSON, Object, Map.prototype])
			for (const name of Object.getOwnPropertyNames(what))
				try { Object.defineProperty(what, name, {get() { return () => 'wrong' }}) } catch {}</script>`)
	page("/huge", `<body><script>
		for (let i = 0; i < 100000; i++) { const p = document.createElement('p'); p.textContent = 'word ' + i; document.body.append(p) }
		const long = document.createElement('p'); long.id = 'long'; long.title = 'x'.repeat(20000000); long.textContent = 'y'.repeat(20000000); long.hidden = true;
		document.body.prepend(long)</script>`)
	page("/deep", `<body hidden><script>let at = document.body; for (let i = 0; i < 20000; i++) { const d = document.createElement('i'); at.append(d); at = d }
		at.textContent = 'bottom'</script>`)
	page("/busy", `<title>Busy</title><script>onload = () => setTimeout(() => { for (;;); }, 50)</script>`)
	return mux
}

func openRead(t *testing.T, build Build, path string) *Browser {
	t.Helper()
	b := open(t, build, newGateway(t, readSite()).URL)
	goTo(t, b, path)
	return b
}

func TestQuerySummarises(t *testing.T) {
	b := openRead(t, Shell, "/form")
	got := must[QueryResult](t, b, Query{Selector: "form, a, option:checked, textarea, linearGradient, input[name=user]"})
	if got.Total != 6 || got.Truncated || got.TargetID != "t1" || len(got.Elements) != 6 {
		t.Fatalf("%+v", got)
	}
	form, user, option, area, link, gradient := got.Elements[0], got.Elements[1], got.Elements[2], got.Elements[3], got.Elements[4], got.Elements[5]
	if form.Tag != "form" || form.ID != "login" || form.Class != "a b" || form.Index != 0 || form.Text != "one two t<x" && form.Text != "onetwot<x" {
		t.Errorf("form: %+v", form)
	}
	if user.Value != "ada" || user.Index != 1 || option.Value != "2" || option.Text != "two" || area.Value != "t<x" {
		t.Errorf("fields: %+v %+v %+v", user, option, area)
	}
	if link.Href != site+"/there?a=1&b=2" || link.Text != "Go & see" ||
		link.OuterHTML != `<a href="/there?a=1&amp;b=2" title="say &quot;x&quot;">Go &amp; see</a>` {
		t.Errorf("link: %+v", link)
	}
	if gradient.Tag != "linearGradient" || gradient.OuterHTML != `<linearGradient id="g"></linearGradient>` {
		t.Errorf("svg: %+v", gradient)
	}
	some := must[QueryResult](t, b, Query{Selector: "input", Max: 2})
	if some.Total != 3 || !some.Truncated || len(some.Elements) != 2 {
		t.Errorf("some: %+v", some)
	}
	if none := must[QueryResult](t, b, Query{Selector: "video"}); none.Total != 0 || none.Elements == nil {
		t.Errorf("none: %+v", none)
	}
}

// The values of password fields are in nothing that is read, and those of others are: the test is not blind.
func TestPasswordsAreNotRead(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := openRead(t, build, "/form")
		for _, op := range []Operation{
			Query{Selector: "*", Max: 1000}, DOM{}, DOM{Selector: "form"}, DOM{Selector: "[name=p]"}, DOM{Format: "text"},
		} {
			out, err := b.Do(within(t, 20*time.Second), op)
			if err != nil {
				t.Fatal(err)
			}
			all, err := json.Marshal(out)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(all), "hunter2") {
				t.Errorf("%+v tells a password: %s", op, all)
			}
			if o, ok := op.(DOM); !ok || o == (DOM{}) {
				if !strings.Contains(string(all), "ada") || !strings.Contains(string(all), "[hidden]") {
					t.Errorf("%+v does not show the name, or that something is hidden: %s", op, all)
				}
			}
		}
	})
}

func TestDOMIsThePageAsItIs(t *testing.T) {
	b := openRead(t, Shell, "/form")
	got := must[DOMResult](t, b, DOM{})
	for _, part := range []string{
		`<!DOCTYPE html><html><head><title>In</title><script>if (1 < 2) { var x = "<b>" }</script></head><body><form id="login" class="a b"><input name="user" value="ada">`,
		`<input type="password" name="p" value="[hidden]">`, `<textarea>t&lt;x</textarea>`, `<!-- note --><br><svg><linearGradient id="g"></linearGradient></svg>`,
		`<template><p>inside</p></template><p hidden="">unseen</p>`, `</body></html>`,
	} {
		if !strings.Contains(got.Text, part) {
			t.Errorf("%s is not in\n%s", part, got.Text)
		}
	}
	if got.URL != site+"/form" || got.Format != "html" || got.Truncated || got.TargetID != "t1" {
		t.Errorf("%+v", got)
	}
	text := must[DOMResult](t, b, DOM{Format: "text"})
	if !strings.Contains(text.Text, "Go & see") || strings.Contains(text.Text, "unseen") || strings.Contains(text.Text, "var x") {
		t.Errorf("text: %q", text.Text)
	}
	if one := must[DOMResult](t, b, DOM{Format: "text", Selector: "a"}); one.Text != "Go & see" {
		t.Errorf("one: %q", one.Text)
	}
	if cut := must[DOMResult](t, b, DOM{MaxChars: 20}); cut.Text != "<!DOCTYPE html><html" || !cut.Truncated {
		t.Errorf("cut: %+v", cut)
	}
	if cut := must[DOMResult](t, b, DOM{MaxChars: 2, Selector: "a", Format: "text"}); cut.Text != "Go" || !cut.Truncated {
		t.Errorf("cut: %+v", cut)
	}
	for op, code := range map[Operation]string{
		DOM{Selector: "video"}: problem.NotFound, DOM{Selector: "a["}: problem.BadRequest, Query{Selector: "a["}: problem.BadRequest,
		Query{}: problem.BadRequest, Query{Selector: "a", Max: 1001}: problem.BadRequest, Query{Selector: "a", Max: -1}: problem.BadRequest,
		DOM{Format: "xml"}: problem.BadRequest, DOM{MaxChars: maxDOMChars + 1}: problem.BadRequest, DOM{MaxChars: -1}: problem.BadRequest,
		DOM{TargetID: "nobody"}: problem.TabNotFound, Query{Selector: strings.Repeat("a", maxCSS+1)}: problem.BadRequest,
	} {
		if _, err := b.Do(within(t, 20*time.Second), op); problem.CodeOf(err) != code {
			t.Errorf("%+v: %v", op, err)
		}
	}
}

// A page changes neither what is called, nor what it means, nor can it hide a password behind names.
func TestHostilePageIsReadAllTheSame(t *testing.T) {
	b := openRead(t, Shell, "/clobbered")
	got := must[DOMResult](t, b, DOM{})
	if !strings.Contains(got.Text, `<input name="attributes"><input name="firstChild">`) || strings.Contains(got.Text, "hunter2") ||
		!strings.Contains(got.Text, `value="[hidden]"`) {
		t.Errorf("clobbered: %s", got.Text)
	}
	if q := must[QueryResult](t, b, Query{Selector: "#f"}); q.Total != 1 || q.Elements[0].Tag != "form" || strings.Contains(q.Elements[0].OuterHTML, "hunter2") {
		t.Errorf("clobbered: %+v", q)
	}
	must[DOMResult](t, b, DOM{Format: "text"})
	goTo(t, b, "/hostile")
	if q := must[QueryResult](t, b, Query{Selector: "p"}); q.Total != 1 || q.Elements[0].Text != "right" || q.Elements[0].OuterHTML != `<p id="p">right</p>` {
		t.Errorf("hostile: %+v", q)
	}
	if d := must[DOMResult](t, b, DOM{Selector: "p"}); d.Text != `<p id="p">right</p>` {
		t.Errorf("hostile: %+v", d)
	}
}

func TestHugePageIsCutInThePage(t *testing.T) {
	b := openRead(t, Shell, "/huge")
	q := must[QueryResult](t, b, Query{Selector: "*", Max: 1000})
	if q.Total < 100000 || len(q.Elements) != 1000 || !q.Truncated {
		t.Errorf("%d of %d", len(q.Elements), q.Total)
	}
	if all, _ := json.Marshal(q); len(all) > 4<<20 {
		t.Errorf("a query has %d bytes", len(all))
	}
	if d := must[DOMResult](t, b, DOM{}); len(d.Text) != domChars || !d.Truncated {
		t.Errorf("%d characters, %v", len(d.Text), d.Truncated)
	}
	if d := must[DOMResult](t, b, DOM{Format: "text", MaxChars: 1000}); len(d.Text) != 1000 || !d.Truncated {
		t.Errorf("%d characters, %v", len(d.Text), d.Truncated)
	}
	goTo(t, b, "/deep")
	if d := must[DOMResult](t, b, DOM{MaxChars: maxDOMChars}); !strings.Contains(d.Text, "<i>bottom</i>") || d.Truncated {
		t.Errorf("the depth has %d characters", len(d.Text))
	}
}
