package template

import (
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestPackagesOfNpmAreNamedAndNothingElseIs(t *testing.T) {
	for text, want := range map[string][2]string{
		"one": {"one", ""}, "one@1.2.3": {"one", "1.2.3"}, "@a/one": {"@a/one", ""}, "@a/one@^1.0.0 || >=3": {"@a/one", "^1.0.0 || >=3"}, "one@next": {"one", "next"},
	} {
		if name, version, err := parseNPM(text); err != nil || name != want[0] || version != want[1] {
			t.Errorf("%s: %q, %q, %v", text, name, version, err)
		}
	}
	for _, text := range []string{"", "@", "-g", "--prefix=/", "../x", "/x", "x/y", "@a/b/c", "git+https://example.com/x", "one@https://example.com/x", "one@npm:two", "one@file:x",
		"one@", "one@--global", "one@../x", "One", "one\n", "one@1\n", "@-a/-b@x y/z", "one two", strings.Repeat("a", 257)} {
		if name, version, err := parseNPM(text); problem.CodeOf(err) != problem.BadTemplate {
			t.Errorf("%q is taken as %q, %q, %v", text, name, version, err)
		}
	}
}

func TestTheNewestNodeThatIsMaintainedForLongIsTriedFirst(t *testing.T) {
	got := usableNodes([]string{"18.20.0", "20.1.0", "20.11.0", "20.9.0", "23.1.0", "22.2.0", "25.0.0", "24.0.0-rc.1", "26.1.0"})
	if want := []string{"26.1.0", "22.2.0", "20.11.0", "25.0.0", "23.1.0"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if got := usableNodes([]string{"18.20.0", "19.0.0"}); len(got) != 0 {
		t.Errorf("an old one is usable: %v", got)
	}
}

func TestOfSeveralProgramsOneIsNamed(t *testing.T) {
	p := NPMPackage{Name: "p", Version: "1.0.0", Bins: map[string]string{"a": "a.js", "b": "b.js"}}
	if bin, err := p.Program("b"); err != nil || bin != "b" {
		t.Errorf("%q, %v", bin, err)
	}
	for _, bin := range []string{"", "c"} {
		if _, err := p.Program(bin); problem.CodeOf(err) != problem.BadTemplate || !strings.Contains(hintOf(err), "a, b") {
			t.Errorf("%q: %v", bin, err)
		}
	}
	delete(p.Bins, "b")
	if bin, err := p.Program(""); err != nil || bin != "a" {
		t.Errorf("%q, %v", bin, err)
	}
}

func TestVersionsAreOrderedByTheirNumbers(t *testing.T) {
	want := []string{"0.9.0", "1.0.0-beta", "1.0.0-rc.1", "1.0.0-rc.9", "1.0.0-rc.10", "1.0.0", "1.2.0", "1.10.0", "2025.11.25", "2026.1.2"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compareVersions)
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func hintOf(err error) string {
	p, _ := problem.As(err)
	if p == nil {
		return ""
	}
	return p.Hint
}
