package browser

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestActSaysWhatIsWrongInTheWordsOfTheContract(t *testing.T) {
	text := func(s string) *string { return &s }
	number := func(f float64) *float64 { return &f }
	minus, some := number(-1), number(10)
	nested := func(depth int) Act {
		action := Act{Kind: "press", Key: "a"}
		for range depth {
			action = Act{Kind: "batch", Actions: []Act{action}}
		}
		return action
	}
	long := func(n int) string { return strings.Repeat("x", n) }
	many := func(n int) []Act {
		out := make([]Act, n)
		for i := range out {
			out[i] = Act{Kind: "press", Key: "a"}
		}
		return out
	}
	manyFields := func(n int) []ActField {
		out := make([]ActField, n)
		for i := range out {
			out[i] = ActField{Ref: "e1", Value: "x"}
		}
		return out
	}
	for _, test := range []struct {
		name string
		act  Act
		code string // empty: it is valid
		says string
	}{
		{"no kind", Act{}, problem.ActKindRequired, "kind is required"},
		{"unknown kind", Act{Kind: "explode"}, problem.ActKindRequired, "kind is required"},

		{"click", Act{Kind: "click", Ref: "e1"}, "", ""},
		{"click by selector", Act{Kind: "click", Selector: "a", Button: "middle", Modifiers: []string{"Alt", "Control", "ControlOrMeta", "Meta", "Shift"}}, "", ""},
		{"click nothing", Act{Kind: "click"}, problem.ActInvalidRequest, "click requires ref or selector"},
		{"click button", Act{Kind: "click", Ref: "e1", Button: "fourth"}, problem.ActInvalidRequest, "click button must be left|right|middle"},
		{"click modifier", Act{Kind: "click", Ref: "e1", Modifiers: []string{"Hyper"}}, problem.ActInvalidRequest, "modifiers must be: Alt|Control|ControlOrMeta|Meta|Shift"},
		{"click modifiers", Act{Kind: "click", Ref: "e1", Modifiers: strings.Split(strings.Repeat("Alt ", 6), " ")[:6]}, problem.ActInvalidRequest, "there are five modifiers"},
		{"delay at the bound", Act{Kind: "click", Ref: "e1", DelayMS: 5000}, "", ""},
		{"delay", Act{Kind: "click", Ref: "e1", DelayMS: 5001}, problem.ActInvalidRequest, "click delayMs exceeds maximum of 5000ms"},
		{"delay of a key", Act{Kind: "press", Key: "a", DelayMS: 5001}, problem.ActInvalidRequest, "press delayMs exceeds maximum of 5000ms"},
		{"negative delay", Act{Kind: "click", Ref: "e1", DelayMS: -1}, problem.ActInvalidRequest, "delayMs must be a non-negative integer"},
		{"timeout at the least", Act{Kind: "click", Ref: "e1", TimeoutMS: 500}, "", ""},
		{"timeout too short", Act{Kind: "click", Ref: "e1", TimeoutMS: 499}, problem.ActInvalidRequest, "click timeoutMs must be between 500 and 60000"},
		{"timeout at the most", Act{Kind: "click", Ref: "e1", TimeoutMS: 60_000}, "", ""},
		{"timeout too long", Act{Kind: "click", Ref: "e1", TimeoutMS: 60_001}, problem.ActInvalidRequest, "click timeoutMs must be between 500 and 60000"},
		{"negative timeout", Act{Kind: "click", Ref: "e1", TimeoutMS: -1}, problem.ActInvalidRequest, "click timeoutMs must be between 500 and 60000"},

		{"clickCoords", Act{Kind: "clickCoords", X: some, Y: number(0)}, "", ""},
		{"clickCoords without y", Act{Kind: "clickCoords", X: some}, problem.ActInvalidRequest, "clickCoords requires non-negative x and y"},
		{"clickCoords negative", Act{Kind: "clickCoords", X: some, Y: minus}, problem.ActInvalidRequest, "clickCoords requires non-negative x and y"},
		{"clickCoords nowhere", Act{Kind: "clickCoords", X: some, Y: number(math.NaN())}, problem.ActInvalidRequest, "clickCoords requires non-negative x and y"},
		{"clickCoords far off", Act{Kind: "clickCoords", X: some, Y: number(1e7)}, problem.ActInvalidRequest, "clickCoords requires non-negative x and y"},

		{"drag", Act{Kind: "drag", StartRef: "e1", EndSel: "b"}, "", ""},
		{"drag nothing", Act{Kind: "drag", EndRef: "e1"}, problem.ActInvalidRequest, "drag requires startRef or startSelector"},
		{"drag nowhere", Act{Kind: "drag", StartSel: "a"}, problem.ActInvalidRequest, "drag requires endRef or endSelector"},
		{"dragCoords", Act{Kind: "dragCoords", X: some, Y: some, EndX: some, EndY: some}, "", ""},
		{"dragCoords nowhere", Act{Kind: "dragCoords", X: some, Y: some, EndX: some}, problem.ActInvalidRequest, "dragCoords requires non-negative x, y, endX, and endY"},

		{"type nothing", Act{Kind: "type", Ref: "e1", Text: text("")}, "", ""},
		{"type nowhere", Act{Kind: "type", Text: text("x")}, problem.ActInvalidRequest, "type requires ref or selector"},
		{"type without text", Act{Kind: "type", Ref: "e1"}, problem.ActInvalidRequest, "type requires text"},
		{"type too much", Act{Kind: "type", Ref: "e1", Text: text(long(maxActText + 1))}, problem.ActInvalidRequest, "text has more than 200000 bytes"},
		{"type a lot", Act{Kind: "type", Ref: "e1", Text: text(long(maxActText))}, "", ""},
		{"type too much slowly", Act{Kind: "type", Ref: "e1", Slowly: true, Text: text(long(2001))}, problem.ActInvalidRequest, "with slowly, text has at most 2000 bytes"},

		{"press", Act{Kind: "press", Key: "ControlOrMeta+a"}, "", ""},
		{"press nothing", Act{Kind: "press"}, problem.ActInvalidRequest, "press requires key"},
		{"press what is no key", Act{Kind: "press", Key: "AnyKey"}, problem.ActInvalidRequest, `no key is called "AnyKey"`},
		{"press too many", Act{Kind: "press", Key: "a+b+c+d+e+f+g"}, problem.ActInvalidRequest, "a chord has at most 6 keys"},

		{"hover nothing", Act{Kind: "hover"}, problem.ActInvalidRequest, "hover requires ref or selector"},
		{"scroll to nothing", Act{Kind: "scrollIntoView"}, problem.ActInvalidRequest, "scrollIntoView requires ref or selector"},

		{"select", Act{Kind: "select", Ref: "e1", Values: []string{""}}, "", ""},
		{"select nothing", Act{Kind: "select", Ref: "e1"}, problem.ActInvalidRequest, "select requires ref/selector and values"},
		{"select nowhere", Act{Kind: "select", Values: []string{"a"}}, problem.ActInvalidRequest, "select requires ref/selector and values"},
		{"select too many", Act{Kind: "select", Ref: "e1", Values: make([]string, 201)}, problem.ActInvalidRequest, "select takes at most 200 values"},
		{"select a long one", Act{Kind: "select", Ref: "e1", Values: []string{long(4097)}}, problem.ActInvalidRequest, "a value has more than 4096 bytes"},

		{"fill", Act{Kind: "fill", Fields: []ActField{{Ref: "e1", Value: "x"}, {Ref: "e2", Type: "checkbox", Value: true}, {Ref: "e3", Value: 1.5}}}, "", ""},
		{"fill nothing", Act{Kind: "fill"}, problem.ActInvalidRequest, "fill requires fields"},
		{"fill nowhere", Act{Kind: "fill", Fields: []ActField{{Value: "x"}}}, problem.ActInvalidRequest, "field 1 has no ref"},
		{"fill a strange field", Act{Kind: "fill", Fields: []ActField{{Ref: "e1", Type: "hologram", Value: "x"}}}, problem.ActInvalidRequest, "the type of field 1 must be text|checkbox|radio|select"},
		{"fill a list", Act{Kind: "fill", Fields: []ActField{{Ref: "e1", Value: []any{"x"}}}}, problem.ActInvalidRequest, "the value of field 1 cannot be filled in: it is neither a text, a number nor a truth value"},
		{"fill a half-true box", Act{Kind: "fill", Fields: []ActField{{Ref: "e1", Type: "checkbox", Value: "maybe"}}}, problem.ActInvalidRequest, "the value of field 1 cannot be filled in: a checkbox is true or false"},
		{"fill too much", Act{Kind: "fill", Fields: []ActField{{Ref: "e1", Value: long(maxActText + 1)}}}, problem.ActInvalidRequest, "the value of field 1 cannot be filled in: it has more than 200000 bytes"},
		{"fill too many", Act{Kind: "fill", Fields: manyFields(201)}, problem.ActInvalidRequest, "fill takes at most 200 fields"},

		{"resize", Act{Kind: "resize", Width: 8192, Height: 1}, "", ""},
		{"resize to nothing", Act{Kind: "resize", Width: 10}, problem.ActInvalidRequest, "resize requires positive width and height"},
		{"resize too wide", Act{Kind: "resize", Width: 8193, Height: 1}, problem.ActInvalidRequest, "resize width and height must not exceed 8192"},
		{"resize too high", Act{Kind: "resize", Width: 1, Height: 8193}, problem.ActInvalidRequest, "resize width and height must not exceed 8192"},

		{"wait", Act{Kind: "wait", TimeMS: 30_000, TimeoutMS: 120_000}, "", ""},
		{"wait for nothing", Act{Kind: "wait", Text: text("")}, problem.ActInvalidRequest, waitNeeds},
		{"wait too long", Act{Kind: "wait", TimeMS: 30_001}, problem.ActInvalidRequest, "wait timeMs exceeds maximum of 30000ms"},
		{"wait backwards", Act{Kind: "wait", TimeMS: -1}, problem.ActInvalidRequest, "timeMs must be a non-negative integer"},
		{"wait for a state", Act{Kind: "wait", LoadState: "tired"}, problem.ActInvalidRequest, "wait loadState must be load|domcontentloaded|networkidle"},
		{"wait for a book", Act{Kind: "wait", Text: text(long(4097))}, problem.ActInvalidRequest, "text has more than 4096 bytes"},
		{"wait for a book to go", Act{Kind: "wait", TextGone: long(4097)}, problem.ActInvalidRequest, "textGone has more than 4096 bytes"},
		{"wait with a long timeout", Act{Kind: "wait", TimeMS: 1, TimeoutMS: 120_001}, problem.ActInvalidRequest, "wait timeoutMs must be between 500 and 120000"},

		{"evaluate", Act{Kind: "evaluate", Fn: "1", TimeoutMS: 120_000}, "", ""},
		{"evaluate nothing", Act{Kind: "evaluate"}, problem.ActInvalidRequest, "evaluate requires fn"},
		{"evaluate a program", Act{Kind: "evaluate", Fn: long(maxActFn + 1)}, problem.ActInvalidRequest, "fn has more than 100000 bytes"},

		{"close", Act{Kind: "close"}, "", ""},

		{"batch", Act{Kind: "batch", Actions: many(100)}, "", ""},
		{"empty batch", Act{Kind: "batch"}, problem.ActInvalidRequest, "actions are required"},
		{"empty batch in a batch", Act{Kind: "batch", Actions: []Act{{Kind: "batch"}}}, problem.ActInvalidRequest, "batch requires actions"},
		{"large batch", Act{Kind: "batch", Actions: many(101)}, problem.ActInvalidRequest, "batch exceeds maximum of 100 actions"},
		{"large in all", Act{Kind: "batch", Actions: append(many(50), Act{Kind: "batch", Actions: many(50)})}, problem.ActInvalidRequest, "batch exceeds maximum of 100 actions"},
		{"deep batch", nested(6), "", ""},
		{"deeper batch", nested(7), problem.ActInvalidRequest, "batch nesting exceeds maximum depth of 5"},
		{"wrong action in a batch", Act{Kind: "batch", Actions: []Act{{Kind: "click"}}}, problem.ActInvalidRequest, "click requires ref or selector"},

		{"long ref", Act{Kind: "click", Ref: long(257)}, problem.ActInvalidRequest, "ref has more than 256 bytes"},
		{"long tab", Act{Kind: "close", TargetID: long(257)}, problem.ActInvalidRequest, "targetId has more than 256 bytes"},
		{"long key", Act{Kind: "press", Key: long(257)}, problem.ActInvalidRequest, "key has more than 256 bytes"},
		{"long selector", Act{Kind: "click", Selector: long(4097)}, problem.ActInvalidRequest, "selector has more than 4096 bytes"},
		{"long url", Act{Kind: "wait", URL: long(4097)}, problem.ActInvalidRequest, "url has more than 4096 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.act.Validate()
			if test.code == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			e, ok := problem.As(err)
			if !ok || e.Code != test.code || e.Message != test.says {
				t.Fatalf("got %v, want %s: %s", err, test.code, test.says)
			}
		})
	}
}

