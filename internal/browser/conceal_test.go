//go:build unix

package browser

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// concealedValue is what a page shows in every way. Its first letters are nowhere else in it.
const concealedValue = "QxJ7vKw9.Zt4&Rm2bNc8=LpYs"

// showing is a page that shows the value whole, and where a bound cuts it.
func showing() string {
	escaped := strings.ReplaceAll(concealedValue, "&", "&amp;")
	var b strings.Builder
	fmt.Fprintf(&b, `<body><p id=c>sid=%[1]s</p><p style="text-transform:uppercase">sid=%[1]s</p>
<input id=f value="%[1]s" aria-label="field"><a id=a href="https://site.example/?t=%[1]s">link</a>
<select id=s aria-label=list><option>first<option>%[1]s</select><!-- %[1]s --><button id=b>press</button>
<div id=frame></div>`, escaped)
	for _, bound := range []int{60, 100, 200, 300, 500, 1500, 2000, 4000} {
		text := strings.Repeat("x", bound-6) + escaped + strings.Repeat("y", 5000)
		fmt.Fprintf(&b, `<p title="%[1]s">%[1]s</p><button aria-label="%[1]s" id="%[1]s" class="%[1]s">ok</button><textarea>%[1]s</textarea>
<a href="https://site.example/%[1]s">%[1]s</a><select><option>%[1]s</select>`, text)
	}
	fmt.Fprintf(&b, `<script>const v = document.getElementById('f').value;
document.title = 'x'.repeat(%d) + v + 'y'.repeat(100);
for (const n of [%d, 100, 200]) console.log('x'.repeat(n - 6) + v + 'y'.repeat(100));
history.replaceState(null, '', '/?' + 'x'.repeat(%d) + v);
</script>`, maxText-6, maxLine, maxLogURL-30)
	return b.String()
}

// cutting is a script that says the value so that a bound cuts it after six characters.
func cutting(statement string, bound int) string {
	said := fmt.Sprintf("'x'.repeat(%d) + document.getElementById('f').value + 'y'.repeat(100)", bound-6)
	return "(() => {" + fmt.Sprintf(statement, said) + "})()"
}

// longestPart is the longest beginning of the value, in either case, in an answer.
func longestPart(t *testing.T, answer any) int {
	t.Helper()
	raw, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ToLower(strings.ReplaceAll(string(raw), `\u0026`, "&"))
	n := 0
	for n < len(concealedValue) && strings.Contains(text, strings.ToLower(concealedValue[:n+1])) {
		n++
	}
	return n
}

func TestACutShowsNoPartOfAValue(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b, _ := show(t, build, showing())
		looks := map[string]func(n int) Operation{
			"text":          func(n int) Operation { return DOM{Format: "text", MaxChars: n} },
			"text of one":   func(n int) Operation { return DOM{Format: "text", Selector: "#c", MaxChars: n} },
			"html":          func(n int) Operation { return DOM{MaxChars: n} },
			"html of one":   func(n int) Operation { return DOM{Selector: "#f", MaxChars: n} },
			"snapshot":      func(n int) Operation { return Snapshot{MaxChars: n} },
			"snapshot urls": func(int) Operation { return Snapshot{MaxChars: maxChars, URLs: true} },
			"aria":          func(int) Operation { return Snapshot{Format: formatAria} },
			"domSnapshot":   func(int) Operation { return Snapshot{Format: formatDOM} },
			"query":         func(int) Operation { return Query{Selector: "body *"} },
			"console":       func(int) Operation { return Console{} },
			"requests":      func(int) Operation { return Requests{} },
			"tabs":          func(int) Operation { return Tabs{} },
			"cover": func(int) Operation {
				return Act{Kind: "select", Selector: "#s", Values: []string{"none such"}, TimeoutMS: 2000}
			},
			"thrown text": func(int) Operation { return Eval{JS: cutting("throw %s", maxThrown)} },
			"thrown":      func(int) Operation { return Eval{JS: cutting("throw new Error(%s)", maxText-len("Error: "))} },
			"value":       func(int) Operation { return Eval{JS: cutting("return %s", maxValue)} },
			"symbol":      func(int) Operation { return Eval{JS: cutting("return Symbol(%s)", maxText-len("Symbol("))} },
			"script": func(int) Operation {
				return Act{Kind: "evaluate", Fn: cutting("throw new Error(%s)", 1000-len("Error: ")), TimeoutMS: 5000}
			},
			"dialog": func(int) Operation {
				return Act{Kind: "evaluate", Fn: cutting("alert(%s)", maxText), TimeoutMS: 5000}
			},
		}
		look := func(op Operation) int {
			out, err := b.Do(within(t, time.Minute), op)
			if err == nil {
				return longestPart(t, out)
			}
			p, _ := problem.As(err)
			return longestPart(t, []any{err.Error(), p})
		}
		sized := func(name string) bool { // n changes what is shown
			return name == "text" || name == "text of one" || name == "html" || name == "html of one" || name == "snapshot"
		}
		open := map[string]int{}
		for name, make := range looks {
			for n := 1; n == 1 || n <= 60 && sized(name); n += 7 {
				open[name] = max(open[name], look(make(n)))
			}
		}
		b.Conceal(redact.New([]byte(concealedValue)))
		for _, op := range []Operation{Console{Clear: true}, Requests{Clear: true}, Navigate{URL: site + "/"}} { // what was kept before stays
			if _, err := b.Do(within(t, time.Minute), op); err != nil {
				t.Fatal(err)
			}
		}
		step := 5 // so that some cut is in the middle of the value, wherever it stands
		if testenv.IsLong() {
			step = 1
		}
		for name, make := range looks {
			for n := 1; n == 1 || n <= 80 && sized(name); n += step {
				if got := look(make(n)); got > 2 {
					t.Errorf("%s of %d shows %d characters of the value", name, n, got)
				}
			}
			if open[name] < 6 && name != "requests" {
				t.Errorf("without the control %s shows %d characters", name, open[name])
			}
		}
	})
}

