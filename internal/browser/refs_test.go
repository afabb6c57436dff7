package browser

import (
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestRefsAreReadAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]ref{
		"e1": {number: 1}, "e1073741824": {number: maxRef}, "f2e30": {frame: 2, number: 30}, "ax7": {ax: true, number: 7},
	} {
		if got, err := parseRef(text); err != nil || got != want || got.String() != text {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "e", "e0", "e01", "e-1", "e+1", "e1 ", " e1", "E1", "1", "f1", "f1e", "fe1", "f0e1", "f1f2e3", "f1ax2", "ax", "ax0",
		"e1073741825", "e99999999999999999999", "e1\n", "e١", "[ref=e1]"} {
		if got, err := parseRef(text); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func FuzzRef(f *testing.F) {
	for _, seed := range []string{"e1", "f1e12", "ax7", "f", "e0", "e1073741825", "f1e", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRef(text)
		if err != nil {
			if problem.CodeOf(err) != problem.BadRequest || r != (ref{}) {
				t.Fatalf("%q: %+v, %v", text, r, err)
			}
			return
		}
		if r.String() != text || r.number < 1 || r.number > maxRef || r.frame < 0 || r.frame > maxRef {
			t.Fatalf("%q is read as %+v and written as %q", text, r, r)
		}
	})
}

func TestNumbersOfNodesAreNotGivenTwice(t *testing.T) {
	var refs axRefs
	first := refs.number(10)
	if refs.number(10) != first || refs.number(11) == first || refs.nodes[first] != 10 {
		t.Errorf("%+v", refs)
	}
	highest := refs.number(12)
	refs.clear()
	if n := refs.number(10); n <= highest {
		t.Errorf("after the next document node 10 is %d again", n)
	}
	for node := range int64(maxAXRefs + 10) {
		refs.number(1000 + node)
	}
	if len(refs.numbers) > maxAXRefs || len(refs.nodes) > maxAXRefs {
		t.Errorf("%d and %d are kept", len(refs.numbers), len(refs.nodes))
	}
	if n := refs.number(0); refs.nodes[n] != 0 || refs.number(0) == n {
		t.Error("nodes without an id share a ref")
	}
}
