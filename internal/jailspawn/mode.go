package jailspawn

import (
	"slices"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// Mode is how the right to run jexec(8) and jail(8) is had.
type Mode string

// The modes.
const (
	// ModeHostd is the host daemon: nothing of this package is used.
	ModeHostd Mode = "hostd"
	// ModeMDO is mdo(1) with a rule of mac_do(4). Such a rule names identities and no commands: a user who may use it is root.
	ModeMDO Mode = "mdo"
	// ModeHelper is the setuid helper: it can do what its configuration lists.
	ModeHelper Mode = "helper"
	// ModeSudo is sudo(8) without a question. A rule for jexec is as good as root.
	ModeSudo Mode = "sudo"
	// ModeNone runs the commands as they are: the caller is root.
	ModeNone Mode = "none"
)

// ModeVariable is the variable that names a mode.
const ModeVariable = "CLAWJAIL_PRIV_MODE"

// StageVariable is the variable that names the folder that programs are staged in.
const StageVariable = "CLAWJAIL_STAGE_DIR"

// Modes are all of them.
func Modes() []Mode { return []Mode{ModeHostd, ModeMDO, ModeHelper, ModeSudo, ModeNone} }

// ParseMode reads a mode.
func ParseMode(text string) (Mode, error) {
	if m := Mode(text); slices.Contains(Modes(), m) {
		return m, nil
	}
	return "", problem.New(problem.BadUsage, "it is hostd, mdo, helper, sudo or none", "%s is set to %q, which is not a mode", ModeVariable, texts.Clip(text, 60))
}

// ChooseMode is the mode that is named; when none is, hostd if it answers, else mdo: the default of a host with one operator.
func ChooseMode(named string, hostdAnswers func() bool) (Mode, error) {
	if named != "" {
		return ParseMode(named)
	}
	if hostdAnswers() {
		return ModeHostd, nil
	}
	return ModeMDO, nil
}

// wrap is a command line that runs with the rights of root.
func (s *Spawner) wrap(argv []string) ([]string, error) {
	path, err := s.o.Commands.Path(argv[0]) // neither mdo nor sudo shall look for it
	if err != nil {
		return nil, missing(err, argv[0])
	}
	argv = append([]string{path}, argv[1:]...)
	switch s.o.Mode {
	case ModeMDO:
		return append([]string{"mdo", "-u", "root"}, argv...), nil
	case ModeSudo:
		return append([]string{"sudo", "-n", "--"}, argv...), nil
	}
	return argv, nil
}

func missing(err error, name string) error {
	hint := "install it, or choose another way: " + ModeVariable + "=helper"
	switch name {
	case "jail", "jexec", "jls":
		hint = "jails are a part of FreeBSD: on other systems start the control plane, and leave " + ModeVariable + " unset"
	case "mdo":
		hint = "mdo is a part of FreeBSD since 14.2; or choose another way: " + ModeVariable + "=helper"
	}
	return problem.Wrap(err, problem.ToolMissing, hint, "the command %s is not on this host", name)
}
