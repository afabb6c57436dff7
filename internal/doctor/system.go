package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// capability is a right that root may lack, in a container for example.
type capability struct {
	bit  uint
	name string
}

// needed are the capabilities that jails are made with. The bits are those of linux/capability.h.
func needed() []capability {
	return []capability{
		{0, "CAP_CHOWN"}, {1, "CAP_DAC_OVERRIDE"}, {3, "CAP_FOWNER"}, {5, "CAP_KILL"}, {6, "CAP_SETGID"}, {7, "CAP_SETUID"},
		{8, "CAP_SETPCAP"}, {12, "CAP_NET_ADMIN"}, {18, "CAP_SYS_CHROOT"}, {19, "CAP_SYS_PTRACE"}, {21, "CAP_SYS_ADMIN"}, {27, "CAP_MKNOD"},
	}
}

const sysResource = 24

// privileges checks the user and capabilities of the doctor: the host daemon would be started with the same.
func privileges(_ context.Context, e *exam) Result {
	if e.UID != 0 {
		return skipped("running as user %d: what needs root is left out", e.UID).hint("sudo clawjail doctor").fact("uid", e.UID)
	}
	status, err := e.read("proc/self/status")
	if err != nil {
		return skipped("the capabilities cannot be read: %v", err)
	}
	effective, err := strconv.ParseUint(field(status, "CapEff:"), 16, 64)
	if err != nil {
		return skipped("the capabilities cannot be read: %v", err)
	}
	var missing []string
	for _, c := range needed() {
		if effective&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return fails("root lacks %s", strings.Join(missing, ", ")).fact("missing", missing).
			hint("run clawjail as root of the machine, not of a container")
	}
	if effective&(1<<sysResource) != 0 {
		return fine("root with every capability that is needed")
	}
	r := fine("root, without CAP_SYS_RESOURCE: limits of this process cannot be raised").fact("missing", []string{"CAP_SYS_RESOURCE"})
	if hard, ok := hardFileLimit(e.setting("proc/self/limits")); ok && hard < e.Config.Limits.Files {
		return fails("root may have %d files open and lacks CAP_SYS_RESOURCE to raise that; a jail may have %d", hard, e.Config.Limits.Files).
			facts(r.Facts).hint("raise the hard limit (ulimit -Hn %d) of whoever starts clawjail, or lower limits.files", e.Config.Limits.Files)
	}
	return r
}

// hardFileLimit reads the line of proc(5) "Max open files  <soft>  <hard>  files".
func hardFileLimit(limits string) (int, bool) {
	for line := range strings.Lines(limits) {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			if f := strings.Fields(rest); len(f) >= 2 {
				n, err := strconv.Atoi(f[1])
				return n, err == nil
			}
		}
	}
	return 0, false
}

// field is the first word after a key in text of "key value" lines.
func field(text, key string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				return f[0]
			}
		}
	}
	return ""
}

// The oldest kernel is the first that ends a cgroup of version 2 at once (cgroup.kill).
const oldestMajor, oldestMinor = 5, 14

func kernel(_ context.Context, e *exam) Result {
	release := e.setting("proc/sys/kernel/osrelease")
	if release == "" {
		return skipped("the version of the kernel is not known here")
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return warning("the kernel calls itself %q, which is no version", release)
	}
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return fails("Linux %s is too old", release).hint("install a kernel of version %d.%d or later", oldestMajor, oldestMinor).fact("release", release)
	}
	return fine("Linux %s", release).fact("release", release)
}

// seccomp looks for the actions that the filters of jails use.
func seccomp(_ context.Context, e *exam) Result {
	if e.setting("proc/sys/kernel/osrelease") == "" {
		return skipped("it is a facility of Linux")
	}
	status, err := e.read("proc/self/status")
	if err != nil {
		return skipped("the state of this process cannot be read: %v", err)
	}
	if field(status, "Seccomp:") == "" {
		return fails("the kernel has no seccomp").hint("use a kernel with CONFIG_SECCOMP_FILTER")
	}
	actions := strings.Fields(e.setting("proc/sys/kernel/seccomp/actions_avail"))
	for _, want := range []string{"errno", "allow", "kill_process"} {
		if !slices.Contains(actions, want) {
			return fails("the kernel's seccomp filters cannot %s", want).fact("actions", actions).
				hint("use a kernel with CONFIG_SECCOMP_FILTER")
		}
	}
	return fine("seccomp filters work").fact("actions", actions)
}

// memory compares what is available with what one browser may use.
func memory(_ context.Context, e *exam) Result {
	info, err := e.read("proc/meminfo")
	if err != nil {
		return skipped("how much memory there is, is not known here")
	}
	total, errTotal := strconv.ParseUint(field(info, "MemTotal:"), 10, 64)
	free, errFree := strconv.ParseUint(field(info, "MemAvailable:"), 10, 64)
	if errTotal != nil || errFree != nil {
		return skipped("how much memory there is, is not known here")
	}
	total, free = total<<10, free<<10
	one := uint64(max(e.Config.Limits.Memory, 0))
	facts := Facts{"total_bytes": total, "available_bytes": free}
	if free < one {
		return warning("%s of %s memory are available; one browser may use %s", human(free), human(total), human(one)).facts(facts).
			hint("end something, or lower limits.memory")
	}
	return fine("%s of %s memory are available", human(free), human(total)).facts(facts)
}

// full is how much is free at most where nothing can be made any more. A file system has a little left for its own needs.
const full = 32 << 20

// The room that should be free: a template and its packages need about 3 GiB while they are built; what is in the run directory
// is small, and is on a tmpfs mostly.
const (
	minData = 5 << 30
	minRun  = 256 << 20
)

func diskData(_ context.Context, e *exam) Result {
	return e.disk("data", e.Config.DataDir, minData, "free some space, or set data_dir to a larger disk")
}

func diskRun(_ context.Context, e *exam) Result {
	return e.disk("run", e.Config.RunDir, minRun, "free some space, or set run_dir to a larger file system")
}

func (e *exam) disk(what, dir string, minimum uint64, hint string) Result {
	if dir == "" {
		return fails("there is no %s directory: this user has no home", what).hint("set %s_dir in the configuration", what)
	}
	s, err := e.Space(dir)
	if err != nil {
		return e.failed(fmt.Errorf("look at %s: %w", dir, err))
	}
	facts := Facts{"path": dir, "free_bytes": s.Free, "file_system": s.Type}
	switch {
	case s.ReadOnly:
		return fails("%s is on a read-only file system", dir).facts(facts).hint("set %s_dir to a place that can be written", what)
	case s.Free < full:
		return fails("the disk of %s is full: %s are free, so no jail can be made and nothing recorded", dir, human(s.Free)).facts(facts).hint("%s", hint)
	case s.Free < minimum:
		return warning("%s are free for %s, less than %s", human(s.Free), dir, human(minimum)).facts(facts).hint("%s", hint)
	}
	return fine("%s are free for %s", human(s.Free), dir).facts(facts)
}

// human is a number of bytes as people read it.
func human(n uint64) string {
	switch {
	case n < 1<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	case n < 1<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
