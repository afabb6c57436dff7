package yamldoc

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/problem"
)

func flawsOf(t *testing.T, d *Document) []problem.Flaw {
	t.Helper()
	err := d.Err()
	if err == nil {
		return nil
	}
	var many *problem.ValidationError
	if !errors.As(err, &many) {
		t.Fatalf("got a %T", err)
	}
	return many.Flaws
}

func TestValuesComeOutInOrder(t *testing.T) {
	const text = `
name: ann
n: -12
half: 0.5
yes: true
list: [a, "b"]
maps:
  - {x: 1}
  - {x: 2}
sub: {deep: {key: v}}
`
	var name, deep string
	var n int64
	var half float64
	var yes bool
	var list, fields []string
	var xs []int64
	d := Read("f", []byte(text), func(m *Map) {
		m.Value("name", func(v Value) error { name = v.Text; return nil })
		m.Value("n", func(v Value) (err error) { n, err = v.Int(); return err })
		m.Value("half", func(v Value) (err error) { half, err = v.Number(); return err })
		m.Value("yes", func(v Value) (err error) { yes, err = v.Bool(); return err })
		m.Value("absent", func(Value) error { t.Error("a key that is not there was read"); return nil })
		m.Values("list", func(v Value) error { list = append(list, v.Text); return nil })
		m.Maps("maps", func(m *Map) {
			fields = append(fields, m.Field())
			m.Value("x", func(v Value) error { x, err := v.Int(); xs = append(xs, x); return err })
		})
		m.Map("sub", func(m *Map) {
			m.Map("deep", func(m *Map) { m.Value("key", func(v Value) error { deep = v.Text; return nil }) })
		})
	})
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
	got := []any{name, n, half, yes, list, fields, xs, deep}
	want := []any{"ann", int64(-12), 0.5, true, []string{"a", "b"}, []string{"maps[0]", "maps[1]"}, []int64{1, 2}, "v"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEmptyFileIsAnEmptyMap(t *testing.T) {
	for _, text := range []string{"", "# only a comment\n", "---\n", "null\n", "\ufeff"} {
		called := false
		d := Read("f", []byte(text), func(*Map) { called = true })
		if err := d.Err(); err != nil || !called {
			t.Errorf("%q: called %v, %v", text, called, err)
		}
	}
}

func TestReportFindsThePlaceOfWhatEncloses(t *testing.T) {
	read := func() *Document {
		return Read("f", []byte("a:\n  b: [x, y]\n"), func(m *Map) {
			m.Map("a", func(m *Map) { m.Values("b", func(Value) error { return nil }) })
		})
	}
	for field, want := range map[string][2]int{
		"a.b[1]": {2, 10}, "a.b[7].c": {2, 6}, "a.c": {2, 3}, "z": {0, 0}, "": {0, 0},
	} {
		d := read()
		d.Report(problem.Flaw{Field: field, Message: "x"})
		got := flawsOf(t, d)
		if len(got) != 1 || got[0].Line != want[0] || got[0].Column != want[1] {
			t.Errorf("%q: got %+v, want %v", field, got, want)
		}
	}
}

func TestAFieldThatCouldNotBeReadIsReportedOnce(t *testing.T) {
	d := Read("f", []byte("a: x\nb: y\n"), func(m *Map) {
		m.Value("a", func(Value) error { return problem.New("c", "the hint", "unreadable") })
		m.Value("b", func(Value) error { return nil })
	})
	d.Report(problem.Flaw{Field: "b", Message: "out of range"})
	d.Report(problem.Flaw{Field: "a", Message: "out of range"})
	want := []problem.Flaw{
		{Field: "a", Line: 1, Column: 4, Message: "unreadable", Hint: "the hint"},
		{Field: "b", Line: 2, Column: 4, Message: "out of range"},
	}
	if diff := cmp.Diff(want, flawsOf(t, d)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNumbersAreOnlyWhatEverybodyReadsAlike(t *testing.T) {
	ints := map[string]bool{
		"0": true, "7": true, "-7": true, "120": true,
		"007": false, "0x10": false, "0o7": false, "1_000": false, "1e3": false, "1.0": false, "'7'": false, "+7": false,
		"seven": false, "99999999999999999999": false, "--7": false, "true": false,
	}
	for text, ok := range ints {
		Read("f", []byte("n: "+text), func(m *Map) {
			m.Value("n", func(v Value) error {
				if _, err := v.Int(); (err == nil) != ok {
					t.Errorf("Int of %s: %v", text, err)
				}
				return nil
			})
		})
	}
	numbers := map[string]bool{
		"0.5": true, "2": true, "-1.25": true,
		".inf": false, "-.inf": false, ".nan": false, "1e3": false, "'1.5'": false, "x": false, "1_0.5": false, "1.2.3": false,
	}
	for text, ok := range numbers {
		Read("f", []byte("n: "+text), func(m *Map) {
			m.Value("n", func(v Value) error {
				if _, err := v.Number(); (err == nil) != ok {
					t.Errorf("Number of %s: %v", text, err)
				}
				return nil
			})
		})
	}
	for text, ok := range map[string]bool{"true": true, "false": true, "yes": false, "True": false, "on": false, "'true'": false, "1": false} {
		Read("f", []byte("n: "+text), func(m *Map) {
			m.Value("n", func(v Value) error {
				if _, err := v.Bool(); (err == nil) != ok {
					t.Errorf("Bool of %s: %v", text, err)
				}
				return nil
			})
		})
	}
}

func TestDidYouMean(t *testing.T) {
	known := []string{"sessions", "subnet", "ttl", "max_ttl", "idle"}
	for key, want := range map[string]string{
		"sesions": "sessions", "sessoins": "sessions", "session": "sessions", "tll": "ttl", "max-ttl": "max_ttl", "sub_net": "subnet",
		"banana": "", "x": "", strings.Repeat("s", 500): "",
	} {
		got := nearest(key, known)
		if got != want {
			t.Errorf("%s: got %q, want %q", shorten(key), got, want)
		}
	}
}

func TestLongValuesDoNotFillTheScreen(t *testing.T) {
	d := Read("f", []byte("a: "+strings.Repeat("ü", 5000)), func(m *Map) { m.Map("a", func(*Map) {}) })
	if text := d.Err().Error(); len(text) > 200 || !strings.Contains(text, "ü…") {
		t.Errorf("got %d bytes: %s", len(text), text)
	}
}

func TestDeepNestingIsRefused(t *testing.T) {
	d := Read("f", []byte(strings.Repeat("[", 20000)), func(*Map) {})
	if len(flawsOf(t, d)) != 1 {
		t.Errorf("got %v", d.Err())
	}
}
