package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// JailPlace is where a jail of Bastille's is attached when one is made for a template: the bridge of the installation, its
// address there, and the gateway's.
type JailPlace struct {
	Bridge  string
	Address netip.Prefix
	Gateway netip.Addr
}

// bastillePrefix is where Bastille keeps its jails, unless its configuration says otherwise.
const bastillePrefix = "/usr/local/bastille"

// bastilleName is a jail's name as Bastille takes it. It is always given whole: Bastille completes prefixes.
var bastilleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,40}$`)

// stopTime is how long a jail may take to be gone after it was stopped.
const stopTime = time.Minute

// buildBastille makes the tree from a thick jail of Bastille's. One that is there is adopted as it is: it must be stopped, and
// stays as it was. Else one is made, stopped and kept, so that it can be changed and built from again.
//
// Exit statuses of Bastille say little (error_continue ends most of its scripts with 0), so what it did is looked at.
func (b *build) buildBastille(ctx context.Context) error {
	name := cmp.Or(b.source.value, b.options.Name)
	release, err := b.release(ctx)
	if err != nil {
		return err
	}
	prefix, err := b.store.bastilleFolder()
	if err != nil {
		return err
	}
	dir := filepath.Join(prefix, "jails", name)
	tree := filepath.Join(dir, "root")
	_, err = os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := b.createBastille(ctx, name, release, prefix); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("look for the jail %s: %w", name, err)
	default:
		if len(b.options.With) > 0 {
			return problem.New(problem.BadTemplate, "install them there: pkg -r "+tree+" install "+strings.Join(b.options.With, " "),
				"the jail %s is there already, and is taken as it is", name)
		}
		running, err := b.jailNamed(ctx, name)
		if err != nil {
			return err
		}
		if running {
			return problem.New(problem.Conflict, "bastille stop "+name, "the jail %s is running, and would change while it is copied", name)
		}
	}
	if err := refuseThin(tree, name); err != nil {
		return err
	}
	if err := b.copyTree(ctx, tree); err != nil {
		return err
	}
	if err := b.checkUserland(release); err != nil {
		return err
	}
	b.template.Source = sourceBastille + ":" + name
	return nil
}

// createBastille makes a thick VNET jail that is not started at boot, stops it, and installs the recipe's packages.
func (b *build) createBastille(ctx context.Context, name, release, prefix string) error {
	packages, err := b.recipe.freebsdPackages(b.options.With)
	if err != nil {
		return err
	}
	if len(packages) == 0 {
		return problem.New(problem.BadTemplate, "make the jail first, as a thick one: bastille create -T …", "there is no jail %s", name)
	}
	if strings.ContainsAny(name, "-_") { // VNET jail names may not contain (-|_) characters: create.sh, validate_name
		return problem.New(problem.BadTemplate, "use letters and digits only", "Bastille makes no VNET jail of the name %s", name)
	}
	place := b.store.place
	if place.Bridge == "" || !place.Address.IsValid() || !place.Gateway.IsValid() {
		return problem.New(problem.BadTemplate, "service clawjail_hostd start, which makes the installation; or build it from --from base.txz",
			"there is no bridge yet that a jail %s could be attached to", name)
	}
	if _, err := b.hostRun(ctx, time.Minute, "ifconfig", place.Bridge); err != nil {
		return problem.Wrap(err, problem.BadTemplate, "service clawjail_hostd start, or build it from --from base.txz", "there is no bridge %s", place.Bridge)
	}
	if _, err := os.Stat(filepath.Join(prefix, "releases", release)); err != nil {
		return problem.Wrap(err, problem.BadTemplate, "bastille bootstrap "+release, "Bastille has no release %s", release)
	}
	b.out.stage(StageBootstrap, "", 0, nil)
	// Bastille starts what it has created. Its status is not looked at: the jail is.
	_, createErr := b.hostRun(ctx, installTime, "bastille", "create", "-T", "-B", "--no-boot", "-g", place.Gateway.String(), name, release,
		place.Address.String(), place.Bridge)
	tree := filepath.Join(prefix, "jails", name, "root")
	if _, err := os.Stat(filepath.Join(tree, "bin/sh")); err != nil {
		return errors.Join(&toolError{tool: "bastille create", err: cmp.Or(createErr, err), lines: b.out.lines()}, ctx.Err())
	}
	if err := b.stopBastille(ctx, name); err != nil {
		return err
	}
	if err := b.bootOff(ctx, name, prefix); err != nil {
		return err
	}
	return b.installPackages(ctx, tree, packages)
}

// stopBastille stops a jail and waits until the kernel has none of its name.
func (b *build) stopBastille(ctx context.Context, name string) error {
	_, stopErr := b.hostRun(ctx, stopTime, "bastille", "stop", name)
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		running, err := b.jailNamed(ctx, name)
		if err != nil {
			return err
		}
		if !running {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the jail %s does not stop: %w", name, context.Cause(ctx)), stopErr)
		case <-tick.C:
		}
	}
}

// bootOff makes sure that a jail is not started with the host. Bastille keeps that in settings.conf.
func (b *build) bootOff(ctx context.Context, name, prefix string) error {
	file := filepath.Join(prefix, "jails", name, "settings.conf")
	off := func() bool {
		data, err := os.ReadFile(file)
		return err == nil && setting(string(data), "boot") == "off"
	}
	if off() {
		return nil
	}
	_, err := b.hostRun(ctx, stopTime, "bastille", "config", name, "set", "boot", "off")
	if off() {
		return nil
	}
	return errors.Join(fmt.Errorf("the jail %s would be started with the host: %s does not have boot=off", name, file), err)
}

// refuseThin refuses a jail whose system is that of a release, mounted into it while it runs: its tree alone has none.
func refuseThin(tree, name string) error {
	if info, err := os.Lstat(filepath.Join(tree, "bin")); err == nil && info.IsDir() {
		return nil
	}
	return problem.New(problem.BadTemplate, "make it as a thick one: bastille create -T …, or mount its dataset",
		"the jail %s has no system of its own in %s", name, tree)
}

// bastilleFolder reads where Bastille keeps what it has.
func (s *Store) bastilleFolder() (string, error) {
	data, err := os.ReadFile(filepath.Join(s.hostRoot, "usr/local/etc/bastille/bastille.conf"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", problem.New(problem.ToolMissing, "pkg install bastille, or build it from --from base.txz", "Bastille is not installed")
	}
	if err != nil {
		return "", fmt.Errorf("read Bastille's configuration: %w", err)
	}
	prefix := cmp.Or(setting(string(data), "bastille_prefix"), bastillePrefix)
	if jails := setting(string(data), "bastille_jailsdir"); jails != "" && jails != prefix+"/jails" && jails != "${bastille_prefix}/jails" || !filepath.IsAbs(prefix) {
		return "", problem.New(problem.Unsupported, "build it from --from dir:"+jails+"/NAME/root", "Bastille keeps its jails in a folder of another layout")
	}
	return filepath.Join(s.hostRoot, prefix), nil
}

// setting is the value of a line name="value" of a shell's settings file, the last one.
func setting(text, name string) (value string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			value = strings.Trim(v, `"' `)
		}
	}
	return value
}
