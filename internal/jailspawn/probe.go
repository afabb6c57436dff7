package jailspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/clawjail/clawjail/internal/jailspawn/command"
	"github.com/clawjail/clawjail/internal/jailspawn/helper"
	"github.com/clawjail/clawjail/internal/problem"
)

// Check is one thing that a mode needs.
type Check struct {
	// Name is what was looked at.
	Name string
	// Problem is nil when it is as it should be.
	Problem *problem.Error
}

// Report is whether a mode works on this host for this caller, and why not.
type Report struct {
	Mode   Mode
	Checks []Check
}

// Err is the first problem, or nil.
func (r Report) Err() error {
	for _, c := range r.Checks {
		if c.Problem != nil {
			return c.Problem
		}
	}
	return nil
}

// Probe looks whether a mode works, before anything is done with it. Nothing is changed; mdo is made to run true(1).
func Probe(ctx context.Context, o Options) Report { return New(o).Probe(ctx, JailConfig{}) }

// prober collects checks; after the first problem nothing more is looked at, because the rest follows from it.
type prober struct {
	s *Spawner
	r Report
}

func (p *prober) check(name string, look func() *problem.Error) {
	if p.r.Err() == nil {
		p.r.Checks = append(p.r.Checks, Check{Name: name, Problem: look()})
	}
}

// Probe looks whether the spawner's mode works for a jail; a zero JailConfig is any.
func (s *Spawner) Probe(ctx context.Context, c JailConfig) Report {
	p := &prober{s: s, r: Report{Mode: s.o.Mode}}
	for _, name := range []string{"jexec", "jail", "jls", "ps"} {
		p.command(name)
	}
	switch s.o.Mode {
	case ModeMDO:
		p.mdo(ctx)
	case ModeHelper:
		p.helper()
	case ModeSudo:
		p.sudo(ctx, c)
	case ModeNone:
		p.check("root", func() *problem.Error {
			if s.o.UID != 0 {
				return problem.New(problem.NoRoot, "run it as root, or choose another way: "+ModeVariable+"=mdo, helper or sudo", "you are not root, and %s=none does not make you root", ModeVariable)
			}
			return nil
		})
	default:
		p.check("mode", func() *problem.Error {
			return problem.New(problem.BadUsage, "it is mdo, helper, sudo or none", "%q is no mode for a host without its daemon", string(s.o.Mode))
		})
	}
	if c.Name != "" {
		p.check("jail", func() *problem.Error {
			look := command.Look(c.Name)
			if _, err := s.o.Commands.Run(ctx, look[0], look[1:]...); err != nil {
				return problem.Wrap(err, problem.NotFound, "jails that run: jls name", "no jail %s runs on this host", c.Name)
			}
			return nil
		})
	}
	return p.r
}

// command looks whether a command is there.
func (p *prober) command(name string) {
	p.check(name, func() *problem.Error {
		_, missed := p.path(name)
		return missed
	})
}

// path is where a command is.
func (p *prober) path(name string) (string, *problem.Error) {
	path, err := p.s.o.Commands.Path(name)
	if err != nil {
		out, _ := problem.As(missing(err, name))
		return "", out
	}
	return path, nil
}

