package live

import (
	"context"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
)

func (q *queue) types(t *testing.T) (out map[string]int) {
	t.Helper()
	out = map[string]int{}
	for len(q.waiting) > 0 {
		in, err := q.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out[in.Type]++
	}
	return out
}

func fill(t *testing.T, q *queue, inputs ...browser.LiveInput) {
	t.Helper()
	for _, in := range inputs {
		if err := q.push(in); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAMoveTakesThePlaceOfTheMoveBeforeIt(t *testing.T) {
	q := newQueue()
	fill(t, q, browser.LiveInput{Type: "move", X: 1}, browser.LiveInput{Type: "move", X: 2},
		browser.LiveInput{Type: "move", X: 3, Buttons: 1}, browser.LiveInput{Type: "up"}, browser.LiveInput{Type: "move", X: 4})
	for _, want := range []float64{2, 3, 0, 4} {
		if in, err := q.take(t.Context()); err != nil || in.X != want {
			t.Errorf("%v at %v, want %v", in.Type, in.X, want)
		}
	}
}

// Inputs that are missed least go first, and a key that would never go up is not left out.
func TestAFullQueueLeavesOutWhatIsMissedLeast(t *testing.T) {
	q := newQueue()
	keys := func(kind string, repeat bool, n int) {
		for range n {
			fill(t, q, browser.LiveInput{Type: kind, Repeat: repeat})
		}
	}
	fill(t, q, browser.LiveInput{Type: "move"})
	keys("wheel", false, 1)
	keys("keydown", true, 1)
	keys("keydown", false, maxQueue-3)
	keys("keyup", false, 1)
	if len(q.waiting) != maxQueue || q.waiting[0].Type != "wheel" {
		t.Fatalf("%d wait, the first is %s", len(q.waiting), q.waiting[0].Type)
	}
	keys("keyup", false, 2)
	if err := q.push(browser.LiveInput{Type: "keyup"}); problem.CodeOf(err) != problem.RateLimited {
		t.Errorf("one too many: %v", err)
	}
	if got := q.types(t); got["keydown"] != maxQueue-3 || got["keyup"] != 3 || len(got) != 2 {
		t.Errorf("%v", got)
	}
}

// The bytes that a client may leave in the memory of the server while a page hangs are bounded, not only the number of inputs.
func TestInputsThatWaitSayOnlySoMuch(t *testing.T) {
	for name, large := range map[string]browser.LiveInput{
		"text":    {Type: "text", Text: strings.Repeat("x", 1<<20)},
		"address": {Type: "go", URL: strings.Repeat("x", 1<<20)},
		"files":   {Type: "answer", Files: make([]string, 1<<16)},
		"options": {Type: "answer", Options: make([]int, 1<<17)},
	} {
		q := newQueue()
		fill(t, q, large, large, large, browser.LiveInput{Type: "up"})
		if err := q.push(large); problem.CodeOf(err) != problem.RateLimited {
			t.Errorf("%s: one too many: %v", name, err)
		}
		if _, err := q.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		fill(t, q, large) // there is room again
	}
	// One alone is taken however long it is: how long it may be is for others to say.
	fill(t, newQueue(), browser.LiveInput{Type: "text", Text: strings.Repeat("x", 2*maxWaiting)})
}

func TestWaitingForAnInputEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newQueue().take(ctx); err == nil {
		t.Error("there was one")
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{`{"type":"shown"}`, `{"type":"visible","visible":true}`, `{"type":"move","x":1}`, `{"type":"shown","type":"move"}`, `[]`, ``, `{"Type":"shown"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		said, err := parse(text)
		kinds := 0
		for _, is := range []bool{said.shown, said.visible != nil, said.input.Type != ""} {
			if is {
				kinds++
			}
		}
		if _, coded := problem.As(err); err != nil && !coded || err == nil && kinds != 1 || err != nil && kinds != 0 {
			t.Errorf("%q is %+v, %v", text, kinds, err)
		}
	})
}
