package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// The checks below are mostly a trial: they put into words what Trials found.

func storage(ctx context.Context, e *exam) Result {
	facts, err := e.Trials.Storage(ctx)
	if err != nil {
		r := failed(err).fact("storage", string(e.Config.Storage))
		if r.Hint == "" {
			r = r.hint("the kernel needs overlayfs, or a btrfs for data_dir")
		}
		return r
	}
	return fine("cloned a template by %v, and the template stayed as it was", facts["kind"]).facts(facts)
}

// cgroups shows the layout to everybody, and limits something as root.
func cgroups(ctx context.Context, e *exam) Result {
	mounts, err := e.read("proc/self/mountinfo")
	if err != nil {
		return skipped("control groups are a facility of Linux")
	}
	layout, controllers, err := e.groupLayout(mounts)
	if err != nil {
		return failed(err)
	}
	facts := Facts{"layout": layout, "controllers": controllers}
	var missing []string
	for _, c := range []string{"memory", "cpu", "pids"} {
		if !slices.Contains(controllers, c) {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		r := fails("control groups (%s) lack %s", layout, strings.Join(missing, ", ")).facts(facts)
		for word := range strings.FieldsSeq(e.setting("proc/cmdline")) {
			if strings.HasPrefix(word, "cgroup_disable=") {
				return r.hint("take %s off the kernel's command line (on Debian: /etc/default/grub, then sudo update-grub), and start the host anew", word)
			}
		}
		return r.hint("mount them, for example by starting the host with systemd, or enable them on the kernel's command line: cgroup_enable=memory")
	}
	if e.UID != 0 || e.Limits == nil {
		return skipped("control groups (%s) have memory, cpu and pids; whether they limit anything is tried as root", layout).
			facts(facts).hint("sudo clawjail doctor")
	}
	tried, err := e.Limits(ctx)
	if err != nil {
		return failed(err).facts(facts)
	}
	return fine("control groups (%s) killed what ate memory and refused one process too many", layout).facts(facts).facts(tried)
}

// groupLayout reads which hierarchies are mounted and what they offer.
func (e *exam) groupLayout(mountinfo string) (layout string, controllers []string, err error) {
	known := []string{"memory", "cpu", "cpuacct", "cpuset", "pids", "io", "blkio", "devices", "freezer", "hugetlb"}
	var one, two bool
	for line := range strings.Lines(mountinfo) {
		before, after, found := strings.Cut(line, " - ")
		mount, fs := strings.Fields(before), strings.Fields(after)
		if !found || len(mount) < 5 || len(fs) < 3 {
			continue
		}
		var offered []string
		switch fs[0] {
		case "cgroup":
			one = true
			offered = strings.Split(fs[2], ",")
		case "cgroup2":
			two = true
			offered = strings.Fields(e.setting(mount[4] + "/cgroup.controllers"))
		}
		for _, c := range offered {
			if slices.Contains(known, c) && !slices.Contains(controllers, c) {
				controllers = append(controllers, c)
			}
		}
	}
	slices.Sort(controllers)
	switch {
	case one && two:
		return "hybrid", controllers, nil
	case two:
		return "v2", controllers, nil
	case one:
		return "v1", controllers, nil
	}
	return "", nil, problem.New(problem.Unsupported, "mount them, for example by starting the host with systemd", "no control groups are mounted")
}

// userNamespaces makes what Chromium's sandbox is made of, as the user of a jail. Settings only explain a failure:
// there are several, and distributions invent new ones.
func userNamespaces(ctx context.Context, e *exam) Result {
	facts := Facts{}
	for _, name := range []string{"kernel/unprivileged_userns_clone", "user/max_user_namespaces", "kernel/apparmor_restrict_unprivileged_userns"} {
		if n, err := strconv.Atoi(e.setting("proc/sys/" + name)); err == nil {
			facts[strings.ReplaceAll(name, "/", ".")] = n
		}
	}
	uid := uint32(e.UID)
	if e.UID == 0 {
		uid = e.Config.UIDBase
	}
	facts["uid"] = uid
	err := e.UserNamespace(ctx, uid)
	if err == nil {
		return fine("user %d can make user, process and network namespaces", uid).facts(facts)
	}
	if ctx.Err() != nil {
		return failed(ctx.Err()).facts(facts)
	}
	const restrict = "kernel.apparmor_restrict_unprivileged_userns"
	r := fails("user %d cannot make namespaces, which Chromium's sandbox is made of: %v", uid, err).facts(facts)
	switch {
	case facts["user.max_user_namespaces"] == 0:
		return r.hint("sudo sysctl -w user.max_user_namespaces=15000, and the same line in /etc/sysctl.d to keep it")
	case facts["kernel.unprivileged_userns_clone"] == 0:
		return r.hint("sudo sysctl -w kernel.unprivileged_userns_clone=1, and the same line in /etc/sysctl.d to keep it")
	case facts[restrict] != nil && facts[restrict] != 0:
		if e.Config.AppArmor != config.AppArmorOff && e.appArmorLacks() == "" {
			return fine("AppArmor keeps user namespaces from programs without a profile, and browsers' jails have one that allows them").facts(facts)
		}
		return r.hint("give jails a profile that allows them: sudo apt install apparmor, set apparmor: auto, and start the host daemon again")
	}
	return r.hint("this host, or the container or service around this process, forbids user namespaces")
}

// renderer is the whole way: a jail, a browser in it, and the browser's own sandbox around what it renders.
func renderer(ctx context.Context, e *exam) Result {
	facts, err := e.Renderer(ctx)
	switch {
	case problem.CodeOf(err) == problem.TemplateMissing:
		return skipped("there is no template with a browser yet").hint("sudo clawjail template build browser")
	case err != nil:
		r := failed(fmt.Errorf("start a browser in a jail: %w", err)).facts(facts)
		if r.Hint == "" {
			r = r.hint("look at the checks above, and at user_namespaces first")
		}
		return r
	}
	if lacks, old := facts["lacks"]; old {
		return warning("%v answered in a jail; an earlier version has built its template, without %v", facts["product"], lacks).facts(facts).
			hint("sudo clawjail template build browser --replace")
	}
	return fine("%v answered in a jail, and its renderer has a sandbox of its own", facts["product"]).facts(facts)
}