func TestOnlySomeActionsTakeASelector(t *testing.T) {
	takes := "batch click drag hover scrollIntoView select type wait"
	for _, kind := range actKinds() {
		refused := problem.CodeOf(Act{Kind: kind, Selector: "a"}.Validate()) == problem.ActSelectorUnsupported
		if want := !strings.Contains(" "+takes+" ", " "+kind+" "); refused != want {
			t.Errorf("%s with a selector: refused is %v", kind, refused)
		}
	}
}

func TestWhatIsTypedIsInNoTargetAndInNoRefusal(t *testing.T) {
	secret := "correct horse"
	for _, act := range []Act{
		{Kind: "type", Ref: "e1", Text: &secret},
		{Kind: "fill", Fields: []ActField{{Ref: "e1", Value: secret}, {Ref: "", Value: secret}}},
		{Kind: "fill", Fields: []ActField{{Ref: "e1", Type: "checkbox", Value: secret}}},
		{Kind: "select", Ref: "e1", Values: []string{secret}},
		{Kind: "evaluate", Ref: "e1", Fn: "'" + secret + "'"},
		{Kind: "wait", Text: &secret},
		{Kind: "press", Key: "p"},
	} {
		if strings.Contains(act.Target(), secret) || act.Kind == "press" && act.Target() != "press" {
			t.Errorf("the target of %s is %q", act.Kind, act.Target())
		}
		if err := act.Validate(); err != nil && strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("%s: %v", act.Kind, err)
		}
	}
	if got := (Act{Kind: "drag", StartRef: "e1", EndSel: "#x"}).Target(); got != "drag e1 to #x" {
		t.Errorf("the target of a drag is %q", got)
	}
	if got := (Act{Kind: "click", Selector: strings.Repeat("x", 1000)}).Target(); len(got) > maxActTarget {
		t.Errorf("a target has %d bytes", len(got))
	}
}

