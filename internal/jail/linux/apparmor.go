//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// The host daemon gives the kernel an AppArmor profile for each kind of jail at its start, as container engines do: so
// it fits the version that makes the jails, and the parser and kernel of the host. Nothing is written to /etc/apparmor.d.

// The values of AppArmorOptions.Mode.
const (
	AppArmorAuto     = "auto"
	AppArmorRequired = "required"
	AppArmorOff      = "off"
)

const (
	appArmorParser   = "apparmor_parser"
	appArmorEnabled  = "sys/module/apparmor/parameters/enabled"
	appArmorProfiles = "sys/kernel/security/apparmor/profiles"
	appArmorRemove   = "sys/kernel/security/apparmor/.remove"
	appArmorABI      = "etc/apparmor.d/abi"
)

// AppArmorOptions say whether jails are to have profiles of AppArmor.
type AppArmorOptions struct {
	Installation jail.Installation
	// Mode is AppArmorAuto, where the host has what it takes, AppArmorRequired or AppArmorOff.
	Mode string
	// Root is the root folder of the host. Default /.
	Root string
	// Run runs the parser of profiles.
	Run hostcmd.Runner
	Log *slog.Logger
}

// LoadAppArmor gives the kernel the profiles, and reports whether jails are to have them. A host that has everything and
// does not take them is an error also with AppArmorAuto: a control must not be left out silently.
func LoadAppArmor(ctx context.Context, o AppArmorOptions) (bool, error) {
	if o.Mode == AppArmorOff {
		return false, nil
	}
	if lacking := appArmorLacks(o); lacking != nil {
		if o.Mode == AppArmorRequired {
			return false, lacking
		}
		o.Log.Info("jails have no profile of AppArmor", "reason", lacking, "hint", lacking.Hint)
		return false, nil
	}
	text := appArmorText(o.Installation, appArmorFeatures(o.Root))
	// The profiles are read from the standard input. Options of parser.conf could make a profile that only complains, so
	// it is looked afterwards what the kernel has.
	if _, err := o.Run.RunWith(ctx, text, appArmorParser, "--replace", "--skip-cache"); err != nil {
		return false, problem.Wrap(err, problem.Unsupported,
			"see `sudo dmesg | grep -i apparmor`; or set apparmor: off, and jails are without it",
			"AppArmor does not take the profiles of jails")
	}
	for _, p := range jail.AppArmorProfiles() {
		if err := appArmorHas(o.Root, o.Installation, p); err != nil {
			return false, err
		}
	}
	return true, nil
}

// appArmorLacks says what the host lacks, or nil.
func appArmorLacks(o AppArmorOptions) *problem.Error {
	on, err := os.ReadFile(filepath.Join(o.Root, appArmorEnabled))
	if err != nil || strings.TrimSpace(string(on)) != "Y" {
		return problem.New(problem.Unsupported, "start it with apparmor=1 security=apparmor on its command line; or set apparmor: auto",
			"AppArmor is not on in this kernel")
	}
	if _, err := os.ReadFile(filepath.Join(o.Root, appArmorProfiles)); err != nil {
		return problem.Wrap(err, problem.Unsupported,
			"sudo mount -t securityfs securityfs /sys/kernel/security; a container of an engine needs that folder of its host",
			"the profiles of AppArmor cannot be seen")
	}
	if _, err := o.Run.Path(appArmorParser); err != nil {
		return problem.Wrap(err, problem.ToolMissing, "sudo apt install apparmor, then start the host daemon again",
			"AppArmor is on, and there is no %s", appArmorParser)
	}
	return nil
}

// appArmorHas refuses a profile that the kernel does not have, or does not enforce.
func appArmorHas(root string, id jail.Installation, p jail.AppArmorProfile) error {
	name := p.Name(id)
	loaded, err := os.ReadFile(filepath.Join(root, appArmorProfiles))
	mode := "it is not there"
	for line := range strings.Lines(string(loaded)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), name+" ("); ok {
			mode = "it is in the mode " + strings.TrimSuffix(rest, ")")
		}
	}
	if err == nil && mode == "it is in the mode enforce" {
		return nil
	}
	return problem.Wrap(err, problem.JailUnconfined, "start the host daemon again, which loads it: sudo systemctl restart clawjail-hostd",
		"AppArmor does not enforce the profile %s: %s", name, mode)
}

