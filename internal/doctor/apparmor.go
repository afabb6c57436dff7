package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
)

const (
	appArmorEnabled  = "sys/module/apparmor/parameters/enabled"
	appArmorProfiles = "sys/kernel/security/apparmor/profiles"
	restartDaemon    = "start the host daemon again, which loads the profiles: sudo systemctl restart clawjail-hostd"
)

// appArmorLacks says what the host lacks for jails to have profiles of AppArmor, or nothing.
func (e *exam) appArmorLacks() string {
	if e.setting(appArmorEnabled) != "Y" {
		return "AppArmor is not on in this kernel"
	}
	if _, err := e.read(appArmorProfiles); err != nil {
		return "AppArmor is on, and its profiles cannot be seen"
	}
	if _, ok := e.program("apparmor_parser"); !ok {
		return "AppArmor is on, and its parser is not installed"
	}
	return ""
}

// appArmor looks whether jails have their profiles: what the host could do, what the host daemon does, and what the kernel has.
func appArmor(ctx context.Context, e *exam) Result {
	mode := e.Config.AppArmor
	r := Result{}.fact("apparmor", string(mode))
	end := func(status Status, message, hint string) Result {
		r.Status, r.Message, r.Hint = status, message, hint
		return r
	}
	lacks := e.appArmorLacks()
	switch {
	case mode == config.AppArmorOff && e.setting(appArmorEnabled) == "Y":
		return end(Warn, "AppArmor is on, and jails are made without a profile", "set apparmor: auto, and start the host daemon again")
	case mode == config.AppArmorOff:
		return end(OK, "jails are made without a profile of AppArmor", "")
	case lacks != "" && mode == config.AppArmorRequired:
		return end(Fail, lacks+", and it is required", appArmorHint(lacks))
	case lacks != "" && e.setting(appArmorEnabled) != "Y":
		return end(OK, "this kernel has no AppArmor that is on; jails are without a profile", "")
	case lacks != "":
		return end(Warn, lacks+"; jails are without a profile", appArmorHint(lacks))
	}
	info, err := e.Daemon(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		return end(OK, "AppArmor is on; the host daemon loads the profiles of jails when it starts", "")
	case err != nil:
		return e.failed(err)
	case !info.AppArmor:
		return end(Warn, "AppArmor is on, and the host daemon has started without it; jails are without a profile", restartDaemon)
	}
	for _, p := range jail.AppArmorProfiles() {
		if text, err := e.read(appArmorProfiles); err != nil {
			return e.failed(err)
		} else if name := p.Name(info.Installation); !strings.Contains("\n"+text, "\n"+name+" (enforce)\n") {
			return end(Fail, fmt.Sprintf("AppArmor does not enforce the profile %s, and no jail starts", name), restartDaemon)
		}
	}
	outside, err := e.outsideAppArmor(ctx)
	if err != nil {
		return e.failed(err)
	}
	if len(outside) > 0 {
		r = r.fact("processes", outside)
		return end(Warn, fmt.Sprintf("jails start under profiles of AppArmor, and %d processes of older ones run without", len(outside)),
			"restart the agents that were started before, or while the profiles were gone: clawjail agent restart NAME")
	}
	return end(OK, "jails run under profiles of AppArmor", "")
}

func appArmorHint(lacks string) string {
	switch {
	case strings.Contains(lacks, "parser"):
		return "sudo apt install apparmor, then start the host daemon again"
	case strings.Contains(lacks, "seen"):
		return "sudo mount -t securityfs securityfs /sys/kernel/security; in a container its host's folder has to be given to it"
	}
	return "start the kernel with apparmor=1 security=apparmor on its command line; or set apparmor: auto"
}

// outsideAppArmor lists the processes of jails that are under no profile of the installation's.
func (e *exam) outsideAppArmor(ctx context.Context) ([]int, error) {
	in, err := e.installed()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	first, last, err := uids(e.Config, in)
	if err != nil {
		return nil, err
	}
	things, err := e.Resources(ctx, inventory.Scope{Installation: in.ID, Data: e.Config.DataDir, Run: e.Config.RunDir})
	if err != nil {
		return nil, fmt.Errorf("list what is on the host: %w", err)
	}
	var out []int
	for _, t := range things {
		words := strings.Fields(t.ID)
		if t.Kind != "process" || len(words) < 2 {
			continue
		}
		pid, err1 := strconv.Atoi(words[0])
		uid, err2 := strconv.ParseUint(words[len(words)-1], 10, 64)
		if errors.Join(err1, err2) != nil || uid < first || uid > last {
			continue // a runtime that is making one
		}
		label := e.setting(fmt.Sprintf("proc/%d/attr/current", pid))
		if label != "" && !strings.HasPrefix(label, jail.AppArmorProfile("").Name(in.ID)) {
			out = append(out, pid)
		}
	}
	return out, nil
}
