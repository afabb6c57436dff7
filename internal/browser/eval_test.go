//go:build unix

package browser

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestEval(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := openRead(t, build, "/form")
		for _, test := range []struct {
			js    string
			await bool
			want  EvalResult
		}{
			{"1 + 1", false, EvalResult{Type: "number", Value: 2.0}},
			{"1 + 1 // two", false, EvalResult{Type: "number", Value: 2.0}},
			{"'a' + \"b\\u2028\"", false, EvalResult{Type: "string", Value: "ab\u2028"}},
			{"'half \\ud83d'", false, EvalResult{Type: "string", Value: "half \ufffd"}},
			{"''", false, EvalResult{Type: "string", Value: ""}},
			{"false", false, EvalResult{Type: "boolean", Value: false}},
			{"null", false, EvalResult{Type: "object", Description: "null"}},
			{"undefined", false, EvalResult{Type: "undefined"}},
			{"NaN", false, EvalResult{Type: "number", Description: "NaN"}},
			{"10n ** 20n", false, EvalResult{Type: "bigint", Description: "100000000000000000000n"}},
			{"({a: [1, {b: null}], c: undefined})", false, EvalResult{Type: "object", Value: map[string]any{"a": []any{1.0, map[string]any{"b": nil}}}}},
			{"{a: 1}", false, EvalResult{Type: "object", Value: map[string]any{"a": 1.0}}},
			{"var n = 1; for (let i = 0; i < 3; i++) n *= 2; n", false, EvalResult{Type: "number", Value: 8.0}},
			{"var o = {z: 1}; o", false, EvalResult{Type: "object", Value: map[string]any{"z": 1.0}}},
			{"var s = 'x'; s", false, EvalResult{Type: "string", Value: "x"}},
			{"var w = NaN; w", false, EvalResult{Type: "number", Description: "NaN"}},
			{"document.querySelector('p')", false, EvalResult{Type: "object", Value: map[string]any{}, Description: "p"}},
			{"Promise.resolve(7)", true, EvalResult{Type: "number", Value: 7.0}},
			{"await Promise.resolve(7) + 1", true, EvalResult{Type: "number", Value: 8.0}},
			{"const v = await Promise.resolve(9); v", true, EvalResult{Type: "number", Value: 9.0}},
			{"Promise.resolve(7)", false, EvalResult{Type: "object", Value: map[string]any{}, Description: "Promise"}},
		} {
			test.want.TargetID = "t1"
			if got := must[EvalResult](t, b, Eval{JS: test.js, Await: test.await}); !reflect.DeepEqual(got, test.want) {
				t.Errorf("%s: %+v, want %+v", test.js, got, test.want)
			}
		}
		if got := must[EvalResult](t, b, Eval{JS: "() => 5"}); got.Type != "function" || got.Description != "() => 5" || got.Value != nil {
			t.Errorf("a function: %+v", got)
		}
		if got := must[EvalResult](t, b, Eval{JS: "const ring = {}; ring.self = ring; ring"}); got.Type != "object" || got.Value != nil || got.Exception != "" {
			t.Errorf("a circle: %+v", got)
		}
	})
}

// An exception of a script is an answer, and no failure.
func TestEvalReportsExceptions(t *testing.T) {
	b := openRead(t, Shell, "/form")
	for js, want := range map[string]string{
		"nothing.there":                    "ReferenceError: nothing is not defined",
		"throw new TypeError('x y')":       "TypeError: x y",
		"(() => { throw 'just text' })()":  "just text",
		"(() => { throw {a: 1} })()":       "Object",
		"throw 'bare'":                     "bare",
		"1 +":                              "SyntaxError",
		"(() => { throw undefined })()":    "undefined",
		"await 1; (":                       "SyntaxError",
		"null.x":                           "TypeError",
		"(() => { throw new Error('m') })": "",
	} {
		got := must[EvalResult](t, b, Eval{JS: js})
		if want == "" {
			if got.Exception != "" || got.Type != "function" {
				t.Errorf("%s: %+v", js, got)
			}
			continue
		}
		if !strings.Contains(got.Exception, want) || got.Value != nil || got.Type != "exception" {
			t.Errorf("%s: %+v", js, got)
		}
	}
	if got := must[EvalResult](t, b, Eval{JS: "Promise.reject(new Error('later'))", Await: true}); !strings.Contains(got.Exception, "Error: later") {
		t.Errorf("a rejection: %+v", got)
	}
	long := must[EvalResult](t, b, Eval{JS: "(() => { throw 'x'.repeat(50000000) })()"})
	if len(long.Exception) > maxText || !strings.HasPrefix(long.Exception, "xxx") {
		t.Errorf("a long one has %d bytes", len(long.Exception))
	}
}

