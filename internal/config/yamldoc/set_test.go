package yamldoc

import (
	"maps"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestSetChangesOneValueAndLeavesTheRest(t *testing.T) {
	for name, tt := range map[string]struct{ before, after string }{
		"nothing":        {"", "b:\n  k: v\n"},
		"comments alone": {"# mine\n", "# mine\nb:\n  k: v\n"},
		"no end of line": {"# mine", "# mine\nb:\n  k: v\n"},
		"another section": {
			"# head\na: 1 # one\n\n# foot\n", "# head\na: 1 # one\n\n# foot\nb:\n  k: v\n",
		},
		"replaced": {
			"# head\n\nb:\n    # about k\n    k:   old   # why\n    l: [1, 2]\n\n# next\na: x\n",
			"# head\n\nb:\n    # about k\n    k:   v   # why\n    l: [1, 2]\n\n# next\na: x\n",
		},
		"added": {
			"b:\n    # about j\n    j: {x: 1}   # why\n    # more\n\na: |\n  text\n", "b:\n    # about j\n    j: {x: 1}   # why\n    k: v\n    # more\n\na: |\n  text\n",
		},
		"added at the end":  {"a: 1\nb:\n  j: 2", "a: 1\nb:\n  j: 2\n  k: v\n"},
		"double quotes":     {`b: {k: "o\"l}d", j: ü}`, `b: {k: v, j: ü}`},
		"single quotes":     {"b: {j: 'ü', k: 'it''s'} # c\n", "b: {j: 'ü', k: v} # c\n"},
		"flow":              {"b: {j: 1}\n", "b: {k: v, j: 1}\n"},
		"empty flow":        {"b: {} # none\n", "b: {k: v} # none\n"},
		"all of it flow":    {`{"b": {"k": "old"}}`, `{"b": {"k": v}}`},
		"flow without it":   {`{"a": 1}`, `{b: {k: v}, "a": 1}`},
		"windows":           {"b:\r\n  k: old\r\na: 1\r\n", "b:\r\n  k: v\r\na: 1\r\n"},
		"indented document": {"  a: 1\n", "  a: 1\n  b:\n    k: v\n"},
		"a word in it":      {"b:\n  k: a, b # c\n", "b:\n  k: v # c\n"},
	} {
		got, err := Set([]byte(tt.before), "v", "b", "k")
		if err != nil || string(got) != tt.after {
			t.Errorf("%s: %v\n%q, want\n%q", name, err, got, tt.after)
		}
	}
	deep, err := Set([]byte("b:\n  j: 1\n"), Quote("it's \"so\"\n#"), "b", "tls", "cert")
	if want := "b:\n  j: 1\n  tls: {cert: \"it's \\\"so\\\"\\n#\"}\n"; err != nil || string(deep) != want {
		t.Errorf("%v %q", err, deep)
	}
}

func TestSetRefusesWhatItCannotChange(t *testing.T) {
	for name, text := range map[string]string{
		"no YAML": "b: {", "a list": "- b\n", "no map": "b: 1\n", "a map": "b: {k: {x: 1}}\n", "nothing there": "b: {k: }\n", "many lines": "b:\n  k: one\n    two\n",
		"a block": "b:\n  k: |\n    text\n", "the last is a block": "b:\n  j: |\n    text\n    more\n", "an end": "a: 1\n...\n", "two documents": "a: 1\n---\nb: {k: 1}\n",
		"twice": "b:\n  k: 1\n  k: 2\n", "an alias": "a: &x 1\nb:\n  k: *x\n", "a null": "null\n",
	} {
		if got, err := Set([]byte(text), "v", "b", "k"); problem.CodeOf(err) != problem.BadConfig {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
	if _, err := Set([]byte("b: {k: 1}\n"), "v\na: 2", "b", "k"); err == nil {
		t.Error("a value brought a key along")
	}
}

func FuzzSetChangesNothingElse(f *testing.F) {
	for _, text := range []string{"", "b:\n  k: 1 # c\n", "b: {k: 'x', j: [1]}\n", "a: |\n  b\nb:\n  j: 1\n", "\ufeffb: {k: \"ü\"}", "? b\n: k: 1\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := Set(data, Quote("new"), "b", "k")
		if err != nil {
			return
		}
		before, after := map[string]string{}, map[string]string{}
		for text, into := range map[string]map[string]string{string(data): before, string(got): after} {
			var n yaml.Node
			if err := yaml.Unmarshal([]byte(text), &n); err != nil {
				t.Fatalf("%q → %q: %v", data, got, err)
			}
			if len(n.Content) > 0 {
				flatten(n.Content[0], "", into)
			}
		}
		before[place("b", "k")] = "!!str  new"
		if !maps.Equal(before, after) {
			t.Fatalf("%q → %q", data, got)
		}
	})
}
