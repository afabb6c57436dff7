package jailspawn

import (
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jailspawn/staged"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestTheModeIsTheNamedOneElseTheHostDaemonElseMdo(t *testing.T) {
	for named, want := range map[string]Mode{"": ModeMDO, "hostd": ModeHostd, "helper": ModeHelper, "sudo": ModeSudo, "none": ModeNone} {
		if got, err := ChooseMode(named, func() bool { return false }); got != want || err != nil {
			t.Errorf("%q: %q, %v", named, got, err)
		}
	}
	if got, err := ChooseMode("", func() bool { return true }); got != ModeHostd || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := ChooseMode("root", nil); problem.CodeOf(err) != problem.BadUsage {
		t.Errorf("%v", err)
	}
}

func TestWhatCannotBeSpawnedIsRefusedBeforeAnythingIsDone(t *testing.T) {
	ok := jail.Program{Argv: []string{"true"}}
	for name, test := range map[string]struct {
		c    JailConfig
		p    jail.Program
		code string
	}{
		"no jail":                  {JailConfig{User: "a"}, ok, problem.BadRequest},
		"no program":               {JailConfig{Name: "a", User: "a"}, jail.Program{}, problem.BadRequest},
		"nobody":                   {JailConfig{Name: "a"}, ok, problem.BadRequest},
		"root":                     {JailConfig{Name: "a", User: "root"}, ok, problem.BadName},
		"a flag for a jail":        {JailConfig{Name: "-l", User: "a"}, ok, problem.BadName},
		"a number for a jail":      {JailConfig{Name: "0", User: "a"}, ok, problem.BadName},
		"a child jail":             {JailConfig{Name: "a.b", User: "a"}, ok, problem.BadName},
		"the host's root":          {JailConfig{Path: "/", User: "a"}, ok, problem.BadRequest},
		"a parameter in a path":    {JailConfig{Path: "/a ip4=inherit", User: "a"}, ok, problem.BadRequest},
		"dots in a path":           {JailConfig{Path: "/a/..", User: "a"}, ok, problem.BadRequest},
		"another root":             {JailConfig{Path: "/a", RootPath: "/b", User: "a"}, ok, problem.BadRequest},
		"the host's network":       {JailConfig{Path: "/a", User: "a", IP4: IP4Inherit}, ok, problem.Forbidden},
		"an address":               {JailConfig{Path: "/a", User: "a", IP4: "10.0.0.1"}, ok, problem.BadRequest},
		"variables without a root": {JailConfig{Name: "a", User: "a"}, jail.Program{Argv: ok.Argv, Env: map[string]string{"A": "b"}}, problem.BadRequest},
		"no variable":              {JailConfig{Name: "a", RootPath: "/a", User: "a"}, jail.Program{Argv: ok.Argv, Env: map[string]string{"A;id": "b"}}, problem.BadRequest},
	} {
		if _, err := New(Options{Mode: ModeNone}).Run(t.Context(), test.c, test.p, Stdio{}); problem.CodeOf(err) != test.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := New(Options{Mode: ModeNone, AllowHostNetwork: true}).validate(JailConfig{Path: "/a", User: "a", IP4: IP4Inherit}, ok); err != nil {
		t.Errorf("what the configuration allows: %v", err)
	}
}

func TestStagedFilesHaveTheNamesThatScriptsUse(t *testing.T) {
	if staged.Env != jail.StageEnv || staged.Launch != jail.StageLaunch {
		t.Error("package staged and package jail name files differently")
	}
}
