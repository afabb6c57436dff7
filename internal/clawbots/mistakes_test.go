package clawbots

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

// One mistake is told once: a key that is there but for a letter is not missing as well.
func TestAMistakeIsToldOnceAtItsLine(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"clawbot:\n  - name: a\n", []string{"1:1 unknown key"}},
		{"clawbots:\n  - nmae: a\n", []string{"2:5 unknown key"}},
		{"clawbots:\n  - template: b\n", []string{"2:5 an agent needs a name"}},
		{"clawbots:\n  - name: a\n    tools:\n      - ulr: https://a.example/\n        methods: [GET]\n", []string{"4:9 unknown key"}},
		{"clawbots:\n  - name: a\n    tools:\n      - method: [GET]\n", []string{"4:9 a tool needs a url", "4:9 unknown key"}},
		{"clawbots:\n  - name: a\n    allow:\n      - hots: a.example\n", []string{"4:9 unknown key"}},
		{"clawbots:\n  - name: a\n    allow:\n      - deny: true\n", []string{"4:9 a rule needs a host or a url"}},
		{"clawbots:\n  - name: a\n    allow:\n      - deny: [a.example]\n", []string{"4:15 must be a value, not a list"}},
		{"clawbots:\n  - name: a\n    allow:\n      - methods: [GET]\n", []string{"4:9 a rule needs a host or a url"}},
		{"clawbots:\n  - name: A\n  - name: A\n", []string{"2:11 *", "3:11 *"}},
		{"", []string{"0:0 has no list of agents"}},
		{"- name: a\n", []string{"1:1 must be a map of keys, not a list"}},
		{"clawbots: [\n", []string{"*"}},
		{"clawbots: [{name: a}]\n---\nx: y\n", []string{"2:1 *"}},
	} {
		_, err := Parse("c.yml", []byte(c.text), "/x")
		var many *problem.ValidationError
		if !errors.As(err, &many) {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		var got []string
		for i, flaw := range many.Flaws {
			said := fmt.Sprintf("%d:%d %s", flaw.Line, flaw.Column, flaw.Message)
			if i < len(c.want) && (c.want[i] == "*" || c.want[i] == fmt.Sprintf("%d:%d *", flaw.Line, flaw.Column)) {
				said = c.want[i]
			}
			got = append(got, said)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%q is told %q, and not %q", c.text, got, c.want)
		}
	}
}

func TestAFieldOfAnAgentHasAPlace(t *testing.T) {
	f, err := Parse("c.yml", []byte("clawbots:\n  - name: a\n    mcp: [one, two]\n  - name: b\n    workspace: ./w\n"), "/x")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, field  string
		line, column int
	}{{"a", "mcp[1]", 3, 16}, {"a", "mcp", 3, 10}, {"a", "template", 2, 5}, {"a", "", 2, 5}, {"b", "workspace", 5, 16}, {"c", "name", 0, 0}} {
		if line, column := f.Place(c.name, c.field); line != c.line || column != c.column {
			t.Errorf("%s of %s is at %d:%d, and not at %d:%d", c.field, c.name, line, column, c.line, c.column)
		}
	}
	if line, column := (File{}).Place("a", "name"); line != 0 || column != 0 {
		t.Errorf("in no file: %d:%d", line, column)
	}
}
