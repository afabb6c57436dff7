// Package jailspawn runs a program in a jail of FreeBSD where no host daemon runs: in a jail that is there (jexec(8)), or in one
// that is made for it of a folder (jail(8)). Its stdio is the caller's, its status becomes the result, and when the caller goes,
// it goes with everything that it started.
//
// Both commands are root's. How the right to run them is had is a Mode, and each is worth something different: see the page
// docs/spawn.md. Nothing is ever run outside a jail, as root in one, or, unless the configuration allows it, on the
// network of the host.
//
// No FreeBSD was at hand. Its behaviour with these commands is taken from its manual pages and sources, and tried with
// stand-ins on Linux.
package jailspawn

import (
	"log/slog"
	"os"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jailspawn/command"
	"github.com/clawjail/clawjail/internal/jailspawn/helper"
	"github.com/clawjail/clawjail/internal/problem"
)

// IP4 of a jail that is made. A jail that is there has its network already.
const (
	IP4Disable = "disable" // no network; the default
	IP4Inherit = "inherit" // the host's, which the configuration must allow
)

// JailConfig says which jail a program runs in: the JailConfig of the origin documents.
type JailConfig struct {
	// Name is a jail that runs. It goes before Path.
	Name string
	// Path is a folder of the host that a jail is made of, which is gone when the program is.
	Path string
	// RootPath is the root of a named jail as the host sees it. Without it nothing can be staged there, so that the program
	// gets neither variables nor a working directory. Empty stands for Path.
	RootPath string
	// User is the user of the jail that the program runs as. It is never root. In mode helper, empty is the one of the
	// helper's configuration.
	User string
	// IP4 is IP4Disable or IP4Inherit; empty is the former.
	IP4 string
}

// root is the jail's root as the host sees it, or empty.
func (c JailConfig) root() string {
	if c.RootPath != "" {
		return c.RootPath
	}
	if c.Name != "" {
		return ""
	}
	return c.Path
}

// Options are what a Spawner works with.
type Options struct {
	Mode Mode
	// Commands are the host's commands. On a real host it is zero.
	Commands hostcmd.Runner
	// Helper and HelperConfig are where the setuid helper and its configuration are; empty for those of this program's
	// installation.
	Helper, HelperConfig string
	// StageDir is the folder that programs are staged in, as the jail sees it. Empty for .cache/clawjail/stage in the home of
	// the jail's user.
	StageDir string
	// AllowHostNetwork lets IP4Inherit pass.
	AllowHostNetwork bool
	// UID is the caller.
	UID int
	Log *slog.Logger
}

// Spawner runs programs in jails.
type Spawner struct{ o Options }

// New makes a Spawner.
func New(o Options) *Spawner {
	if o.Helper == "" {
		program, _ := os.Executable() // without it the usual place is taken
		o.Helper = helper.Beside(program)
	}
	if o.HelperConfig == "" {
		o.HelperConfig = helper.ConfigPath
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Spawner{o: o}
}

// Stdio are the three streams of a program. Files are handed to it as they are.
type Stdio struct{ In, Out, Err *os.File }

// validate checks what was asked for before anything is done.
func (s *Spawner) validate(c JailConfig, prog jail.Program) error {
	switch {
	case c.Name == "" && c.Path == "":
		return problem.New(problem.BadRequest, "clawjail spawn --jail NAME -- …, or --root PATH", "no jail is named: nothing is run outside a jail")
	case c.Name != "" && !command.ValidName(c.Name):
		return problem.New(problem.BadName, "jails that run: jls name", "%q is not the name of a jail: letters, digits, - and _, and not digits alone", texts.Clip(c.Name, 60))
	case c.Path == "/" || c.RootPath == "/" || c.User == "root" || c.User == "toor" || c.User == "0":
		return problem.New(problem.Forbidden, "name a jail that runs or a folder, and a user of the jail that is not root", "no program is started on the bare host, nor as root")
	case c.User == "" && s.o.Mode != ModeHelper:
		return problem.New(problem.BadRequest, "--user NAME: a user of the jail, not root", "no user is named to run the program as")
	case c.User != "" && !command.ValidUser(c.User):
		return problem.New(problem.BadName, "--user NAME: a user of the jail, not root", "%q cannot be the user of a program", texts.Clip(c.User, 60))
	}
	for _, path := range []string{c.Path, c.RootPath} {
		if path != "" && !command.ValidPath(path) {
			return problem.New(problem.BadRequest, "give an absolute path of letters, digits and . _ - /, other than / itself",
				"%q cannot be the root of a jail", texts.Clip(path, 60))
		}
	}
	if c.Name == "" && c.RootPath != "" && c.RootPath != c.Path {
		return problem.New(problem.BadRequest, "leave --root-path out", "the root of a jail that is made of a folder is that folder")
	}
	return s.validateMore(c, prog)
}

func (s *Spawner) validateMore(c JailConfig, prog jail.Program) error {
	switch {
	case c.IP4 == IP4Inherit && !s.o.AllowHostNetwork:
		return problem.New(problem.Forbidden, "set allow_host_network: true in the configuration, when that is what you want", "jails may not use the network of the host (ip4: inherit)")
	case c.IP4 != "" && c.Name != "":
		return problem.New(problem.BadRequest, "leave it out", "a jail that runs has its network already")
	case c.IP4 != "" && c.IP4 != IP4Disable && c.IP4 != IP4Inherit:
		return problem.New(problem.BadRequest, "it is disable or inherit: the address behind the gateway is the host daemon's to give", "%q is not a network of a jail here", texts.Clip(c.IP4, 60))
	}
	if c.root() == "" && s.o.Mode != ModeHelper && (len(prog.Env) > 0 || prog.Dir != "") {
		return problem.New(problem.BadRequest, "say where the jail's root is on the host: --root-path PATH",
			"variables and a working directory are staged beneath the root of the jail %s, and it is not known where that is", c.Name)
	}
	prog.Argv, prog.Wire = jail.Searched(prog.Argv), jail.WireStdio // jexec(8) and the shell of the jail search by themselves
	return prog.Validate()
}