// UnloadAppArmor takes the profiles of an installation out of the kernel.
func UnloadAppArmor(root string, id jail.Installation) error {
	loaded, err := os.ReadFile(filepath.Join(root, appArmorProfiles))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no AppArmor
	}
	if err != nil {
		return fmt.Errorf("list the profiles of AppArmor: %w", err)
	}
	var errs []error
	for _, p := range jail.AppArmorProfiles() {
		name := p.Name(id)
		if !strings.Contains("\n"+string(loaded), "\n"+name+" (") {
			continue
		}
		f, err := os.OpenFile(filepath.Join(root, appArmorRemove), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(name)
			err = errors.Join(err, f.Close())
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("take the profile %s out of the kernel: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// appArmorFeatures is the newest version of the language of profiles that the parser of the host knows and this file has a
// use for. It is the name of a file beside the profiles. Before 3.0 there is none.
func appArmorFeatures(root string) string {
	for _, version := range []string{"4.0", "3.0"} {
		if _, err := os.Stat(filepath.Join(root, appArmorABI, version)); err == nil {
			return version
		}
	}
	return ""
}

// appArmorText is what the parser is given. Everything that it does not allow is refused: mounts of every kind, raw sockets and packets, other
// capabilities, other profiles; signals and traces beyond the jail's own processes, but for the signals of the host. A kernel that can
// tell who makes a user namespace refuses that to agents.
//
// Files are for the user and the mounts of the jail to decide, except for what changes or shows the kernel: nothing in /proc that is
// not of a process, and nothing in /sys, is written. Those rules are quiet, because a program can try that as often as it
// likes; that something of the rest is tried is worth a line in the log of the kernel, for the filter of system calls has failed then.
func appArmorText(id jail.Installation, features string) string {
	var b strings.Builder
	if features != "" {
		fmt.Fprintf(&b, "abi <abi/%s>,\n", features)
	}
	for _, p := range jail.AppArmorProfiles() {
		more := "  network netlink raw,\n  network netlink dgram,\n"
		if p == jail.AppArmorBrowser {
			more = "  capability sys_admin,\n  capability sys_chroot,\n  capability sys_ptrace,\n"
			if features == "4.0" {
				more += "  userns,\n"
			}
		}
		// A path with a name that was removed, or that the jail was given by descriptor, is looked at as well.
		fmt.Fprintf(&b, `
profile %[1]s flags=(attach_disconnected,mediate_deleted) {
  file,
  deny /proc/[^1-9]** wl,
  deny /proc/{kcore,keys,sysrq-trigger} rwklx,
  deny /sys/** wkl,
  deny /sys/{firmware,kernel/security}/** rwklx,
  network inet stream,
  network inet dgram,
  network inet6 stream,
  network inet6 dgram,
  network unix,
%[2]s  signal (receive) peer=unconfined,
  signal (send, receive) peer=%[1]s,
  ptrace (trace, tracedby, read, readby) peer=%[1]s,
}
`, p.Name(id), more)
	}
	return b.String()
}

// underAppArmor reads which profile of AppArmor the process is under.
func (p *process) underAppArmor(id jail.Installation, o *jail.Observed) error {
	text, err := p.read("attr/apparmor/current")
	if gone(err) {
		text, err = p.read("attr/current") // before Linux 5.8, or ended
	}
	if err != nil {
		return err
	}
	label := strings.TrimRight(string(text), "\x00\n")
	o.AppArmor = jail.AppArmorProfile(label)
	for _, known := range jail.AppArmorProfiles() {
		if label == known.Name(id)+" (enforce)" {
			o.AppArmor = known
		}
	}
	return nil
}
