package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestFoldersBesideTheFileAreAskedAboutAndNoOthers(t *testing.T) {
	for _, c := range []struct {
		what, dir  string
		workspaces []string
		want       []string
		refused    bool
	}{
		{"the usual layout", "/home/ada/bots", []string{"/home/ada/bots/workspaces/a", "/home/ada/bots/workspaces/b"}, []string{"/home/ada/bots/workspaces"}, false},
		{"two folders", "/home/ada/bots", []string{"/home/ada/bots/x", "/home/ada/bots/y/z"}, []string{"/home/ada/bots/x", "/home/ada/bots/y"}, false},
		{"what a root holds", "/srv/ok", []string{"/srv/ok/a"}, nil, false},
		{"elsewhere", "/home/ada/bots", []string{"/etc", "/home/ada/botsy/x", "/home/ada/other"}, nil, false},
		{"a file in the root of the file system", "/", []string{"/etc/x"}, nil, false},
		{"the folder of the file", "/home/ada/bots", []string{"/home/ada/bots"}, nil, true},
		{"a folder above the file", "/home/ada/bots", []string{"/home/ada"}, nil, true},
	} {
		var agents []clawbots.Agent
		for _, w := range c.workspaces {
			agents = append(agents, clawbots.Agent{Name: "bot", Workspace: w})
		}
		got, err := foldersBeside(c.dir, []string{"/srv/ok"}, append(agents, clawbots.Agent{Name: "alone"}))
		if (err != nil) != c.refused || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.what, got, err, c.want)
		}
	}
}

func TestAQuestionAboutFoldersSaysWhoseTheyAre(t *testing.T) {
	c := config.Config{DataDir: "/d"}
	q := folderQuestion(c, "bots\x1b[2J.yml", []hostd.AddedRoot{{Path: "/home/ada/w", Owner: 1234}, {Path: "/srv/w\x1b[2J"}})
	for _, want := range []string{"/home/ada/w   of user 1234", "/d/workspace-roots", "/srv/w"} {
		if !strings.Contains(q, want) {
			t.Errorf("it does not say %s:\n%s", want, q)
		}
	}
	if strings.Contains(q, "\x1b") {
		t.Errorf("a name reaches the terminal as it is:\n%q", q)
	}
}

func TestTemplatesThatAFileNeeds(t *testing.T) {
	agents := []clawbots.Agent{{Name: "a"}, {Name: "b", Image: "x:1"}, {Name: "c", Template: "mine"}, {Name: "d", Template: "clawbot"}}
	if got := templatesOf(agents, agent.DriverLinux); !slices.Equal(got, []string{"clawbot", "mine"}) {
		t.Errorf("with jails: %v", got)
	}
	if got := templatesOf(agents[:3], agent.DriverDocker); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("with containers: %v", got)
	}
}

// TestNothingIsAddedForAFileWithAnotherMistake has what lacks beside what is wrong.
func TestNothingIsAddedForAFileWithAnotherMistake(t *testing.T) {
	for _, c := range []struct {
		fields []string
		want   bool
	}{
		{nil, true}, {[]string{"a.workspace"}, true}, {[]string{"a.workspace", "a"}, true}, {[]string{"a.workspace", "b.template"}, true},
		{[]string{"a.workspace", "b"}, false}, {[]string{"a.workspace", "a.services[0]"}, false}, {[]string{"b.ttl", "a.workspace"}, false},
	} {
		m := &problem.ValidationError{Code: problem.BadRequest}
		for _, f := range c.fields {
			m.Add(f, "it is so")
		}
		var err error = problem.New(problem.BadRequest, "", "it is so")
		if len(c.fields) > 0 {
			err = m
		}
		if canBeMet(err) != c.want {
			t.Errorf("%v: can be met: %v", c.fields, !c.want)
		}
	}
	if canBeMet(problem.New(problem.Conflict, "", "it is so")) {
		t.Error("a conflict can be met")
	}
}
