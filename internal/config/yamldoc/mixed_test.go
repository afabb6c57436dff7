package yamldoc

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestMixedListsKeepTheirOrder(t *testing.T) {
	var got []string
	d := Read("f", []byte("list: [a, {x: b, y: 1}, c, [d]]\nother: {}\n"), func(m *Map) {
		if !m.Has("list") || !m.IsList("list") || m.Length("list") != 4 || m.IsList("other") || m.Length("other") != 0 || m.Has("absent") || m.Line() != 0 {
			t.Error("what is there was not seen")
		}
		m.Mixed("list", func(field string, v Value) error {
			got = append(got, field+"="+v.Text)
			return nil
		}, func(m *Map) {
			if m.Line() != 1 {
				t.Errorf("the map is on line %d", m.Line())
			}
			m.Value("x", func(v Value) error { got = append(got, m.Field()+".x="+v.Text); return nil })
		})
	})
	if diff := cmp.Diff([]string{"list[0]=a", "list[1].x=b", "list[2]=c"}, got); diff != "" {
		t.Error(diff)
	}
	want := []problem.Flaw{
		{Field: "list[1].y", Line: 1, Column: 18, Message: "unknown key", Hint: "did you mean x?"},
		{Field: "list[3]", Line: 1, Column: 28, Message: "must be a value, not a list"},
		{Field: "other", Line: 2, Column: 1, Message: "unknown key"}, // looking is not reading
	}
	if diff := cmp.Diff(want, flawsOf(t, d)); diff != "" {
		t.Error(diff)
	}
}

func TestRestReadsWhatNobodyAskedFor(t *testing.T) {
	read := func(text string, limit int) (map[string]string, []problem.Flaw) {
		got := map[string]string{}
		d := Read("f", []byte(text), func(m *Map) {
			m.Value("known", func(Value) error { return nil })
			m.Rest(limit, func(key string, v Value) error { got[key] = v.Text; return nil })
		})
		return got, flawsOf(t, d)
	}
	got, flaws := read("known: 1\nb: 2\na: [x]\nc: &x 3\n", 3)
	if diff := cmp.Diff(map[string]string{"b": "2"}, got); diff != "" {
		t.Error(diff)
	}
	if len(flaws) != 2 || flaws[0].Field != "a" || flaws[1].Field != "c" {
		t.Errorf("got %+v", flaws)
	}
	got, flaws = read("a: 1\nb: 2\nc: 3\n", 2)
	if len(got) != 0 || len(flaws) != 1 || !strings.Contains(flaws[0].Message, "3 keys, more than 2") || flaws[0].Line != 3 {
		t.Errorf("got %v, %+v", got, flaws)
	}
}

func TestSkippedKeysAreNotUnknown(t *testing.T) {
	for _, skip := range []func(*Map){(*Map).Skip, func(m *Map) { m.Ignore("a"); m.Ignore("b") }} {
		if err := Read("f", []byte("a: 1\nb: {c: 2}\n"), skip).Err(); err != nil {
			t.Error(err)
		}
	}
}
