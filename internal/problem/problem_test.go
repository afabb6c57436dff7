package problem

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var errCause = errors.New("the cause")

func TestProblemIsFoundThroughWrapping(t *testing.T) {
	err := fmt.Errorf("open session: %w", Wrap(errCause, DiskFull, "free some space", "clone %s", "browser"))

	e, ok := As(err)
	if !ok {
		t.Fatal("As does not find a wrapped problem")
	}
	if e.Code != DiskFull || e.Hint != "free some space" || e.Message != "clone browser" {
		t.Errorf("got %+v", e)
	}
	if !errors.Is(err, errCause) {
		t.Error("the cause is not found")
	}
	if got, want := err.Error(), "open session: clone browser: the cause"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, ok := As(errCause); ok {
		t.Error("As finds a problem where there is none")
	}
}

func TestCodeOf(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"nil", nil, ""},
		{"problem", New(BadName, "", "x"), BadName},
		{"outermost problem decides", Wrap(New(BadName, "", "x"), JailFailed, "", "y"), JailFailed},
		{"joined", errors.Join(errCause, New(BadURL, "", "x")), BadURL},
		{"deadline", fmt.Errorf("wait: %w", context.DeadlineExceeded), Timeout},
		{"canceled", fmt.Errorf("wait: %w", context.Canceled), Canceled},
		{"problem around a deadline", Wrap(context.DeadlineExceeded, NavigationFailed, "", "x"), NavigationFailed},
		{"anything else", errCause, Internal},
		{"many", &ValidationError{Code: BadConfig, Flaws: []Flaw{{Message: "x"}}}, BadConfig},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := CodeOf(tt.err); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestWithLeavesTheOriginalAlone(t *testing.T) {
	first := New(HostDenied, "", "x").With("host", "a.example")
	second := first.With("host", "b.example").With("rule", 3)
	if diff := cmp.Diff(map[string]any{"host": "a.example"}, first.Details); diff != "" {
		t.Errorf("the original changed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]any{"host": "b.example", "rule": 3}, second.Details); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
}

func TestAValidationErrorIsNilUntilSomethingIsWrong(t *testing.T) {
	m := &ValidationError{Code: BadConfig}
	if err := m.Err(); err != nil {
		t.Fatalf("got %v", err)
	}
	m.Add("sessions.max", "must be at least %d", 1)
	if err := m.Err(); err == nil {
		t.Fatal("a flaw was added and the error is nil")
	}
}

func TestAValidationErrorKeepsNoMoreThanAnybodyReads(t *testing.T) {
	m := &ValidationError{Code: BadConfig}
	for n := range 3 * maxFlaws {
		if m.Full() != (n > maxFlaws) {
			t.Fatalf("with %d flaws, full is %v", n, m.Full())
		}
		m.Add("", "is flaw %d", n)
	}
	if len(m.Flaws) != maxFlaws+1 || m.Flaws[maxFlaws-1].Message != "is flaw 999" || m.Flaws[maxFlaws].Message != "there are more mistakes" {
		t.Errorf("%d are kept, with %v at the end", len(m.Flaws), m.Flaws[len(m.Flaws)-1])
	}
}

func TestAValidationErrorShowsEveryFlawWithItsPlace(t *testing.T) {
	m := &ValidationError{Code: BadConfig, Source: "clawjail.yml"}
	m.AddFlaw(Flaw{Field: "sesions", Line: 3, Column: 1, Message: "unknown key", Hint: "did you mean sessions?"})
	m.Add("limits.cpu", "must be positive")
	m.AddFlaw(Flaw{Message: "is empty"})
	want := strings.Join([]string{
		"clawjail.yml:3:1: sesions: unknown key (did you mean sessions?)",
		"clawjail.yml: limits.cpu: must be positive",
		"clawjail.yml: is empty",
	}, "\n")
	if diff := cmp.Diff(want, m.Error()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}

	anonymous := &ValidationError{}
	anonymous.AddFlaw(Flaw{Line: 1, Column: 2, Message: "x"})
	if got, want := anonymous.Error(), "line 1:2: x"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAValidationErrorIsFoundAsOneProblem(t *testing.T) {
	m := &ValidationError{Code: BadConfig, Hint: "correct the file"}
	m.Add("listen", "is not an address")
	e, ok := As(fmt.Errorf("load configuration: %w", m.Err()))
	if !ok {
		t.Fatal("As does not find a list")
	}
	want := &Error{
		Code: BadConfig, Hint: "correct the file", Message: "listen: is not an address",
		Details: map[string]any{"errors": []Flaw{{Field: "listen", Message: "is not an address"}}},
	}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("problem (-want +got):\n%s", diff)
	}
	var back *ValidationError
	if !errors.As(m.Err(), &back) || back != m {
		t.Error("the list itself is not found any more")
	}
}

func TestStatusOfUnknownCodeIs500(t *testing.T) {
	if got := Status("no_such_code"); got != 500 {
		t.Errorf("got %d", got)
	}
	if got := Status(NotFound); got != 404 {
		t.Errorf("not_found: got %d", got)
	}
}

// The constants and the table are written separately; this is what keeps them together.
func TestEveryCodeHasOneRow(t *testing.T) {
	constants := codeConstants(t)
	rows := map[string]bool{}
	form := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	for _, info := range Codes() {
		if rows[info.Code] {
			t.Errorf("%s has two rows", info.Code)
		}
		rows[info.Code] = true
		if !form.MatchString(info.Code) {
			t.Errorf("%q is not lower case words joined by _", info.Code)
		}
		if info.Status < 400 || info.Status > 599 {
			t.Errorf("%s: %d is not the status of an error", info.Code, info.Status)
		}
		if info.Means == "" {
			t.Errorf("%s does not say what it means", info.Code)
		}
		if _, ok := constants[info.Code]; !ok {
			t.Errorf("%s has a row and no constant", info.Code)
		}
	}
	for code, name := range constants {
		if !rows[code] {
			t.Errorf("%s (%q) has no row", name, code)
		}
	}
}

// codeConstants reads the exported string constants out of the source: value → name.
func codeConstants(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			value := spec.(*ast.ValueSpec)
			literal, ok := value.Values[0].(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING || !value.Names[0].IsExported() {
				continue
			}
			code, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			if other, twice := out[code]; twice {
				t.Errorf("%s and %s are both %q", other, value.Names[0].Name, code)
			}
			out[code] = value.Names[0].Name
		}
	}
	if len(out) < 20 {
		t.Fatalf("read only %d constants out of codes.go", len(out))
	}
	return out
}