func TestEvalBoundsItsValue(t *testing.T) {
	b := openRead(t, Shell, "/form")
	text := must[EvalResult](t, b, Eval{JS: "'x'.repeat(300000000)"}) // more than a message of the browser may have
	if value, ok := text.Value.(string); !ok || len(value) != maxValue || !text.Truncated {
		t.Errorf("a text: %d bytes, truncated %v", len(value), text.Truncated)
	}
	list := must[EvalResult](t, b, Eval{JS: "Array(1000000).fill(12345)"})
	if list.Value != nil || !list.Truncated || !strings.Contains(list.Description, "6000001") {
		t.Errorf("a list: %v, %v, %q", list.Value != nil, list.Truncated, list.Description)
	}
	statements := must[EvalResult](t, b, Eval{JS: "var big = 'x'.repeat(5000000); big"})
	if statements.Value != nil || !statements.Truncated {
		t.Errorf("statements: %v", statements.Truncated)
	}
	fits := must[EvalResult](t, b, Eval{JS: "'x'.repeat(1000000)"})
	if value, _ := fits.Value.(string); len(value) != 1000000 || fits.Truncated {
		t.Errorf("what fits: %d, %v", len(value), fits.Truncated)
	}
}

// A script is ended at its limit, however it hangs, and the page goes on.
func TestHangingScriptIsEnded(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := openRead(t, build, "/form")
		for _, op := range []Eval{
			{JS: "for (;;);", TimeoutMS: 500},
			{JS: "(() => { for (;;); })()", TimeoutMS: 500},
			{JS: "(() => { for (;;) try { for (;;); } catch {} finally { continue } })()", TimeoutMS: 500},
			{JS: "new Promise(() => {})", TimeoutMS: 500, Await: true},
			{JS: "(async () => { for (;;) await 0 })()", TimeoutMS: 500, Await: true},
			{JS: "({toJSON() { for (;;); }})", TimeoutMS: 500},
		} {
			if _, err := b.Do(within(t, 20*time.Second), op); problem.CodeOf(err) != problem.Timeout {
				t.Errorf("%s: %v", op.JS, err)
			}
			if got := must[EvalResult](t, b, Eval{JS: "40 + 2"}); got.Value != 42.0 {
				t.Errorf("after %s: %+v", op.JS, got)
			}
		}
	})
}

// A page may replace what is called in its world. It can lie about its own values; it cannot break anything.
func TestEvalInAHostilePage(t *testing.T) {
	b := openRead(t, Shell, "/hostile")
	if _, err := b.Do(within(t, 20*time.Second), Eval{JS: "document.title"}); err != nil && problem.CodeOf(err) != problem.ActOperationFailed {
		t.Error(err)
	}
	goTo(t, b, "/form")
	for _, js := range []string{
		"JSON.stringify = () => 'x'.repeat(50000000); 1", "JSON.stringify = () => '{'; 1", "JSON.stringify = () => ({length: 1}); 1",
		"Object.prototype.then = () => {}; 1", "Object.prototype.toJSON = () => { throw 1 }; 1",
		"String.prototype.slice = () => 'x'.repeat(50000000); 1",
	} {
		must[EvalResult](t, b, Eval{JS: js})
		for _, then := range []string{"({a: 1})", "[1]", "'x'.repeat(2000000)", "1"} {
			out, err := b.Do(within(t, 20*time.Second), Eval{JS: then})
			if err != nil && problem.CodeOf(err) != problem.ActOperationFailed {
				t.Errorf("%s, then %s: %v", js, then, err)
			}
			if got, ok := out.(EvalResult); ok {
				if text, _ := got.Value.(string); len(text) > maxValue {
					t.Errorf("%s, then %s: %d characters", js, then, len(text))
				}
			}
		}
		goTo(t, b, "/form")
	}
}

func TestBadEvals(t *testing.T) {
	for _, o := range []Eval{{}, {JS: " "}, {JS: "1", TimeoutMS: 499}, {JS: "1", TimeoutMS: 120001}, {JS: strings.Repeat("1", maxScript+1)}} {
		if err := o.Validate(); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("%.20s, %d: %v", o.JS, o.TimeoutMS, err)
		}
	}
	if (Eval{JS: "secret"}).Target() != "" || (Eval{}).Effect() != Evaluates {
		t.Error("a script is told, or taken for less than it is")
	}
}