func TestNoWaitAndNoSelectorConfirmsAPartOfAValue(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b, _ := show(t, build, showing())
		text := func(s string) *string { return &s }
		right, wrong := concealedValue[:2], "Qw"
		guesses := map[string]func(guess string) Operation{
			"wait for a text": func(guess string) Operation { return Act{Kind: "wait", Text: text("sid=" + guess), TimeoutMS: 2000} },
			"wait for the end of a text": func(guess string) Operation {
				return Act{Kind: "wait", TextGone: "sid=" + guess, TimeoutMS: 2000}
			},
			"wait for a selector": func(guess string) Operation {
				return Act{Kind: "wait", Selector: `[value^="` + guess + `"]`, TimeoutMS: 2000}
			},
			"wait for an address": func(guess string) Operation { return Act{Kind: "wait", URL: "**xx" + guess + "**", TimeoutMS: 2000} },
			"query":               func(guess string) Operation { return Query{Selector: `:has([value^="` + guess + `"])`} },
			"dom":                 func(guess string) Operation { return DOM{Selector: `[value^=` + guess + `]`, MaxChars: 1} },
			"snapshot":            func(guess string) Operation { return Snapshot{Selector: `[value*=` + guess + `]`} },
			"snapshot of the dom": func(guess string) Operation { return Snapshot{Format: formatDOM, Selector: `[value*=` + guess + `]`} },
			"click": func(guess string) Operation {
				return Act{Kind: "click", Selector: `[value^=` + guess + `]`, TimeoutMS: 2000}
			},
			"a part of the document": func(guess string) Operation { return Query{Selector: `#f:not([value^=` + guess + `])`} },
		}
		// told is what a caller learns of a guess.
		told := func(name, guess string) string {
			out, err := b.Do(within(t, time.Minute), guesses[name](guess))
			if err != nil {
				return problem.CodeOf(err) + strings.ReplaceAll(err.Error(), guess, "?")
			}
			raw, err := json.Marshal(out)
			if err != nil {
				t.Fatal(err)
			}
			return strings.ReplaceAll(string(raw), guess, "?")
		}
		for name := range guesses {
			if told(name, right) == told(name, wrong) {
				t.Errorf("without the control %s tells nothing", name)
			}
		}
		b.Conceal(redact.New([]byte(concealedValue)))
		for name := range guesses {
			if a, b := told(name, right), told(name, wrong); a != b {
				t.Errorf("%s tells\n%.300s of a part of the value, and\n%.300s of another", name, a, b)
			}
		}
		// Texts that are no part of the value are found all the same.
		for _, op := range []Operation{
			Act{Kind: "wait", Text: text("sid="), TimeoutMS: 5000}, Act{Kind: "wait", TextGone: "never there", Selector: "#b", TimeoutMS: 5000},
			Query{Selector: "#f"}, DOM{Selector: "p"}, Snapshot{Selector: "#c"}, Act{Kind: "click", Selector: "#b", TimeoutMS: 5000},
		} {
			if _, err := b.Do(within(t, time.Minute), op); err != nil {
				t.Errorf("%+v: %v", op, err)
			}
		}
	})
}

func TestAPageWithoutAValueIsComparedAsEver(t *testing.T) {
	b, _ := show(t, Shell, `<input data-testid=mail value=me><p>here</p>`)
	b.Conceal(redact.New([]byte(concealedValue)))
	if out, err := b.Do(within(t, time.Minute), Query{Selector: `[data-testid^=ma]`}); err != nil || out.(QueryResult).Total != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := b.Do(within(t, time.Minute), Act{Kind: "wait", Selector: `[value=me]`, TimeoutMS: 5000}); err != nil {
		t.Error(err)
	}
}

func TestTheNameOfADownloadShowsNoPartOfAValue(t *testing.T) {
	const value = `QxJ7vKw9<Zt4?Rm2bNc8`
	b, _, _ := openFolder(t, Shell)
	for _, concealed := range []bool{false, true} {
		if concealed {
			b.Conceal(redact.New([]byte(value)))
		}
		for _, before := range []int{0, maxFileName - len(".html") - 6} {
			must[EvalResult](t, b, Eval{JS: fmt.Sprintf(
				`(() => { const a = document.createElement('a'); a.href = '/page'; a.download = 'y'.repeat(%d) + %q; a.click() })()`, before, value)})
			file := must[File](t, b, WaitDownload{})
			if shows := strings.Contains(file.Name, value[:6]); shows == concealed || !strings.HasPrefix(file.Name, "y") && before > 0 {
				t.Errorf("concealed %v, it is called %q", concealed, file.Name)
			}
			if got := must[FileContent](t, b, GetFile{Name: file.Name}); len(got.Data) == 0 {
				t.Errorf("%s is empty", file.Name)
			}
		}
	}
}
