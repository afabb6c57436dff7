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

func TestNoWordOfACommandIsTakenForAName(t *testing.T) {
	ok := jail.Program{Argv: []string{"true"}}
	for name, test := range map[string]struct {
		c    JailConfig
		code string
	}{
		"a flag for a jail":     {JailConfig{Name: "-l", User: "a"}, problem.BadName},
		"a number for a jail":   {JailConfig{Name: "0", User: "a"}, problem.BadName},
		"a flag for a user":     {JailConfig{Name: "a", User: "-n"}, problem.BadName},
		"a parameter in a path": {JailConfig{Path: "/a ip4=inherit", User: "a"}, problem.BadRequest},
		"another of root's":     {JailConfig{Name: "a", User: "toor"}, problem.Forbidden},
	} {
		if _, err := New(Options{Mode: ModeNone}).Run(t.Context(), test.c, ok, Stdio{}); problem.CodeOf(err) != test.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := Options{Mode: ModeNone, AllowHostNetwork: true}
	if err := New(o).validate(JailConfig{Path: "/a", User: "a", IP4: IP4Inherit}, ok); err != nil {
		t.Errorf("what the configuration allows: %v", err)
	}
	if err := New(o).validate(JailConfig{Name: "a", User: "a"}, ok); err != nil {
		t.Errorf("a jail that runs: %v", err)
	}
}

func TestStagedFilesHaveTheNamesThatScriptsUse(t *testing.T) {
	if staged.Env != jail.StageEnv || staged.Launch != jail.StageLaunch {
		t.Error("package staged and package jail name files differently")
	}
}