func TestEffectOfAnActionIsTheMostThatItDoes(t *testing.T) {
	wait, fn := Act{Kind: "wait", TimeMS: 1}, Act{Kind: "wait", Fn: "1"}
	for _, test := range []struct {
		act  Act
		want Effect
	}{
		{wait, Looks}, {fn, Evaluates}, {Act{Kind: "evaluate"}, Evaluates}, {Act{Kind: "click"}, Steers},
		{Act{Kind: "close"}, Steers},
		{Act{Kind: "batch", Actions: []Act{wait}}, Steers},
		{Act{Kind: "batch", Actions: []Act{wait, {Kind: "batch", Actions: []Act{fn}}}}, Evaluates},
	} {
		if got := test.act.Effect(); got != test.want {
			t.Errorf("%+v is %s, want %s", test.act, got, test.want)
		}
	}
}

func TestLimitLeavesTimeToSayHowItWent(t *testing.T) {
	text := strings.Repeat("x", 400)
	for _, test := range []struct {
		act  Act
		want time.Duration
	}{
		{Act{Kind: "click"}, 8 * time.Second},
		{Act{Kind: "click", TimeoutMS: 500}, 500 * time.Millisecond},
		{Act{Kind: "wait"}, 20 * time.Second},
		{Act{Kind: "wait", TimeMS: 30_000}, 35 * time.Second},
		{Act{Kind: "evaluate"}, 20 * time.Second},
		{Act{Kind: "type", Text: &text}, 8 * time.Second},
		{Act{Kind: "type", Text: &text, Slowly: true}, 28 * time.Second},
		{Act{Kind: "batch"}, time.Minute},
		{Act{Kind: "close"}, time.Minute},
	} {
		if got := test.act.Limit() - actReserve; got != test.want {
			t.Errorf("%s %d: %v, want %v", test.act.Kind, test.act.TimeoutMS, got, test.want)
		}
	}
}

