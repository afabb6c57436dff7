package strict

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestNamesAreThoseThatAReaderHoldsAtOnce(t *testing.T) {
	for text, want := range map[string]int{
		``:                             0,
		`[1,[2],"a:b","\":{\""]`:       0,
		`{"a":1,"b":2}`:                2,
		`{"a":{"b":1,"c":2},"d":1}`:    4,
		`{"a":{"b":1},"c":{"d":1}}`:    3, // a, c, and one of b and d
		`[{"a":1,"b":1},{"c":1}]`:      2,
		`[{"a":{"b":1,"c":1}},{"d":1}`: 3,
		`{"\\":1,"\"":{":":"}{"}}`:     3,
		`}}{"a":1`:                     1,
		`:::`:                          0,
		`{"a`:                          0,
		`{"a\`:                         0,
	} {
		if got := Names([]byte(text)); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
	var into struct{ A jsontext.Value }
	for n, code := range map[int]string{maxNames - 1: "", maxNames: problem.BadJSON} { // and a
		text := []byte(`{"A":{`)
		for i := range n {
			text = fmt.Appendf(text, `"%x":1,`, i)
		}
		text[len(text)-1] = '}'
		if err := Object(append(text, '}'), &into, "hint"); err == nil && code != "" || err != nil && problem.CodeOf(err) != code {
			t.Errorf("%d names: %v", n, err)
		}
	}
	// Behind what a reader refuses nothing is counted, and nothing is kept.
	deep := []byte(strings.Repeat("{", 4<<20))
	if jsontext.Value(deep).IsValid() {
		t.Error("it is read")
	}
	if n := testenv.Allocated(func() { _ = Names(deep) }); n > 1<<20 {
		t.Errorf("%d bytes for what is nested too deep", n)
	}
}
