package op

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/identity"
)

// mistakes are what is wrong with a description.
func mistakes(r Row) (out []string) {
	say := func(what string) { out = append(out, what) }
	if r.ID == "" || r.Summary == "" {
		say("it has no id or no summary")
	}
	if r.Right != "" && !slices.ContainsFunc(identity.Table(), func(rule identity.Rule) bool { return rule.Operation == r.Right }) {
		say("nobody may " + string(r.Right))
	}
	var args, wildcards []string
	for _, f := range r.Fields {
		if f.Place == InPath {
			wildcards = append(wildcards, "{"+f.Name+"}")
		}
		if n := f.Tag.Get("arg"); n != "" {
			args = append(args, n)
		}
		if f.Tag.Get("flag") != "" && f.Tag.Get("usage")+f.Tag.Get("doc") == "" {
			say(f.Name + " has no text")
		}
		if word := f.Tag.Get("value"); word != "" && !strings.Contains(f.Tag.Get("usage")+f.Tag.Get("doc"), word) {
			say("the text of " + f.Name + " has no " + word)
		}
		if is := f.Tag.Get("is"); is != "" && !slices.Contains([]string{"life", "duration", "span", "day", "methods", "scope", "positive", "natural", "one", "absent"}, is) {
			say(f.Name + " is " + is)
		}
	}
	for _, w := range wildcards {
		if !strings.Contains(r.Path, w) {
			say("the path has no " + w)
		}
	}
	if strings.Count(r.Path, "{") != len(wildcards) {
		say("a wildcard of the path is no field")
	}
	slices.Sort(args)
	needed := 0
	for n, arg := range args {
		number, optional := strings.CutSuffix(arg, "?")
		if !optional {
			needed++
		}
		if number != strconv.Itoa(n+1) {
			say("argument " + arg + " is not " + strconv.Itoa(n+1))
		}
	}
	if n := len(strings.Fields(strings.Split(strings.Split(r.Use, " --")[0], " [")[0])) - 1; r.Use != "" && n != needed {
		say("the command says " + strconv.Itoa(n) + " arguments")
	}
	return out
}

func TestDescriptionsHaveNoMistakes(t *testing.T) {
	ids := map[string]bool{}
	for _, r := range All() {
		for _, what := range mistakes(r) {
			t.Errorf("%s: %s", r.ID, what)
		}
		if ids[r.ID] {
			t.Errorf("%s is there twice", r.ID)
		}
		ids[r.ID] = true
	}
	// Each function that makes one is a row.
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		made += len(regexp.MustCompile(`(?m)^func [A-Z]\w*\(\) Op\[`).FindAll(text, -1))
	}
	if made != len(All()) {
		t.Errorf("%d operations are described, and All has %d", made, len(All()))
	}
	type wrong struct {
		ID string `path:"name" arg:"2" flag:"id" is:"good"`
	}
	planted := mistakes(Row{Method: "GET", Path: "/v1/{id}/{other}", ID: "x", Use: "z", Right: "nothing", Fields: FieldsOf(reflect.TypeFor[wrong]())})
	if len(planted) != 8 {
		t.Errorf("of eight planted mistakes it sees %q", planted)
	}
}

func TestAnAgentWhoseTimeIsOverIsSaidToBeSo(t *testing.T) {
	for _, over := range []bool{true, false} {
		a := AgentDetails{Agent: Agent{Name: "bot", Tenant: "default", Declares: true, Over: over}}
		if got := a.state() == "its ttl is over"; got != over {
			t.Errorf("over %v: the state is %q", over, a.state())
		}
		hinted := slices.ContainsFunc(ShowAgent().View(a)[0].Pairs, func(pair [2]any) bool { return pair[0] == "to start it" })
		if hinted != over {
			t.Errorf("over %v: how to start it is said: %v", over, hinted)
		}
	}
}