// mdo: mdo(1) is there, mac_do(4) is loaded and on, it has a rule, and the rule is for this caller. The last is found out by
// trying: the language of rules is not the same in 14 and 15, and from 15.1 on which programs may ask can be set.
func (p *prober) mdo(ctx context.Context) {
	p.command("mdo")
	p.check("mac_do", func() *problem.Error {
		if _, err := p.s.o.Commands.Run(ctx, "kldstat", "-q", "-m", "mac_do"); err != nil {
			return problem.Wrap(err, problem.RuntimeMissing, "as root: kldload mac_do, and mac_do_load=\"YES\" in /boot/loader.conf", "the kernel module mac_do is not loaded, so mdo can do nothing")
		}
		return nil
	})
	rule := fmt.Sprintf("as root: sysctl security.mac.do.rules='uid=%d>uid=0,gid=*,+gid=*' (FreeBSD 14: 'uid=%d:0'), and the same in /etc/sysctl.conf. It makes this user root", p.s.o.UID, p.s.o.UID)
	p.check("mac_do rules", func() *problem.Error {
		if on, err := p.s.o.Commands.Run(ctx, "sysctl", "-n", "security.mac.do.enabled"); err == nil && strings.TrimSpace(on) == "0" {
			return problem.New(problem.RuntimeMissing, "as root: sysctl security.mac.do.enabled=1", "mac_do is switched off")
		}
		rules, err := p.s.o.Commands.Run(ctx, "sysctl", "-n", "security.mac.do.rules")
		if err == nil && strings.TrimSpace(rules) == "" {
			return problem.New(problem.Forbidden, rule, "mac_do has no rule, so mdo refuses everybody")
		}
		return nil // that it cannot be read says nothing: the try does
	})
	p.check("mdo works", func() *problem.Error {
		if _, err := p.s.o.Commands.Run(ctx, "mdo", "-u", "root", "/usr/bin/true"); err != nil {
			return problem.Wrap(err, problem.Forbidden, rule, "mdo does not make you root: no rule of mac_do is for user %d, or mdo is not among the programs that may ask", p.s.o.UID)
		}
		return nil
	})
}

// sudo: the very commands that are run may be run without a password.
func (p *prober) sudo(ctx context.Context, c JailConfig) {
	p.command("sudo")
	name := c.Name
	if name == "" {
		name = "JAIL"
	}
	wanted := [][]string{command.Enter(name, "USER", "PROGRAM")}
	if c.User != "" {
		wanted = [][]string{command.Enter(name, c.User, command.Shell)}
	}
	if c.Path != "" && c.Name == "" {
		e := command.Ephemeral{Name: command.EphemeralName(strings.Repeat("0", 32)), Path: c.Path, User: c.User, HostNetwork: c.IP4 == IP4Inherit}
		wanted = [][]string{e.Create(command.Shell), command.Remove(e.Name), e.Unmount()}
	}
	for _, argv := range wanted {
		p.check("sudo "+argv[0], func() *problem.Error {
			path, missed := p.path(argv[0])
			if missed != nil {
				return missed
			}
			if _, err := p.s.o.Commands.Run(ctx, "sudo", append([]string{"-n", "-l", path}, argv[1:]...)...); err != nil {
				return problem.Wrap(err, problem.Forbidden, "by visudo: NAME ALL=(root) NOPASSWD: "+path+" *, with your name. Such a rule is as good as root",
					"sudo does not let you run %s without a password", argv[0])
			}
			return nil
		})
	}
}

// helper: the setuid helper and its configuration are root's alone.
func (p *prober) helper() {
	path := p.s.o.Helper
	p.check("helper", func() *problem.Error {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return problem.Wrap(err, problem.ToolMissing, "install it: install -o root -m 4755 clawjail-spawn "+path, "the helper is not installed at %s", path)
		case err != nil:
			return problem.Wrap(err, problem.ToolMissing, "look at it as root", "the helper %s cannot be examined", path)
		case !info.Mode().IsRegular():
			return problem.New(problem.Unsupported, "install it there as a plain file", "the helper %s is no plain file", path)
		}
		if err := helper.Trusted(path); err != nil {
			return problem.Wrap(err, problem.Unsupported, "as root: chown root "+path+" && chmod 4755 "+path+", and the like for the folders above it",
				"the helper could be replaced by somebody who is not root")
		}
		if info.Mode()&os.ModeSetuid == 0 {
			return problem.New(problem.Unsupported, "as root: chmod 4755 "+path, "the helper %s is not setuid", path)
		}
		return nil
	})
	p.check("helper's configuration", func() *problem.Error {
		if p.s.o.UID == 0 {
			return problem.New(problem.BadUsage, "use "+ModeVariable+"=none", "root needs no helper, and it refuses root")
		}
		c, err := helper.LoadConfig(p.s.o.HelperConfig)
		if err != nil {
			return problem.Wrap(err, problem.BadConfig, "let root write it: see docs/spawn.md", "the configuration of the helper cannot be used")
		}
		if len(c.Jails)+len(c.Roots) == 0 {
			return problem.New(problem.BadConfig, "let root write it: see docs/spawn.md", "the configuration of the helper lists no jail and no root")
		}
		return nil
	})
}