func TestGlobOfAnAddress(t *testing.T) {
	for _, test := range []struct {
		glob, address string
		want          bool
	}{
		{"https://a.test/x", "https://a.test/x", true},
		{"https://a.test/x", "https://a.test/xy", false},
		{"https://a.test", "https://a.test/", true},
		{"**/done", "https://a.test/b/c/done", true},
		{"**/done", "https://a.test/b/c/done?x", false},
		{"**/done*", "https://a.test/b/c/done?x", true},
		{"https://*/x", "https://a.test/x", true},
		{"https://*/x", "https://a.test/b/x", false},
		{"**/{in,out}", "https://a.test/out", true},
		{"**/{in,out}", "https://a.test/up", false},
		{"**/x?y=1", "https://a.test/x?y=1", true},
		{"**/x?y=1", "https://a.test/zy=1", false},
		{"**/(.+)", "https://a.test/b", false},
		{"**/{in", "https://a.test/{in", true},
		{"**/ü,*", "https://a.test/ü,1", true},
		{strings.Repeat("*a", 2000), strings.Repeat("a", 4000) + "b", false}, // in linear time
	} {
		if got := globMatches(test.glob, test.address); got != test.want {
			t.Errorf("%q on %q: %v", bounded(test.glob, 40), bounded(test.address, 40), got)
		}
	}
}
