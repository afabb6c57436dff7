//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/testenv"
)

func num(v uint64) string { return strconv.FormatUint(v, 10) }

// Open files, the working folder and what is in sight of a jail: the ways out that container runtimes have had.
func TestJailHasNothingOfTheHost(t *testing.T) {
	onEachRuntime(t, func(t *testing.T, h *testHost) {
		j := h.start(t, probeSpec(jail.KindBrowser), nil)

		// A descriptor of the host's that stays open is a way to its files (CVE-2024-21626).
		fds := j.Ask("fds")
		var open []string
		for _, fd := range fds.List {
			n, target, _ := strings.Cut(fd, " ")
			open = append(open, n)
			if !strings.HasPrefix(target, "pipe:") {
				t.Errorf("descriptor %s is not one of the jail's pipes", fd)
			}
		}
		if !slices.Equal(open, []string{"0", "1", "2"}) {
			t.Errorf("open descriptors are %q", fds.List)
		}
		if a := j.Ask("cwd"); a.Text != jail.HomeDir {
			t.Errorf("the working directory is %q", a.Text)
		}
		// No process but its own, of the runtime's or the host's.
		var pids []string
		for _, n := range j.Ask("names", "/proc").List {
			if _, err := strconv.Atoi(n); err == nil {
				pids = append(pids, n)
			}
		}
		// The first, which waits, and the program.
		if len(pids) != 2 || pids[0] != "1" {
			t.Errorf("processes in the jail: %q", pids)
		}
		// Abstract sockets belong to the network namespace; a runtime's was once a way in (CVE-2020-15257).
		if a := j.Ask("read", "/proc/net/unix"); !a.OK || strings.Count(a.Text, "\n") > 1 {
			t.Errorf("sockets of others are seen: %q", a.Text)
		}
		// Groups and the helper that the kernel starts for them (CVE-2022-0492) are not there.
		for _, path := range []string{"/sys", "/sys/fs/cgroup", "/sys/kernel", "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/fuse", "/dev/net", "/dev/mqueue", "/dev/pts"} {
			if a := j.Ask("list", path); a.OK && len(a.List) > 0 {
				t.Errorf("%s has %q", path, a.List)
			}
		}
		if a := j.Ask("read", "/proc/self/mountinfo"); strings.Contains(a.Text, "cgroup") || strings.Contains(a.Text, "sysfs") {
			t.Errorf("mounted in the jail:\n%s", a.Text)
		}
		var devices []string
		for _, d := range j.Ask("list", "/dev").List {
			if strings.HasPrefix(d, "D ") {
				devices = append(devices, strings.TrimPrefix(d, "D /dev/"))
			}
		}
		if want := []string{"full", "null", "random", "tty", "urandom", "zero"}; !slices.Equal(devices, want) {
			t.Errorf("devices are %q, want %q", devices, want)
		}
		for _, path := range maskedPaths() {
			if a := j.Ask("read", path); a.OK && a.Number > 0 {
				t.Errorf("%s can be read: %q", path, a.Text)
			}
		}
		for _, path := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/bin/sh", "/new", "/dev/new",
			"/run/new", "/etc/hosts", "/proc/sys/vm/panic_on_oom"} {
			if a := j.Ask("write", path, "x"); a.OK {
				t.Errorf("%s can be written", path)
			}
		}
		for _, dir := range []string{"/tmp", "/dev/shm", jail.HomeDir} {
			if a := j.Ask("write", dir+"/file", "x"); !a.OK {
				t.Errorf("%s cannot be written: %+v", dir, a)
			}
			if a := j.Ask("mknod", dir+"/null", "1", "3"); a.OK {
				t.Errorf("a device was made in %s", dir)
			}
		}
		for field, want := range map[string]string{"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2", "Groups": ""} {
			if a := j.Ask("status", field); a.Text != want {
				t.Errorf("%s is %q, want %q", field, a.Text, want)
			}
		}
		if a := j.Ask("read", "/proc/sys/kernel/hostname"); strings.TrimSpace(a.Text) != string(j.place.Name) {
			t.Errorf("the host's name is %q", a.Text)
		}
		if a := j.Ask("read", "/proc/self/oom_score_adj"); strings.TrimSpace(a.Text) != strconv.Itoa(oomScore) {
			t.Errorf("oom_score_adj is %q", a.Text)
		}
		if a := j.Ask("read", "/proc/self/limits"); !strings.Contains(strings.Join(strings.Fields(a.Text), " "), "Max core file size 1 1") {
			t.Errorf("core files are not prevented:\n%s", a.Text)
		}
	})
}

// Every line names a call, and what becomes of it with the browser's filter, the agents' and none at all. Where the
// last answers as the others do the line proves nothing, which the test does not accept.
func TestSystemCallFilters(t *testing.T) {
	const (
		user  = unix.CLONE_NEWUSER
		usNet = unix.CLONE_NEWUSER | unix.CLONE_NEWNET
	)
	calls := []struct {
		what           string
		ask            []string
		browser, agent string // "" is allowed
	}{
		{"socket AF_UNIX", []string{"socket", num(unix.AF_UNIX), num(unix.SOCK_STREAM), "0"}, "", ""},
		{"socket AF_INET TCP", []string{"socket", num(unix.AF_INET), num(unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK), "0"}, "", ""},
		{"socket AF_INET6 UDP", []string{"socket", num(unix.AF_INET6), num(unix.SOCK_DGRAM), "0"}, "", ""},
		{"socket netlink route", []string{"socket", num(unix.AF_NETLINK), num(unix.SOCK_RAW), num(unix.NETLINK_ROUTE)}, "EPERM", ""},
		{"a link, as root of a namespace", []string{"within", num(usNet), "link"}, "EPERM", "EPERM"},
		{"a table of IPv4, as root of a namespace", []string{"within", num(usNet), "option", "2", num(unix.SOL_IP), "64"}, "EPERM", "EPERM"},
		{"a table of IPv6, as root of a namespace", []string{"within", num(usNet), "option", "10", num(unix.SOL_IPV6), "64"}, "EPERM", "EPERM"},
		{"a table of ARP, as root of a namespace", []string{"within", num(usNet), "option", "2", num(unix.SOL_IP), "96"}, "EPERM", "EPERM"},
		{"an option of a socket", []string{"option", "2", num(unix.SOL_SOCKET), num(unix.SO_KEEPALIVE)}, "", ""},
		{"an option of TCP", []string{"option", "2", num(unix.SOL_TCP), num(unix.TCP_NODELAY)}, "", ""},
		{"an option of IPv4", []string{"option", "2", num(unix.SOL_IP), num(unix.IP_TTL)}, "", ""},
		{"an option of IPv6", []string{"option", "10", num(unix.SOL_IPV6), num(unix.IPV6_TCLASS)}, "", ""},
		// It is said to be done, and nobody has looked for the value, which is nowhere.
		{"another limit on core files", []string{"call", num(unix.SYS_PRLIMIT64), "0", num(unix.RLIMIT_CORE), "1", "0"}, "", ""},
		{"the same by its older call", []string{"call", num(unix.SYS_SETRLIMIT), num(unix.RLIMIT_CORE), "1"}, "", ""},
		{"the same by a number that the kernel cuts", []string{"call", num(unix.SYS_PRLIMIT64), "0", "0x100000004", "1", "0"}, "", ""},
		{"a limit that there is not", []string{"call", num(unix.SYS_PRLIMIT64), "0", "99", "1", "0"}, "EPERM", "EPERM"},
		{"fewer descriptors", []string{"limit", num(unix.RLIMIT_NOFILE)}, "", ""},
		{"socket netlink audit", []string{"socket", num(unix.AF_NETLINK), num(unix.SOCK_RAW), num(unix.NETLINK_GENERIC)}, "EPERM", "EPERM"},
		{"socket AF_VSOCK", []string{"socket", num(unix.AF_VSOCK), num(unix.SOCK_STREAM), "0"}, "EPERM", "EPERM"},
		{"socket AF_ALG", []string{"socket", num(unix.AF_ALG), num(unix.SOCK_SEQPACKET), "0"}, "EPERM", "EPERM"},
		{"socket AF_XDP as root of a namespace", []string{"within", num(usNet), "socket", num(unix.AF_XDP), num(unix.SOCK_RAW), "0"}, "EPERM", "EPERM"},
		{"socket AF_BLUETOOTH", []string{"socket", num(unix.AF_BLUETOOTH), num(unix.SOCK_RAW), "0"}, "EPERM", "EPERM"},
		{"socket AF_PACKET as root of a namespace", []string{"within", num(usNet), "socket", num(unix.AF_PACKET), num(unix.SOCK_RAW), "0"}, "EPERM", "EPERM"},
		{"socket raw as root of a namespace", []string{"within", num(usNet), "socket", num(unix.AF_INET), num(unix.SOCK_RAW), num(unix.IPPROTO_ICMP)}, "EPERM", "EPERM"},
		{"clone user", []string{"clone", num(user)}, "", "EPERM"},
		{"clone user, pid, net", []string{"clone", num(usNet | unix.CLONE_NEWPID)}, "", "EPERM"},
		{"clone user, mount", []string{"clone", num(user | unix.CLONE_NEWNS)}, "EPERM", "EPERM"},
		{"clone user, cgroup", []string{"clone", num(user | unix.CLONE_NEWCGROUP)}, "EPERM", "EPERM"},
		{"unshare user", []string{"unshare", num(user)}, "", "EPERM"},
		{"unshare user, mount", []string{"unshare", num(user | unix.CLONE_NEWNS)}, "EPERM", "EPERM"},
		{"chroot as root of a namespace", []string{"within", num(user), "chroot", "/"}, "", "EPERM"},
		{"clone3", []string{"call", num(unix.SYS_CLONE3), "0", "0"}, "ENOSYS", "ENOSYS"},
		{"io_uring", []string{"call", num(unix.SYS_IO_URING_SETUP), "1", "0"}, "EPERM", "EPERM"},
		{"keyctl", []string{"call", num(unix.SYS_KEYCTL), "0", "0xfffffffd", "0"}, "EPERM", "EPERM"},
		{"userfaultfd", []string{"call", num(unix.SYS_USERFAULTFD), "0xff"}, "EPERM", "EPERM"},
		{"bpf", []string{"call", num(unix.SYS_BPF), "999", "0", "0"}, "EPERM", "EPERM"},
		{"perf_event_open", []string{"call", num(unix.SYS_PERF_EVENT_OPEN), "0", "0", "0", "0", "0"}, "EPERM", "EPERM"},
		{"setns", []string{"call", num(unix.SYS_SETNS), "0xffff", "0"}, "EPERM", "EPERM"},
		{"the mode of a file", []string{"call", num(unix.SYS_FCHMOD), "0xffff", num(0o755)}, "EBADF", "EBADF"},
		{"a setuid file", []string{"call", num(unix.SYS_FCHMOD), "0xffff", num(unix.S_ISUID | 0o755)}, "EBADF", "EPERM"},
		{"a setgid file by its path", []string{"call", num(unix.SYS_FCHMODAT), "0xffff", "0", num(unix.S_ISGID | 0o755)}, "EFAULT", "EPERM"},
		{"a new setuid file", []string{"call", num(unix.SYS_OPENAT), "0xffff", "0", num(unix.O_CREAT), num(unix.S_ISUID | 0o700)}, "EFAULT", "EPERM"},
		{"a new setuid file without a name", []string{"call", num(unix.SYS_OPENAT), "0xffff", "0", num(unix.O_TMPFILE | unix.O_RDWR), num(unix.S_ISUID | 0o700)}, "EFAULT", "EPERM"},
		{"a file whose mode nobody reads", []string{"call", num(unix.SYS_OPENAT), "0xffff", "0", "0", num(unix.S_ISUID | 0o700)}, "EFAULT", "EFAULT"},
		{"a mode behind a pointer", []string{"call", num(unix.SYS_OPENAT2), "0xffff", "0", "0", "0"}, "EINVAL", "ENOSYS"},
		{"mount", []string{"call", num(unix.SYS_FSCONFIG), "0xffff", "99", "0", "0", "0"}, "EPERM", "EPERM"},
	}
	h := newTestHost(t)
	open := h.start(t, probeSpec(jail.KindBrowser), func(s *specs.Spec) { s.Linux.Seccomp = nil })
	without := map[string]string{}
	for _, c := range calls {
		without[c.what] = open.Ask(c.ask[0], c.ask[1:]...).Errno
	}
	for _, runtime := range []string{RuntimeCrun, RuntimeRunc} {
		testenv.Tool(t, runtime)
		h.runtime.o.Runtime, h.runtime.chosen = runtime, nil
		for kind, answer := range map[jail.Kind]func(i int) string{
			jail.KindBrowser: func(i int) string { return calls[i].browser },
			jail.KindAgent:   func(i int) string { return calls[i].agent },
		} {
			j := h.start(t, probeSpec(kind), nil)
			for i, c := range calls {
				a, want := j.Ask(c.ask[0], c.ask[1:]...), answer(i)
				if a.Errno != want || a.OK != (want == "") {
					t.Errorf("%s, %s: %s: %+v, want %q", runtime, kind, c.what, a, want)
				}
				passed := slices.Contains([]string{"EBADF", "EFAULT", "EINVAL"}, want) // what the kernel says of bad arguments
				if want != "" && !passed && without[c.what] == want {
					t.Errorf("%s: the answer is %s without a filter too: this shows nothing", c.what, want)
				}
			}
		}
	}
}

func TestLimitsAreHitAndNamed(t *testing.T) {
	h := newTestHost(t)
	ctx := context.Background()
	usage := func(t *testing.T, j *testJail) jail.Usage {
		t.Helper()
		u, err := h.limiter.Usage(ctx, j.place.Name, j.proc)
		must(t, err)
		return u
	}
	neighbour := h.start(t, probeSpec(jail.KindBrowser), nil)
	check := func(t *testing.T, j *testJail, want jail.LimitName) {
		t.Helper()
		if u := usage(t, j); !slices.Equal(u.Hit, []jail.LimitName{want}) {
			t.Errorf("hit %v, want %s: %+v", u.Hit, want, u)
		}
		if a := neighbour.Ask("echo"); !a.OK {
			t.Errorf("the neighbour noticed: %+v", a)
		}
		if u := usage(t, neighbour); len(u.Hit) > 0 {
			t.Errorf("the neighbour has hit %v", u.Hit)
		}
	}
	t.Run("memory", func(t *testing.T) {
		j := h.start(t, probeSpec(jail.KindBrowser), nil)
		if a := j.Ask("memory", num(32<<20)); !a.OK {
			t.Errorf("less than the limit: %+v", a)
		}
		if u := usage(t, j); len(u.Hit) > 0 || u.MemoryPeak < 32<<20 || u.MemoryPeak > j.place.Profile.Limits.Memory {
			t.Errorf("before: %+v", u)
		}
		if a, err := j.Try("memory", num(uint64(2*j.place.Profile.Limits.Memory))); err == nil {
			t.Errorf("twice the limit: %+v", a)
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if code, signal, err := h.runtime.Wait(ctx, j.place.Name, j.proc); signal != "killed" || err != nil {
			t.Errorf("ended with %d %q %v", code, signal, err)
		}
		check(t, j, jail.LimitMemory)
	})
	t.Run("tmpfs counts as memory", func(t *testing.T) {
		spec := probeSpec(jail.KindBrowser)
		spec.Limits.Memory, spec.Limits.Disk = 64<<20, 1<<30
		j := h.start(t, spec, nil)
		if a, err := j.Try("fill", "/tmp/f", num(256<<20)); err == nil {
			t.Errorf("more than the memory was written: %+v", a)
		}
		check(t, j, jail.LimitMemory)
	})
	t.Run("tasks", func(t *testing.T) {
		j := h.start(t, probeSpec(jail.KindAgent), nil)
		a := j.Ask("fork", "500")
		if a.OK || a.Errno != "EAGAIN" || a.Number >= int64(j.place.Profile.Limits.Tasks) || a.Number < 8 {
			t.Errorf("500 children: %+v", a)
		}
		check(t, j, jail.LimitTasks)
	})
	t.Run("disk", func(t *testing.T) {
		j := h.start(t, probeSpec(jail.KindBrowser), nil)
		size := j.place.Profile.Limits.Disk
		if a := j.Ask("fill", "/tmp/half", num(uint64(size/2))); !a.OK {
			t.Errorf("half of it: %+v", a)
		}
		if u := usage(t, j); len(u.Hit) > 0 || u.DiskBytes < size/2 || u.DiskBytes > size {
			t.Errorf("half of it: %+v", u)
		}
		if a := j.Ask("fill", "/tmp/f", num(uint64(size))); a.Errno != "ENOSPC" || a.Number > size/2 {
			t.Errorf("more than all of it: %+v", a)
		}
		check(t, j, jail.LimitDisk)
	})
	t.Run("files", func(t *testing.T) {
		j := h.start(t, probeSpec(jail.KindBrowser), nil)
		if a := j.Ask("files", "100000"); a.Errno != "EMFILE" || a.Number >= int64(j.place.Profile.Limits.Files) {
			t.Errorf("100000 files: %+v", a)
		}
		if u := usage(t, j); u.OpenFiles != j.place.Profile.Limits.Files {
			t.Errorf("%d open files, want %d", u.OpenFiles, j.place.Profile.Limits.Files)
		}
		check(t, j, jail.LimitFiles)
	})
	t.Run("a fork bomb can be ended", func(t *testing.T) {
		spec := probeSpec(jail.KindAgent)
		spec.Program.Argv = []string{"/bin/sh", "-c", "f() { f | f & }; f; read x"}
		j := h.start(t, spec, nil)
		testenv.Eventually(t, 10*time.Second, func() bool {
			return slices.Contains(usage(t, j).Hit, jail.LimitTasks)
		}, "the bomb did not reach its limit")
		must(t, h.runtime.Kill(ctx, j.place.Name, j.proc))
	})
}

// A jail that is not what was declared is named. Each line takes one control away.
func TestObserveSeesEveryControlThatIsMissing(t *testing.T) {
	h := newTestHost(t, func(o *Options) { o.Runtime = RuntimeRunc })
	removeNamespace := func(kind specs.LinuxNamespaceType) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
			if kind == specs.UTSNamespace {
				s.Hostname = ""
			}
		}
	}
	mountOf := func(s *specs.Spec, path string) *specs.Mount {
		i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == path })
		return &s.Mounts[i]
	}
	without := func(list []string, what string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == what })
	}
	for _, tt := range []struct {
		control, says string
		amend         func(*specs.Spec)
	}{
		{"the user", "uid is 0", func(s *specs.Spec) {
			s.Process.User.UID, s.Process.Args = 0, inside.Argv() // the staged files are the jail's user's
		}},
		{"the group", "gid is 0", func(s *specs.Spec) { s.Process.User.GID = 0 }},
		{"no other groups", "supplementary group 4", func(s *specs.Spec) { s.Process.User.AdditionalGids = []uint32{4} }},
		{"no capabilities", "CAP_NET_RAW", func(s *specs.Spec) { s.Process.Capabilities.Bounding = []string{"CAP_NET_RAW"} }},
		{"no new privileges", "no_new_privs", func(s *specs.Spec) { s.Process.NoNewPrivileges = false }},
		{"the filter", "seccomp", func(s *specs.Spec) { s.Linux.Seccomp = nil }},
		{"the read-only root", "root file system is writable", func(s *specs.Spec) { s.Root.Readonly = false }},
		{"the limit on files", "limit files", func(s *specs.Spec) { s.Process.Rlimits[0].Hard += 100 }},
		{"the limit on core files", "a program that crashes", func(s *specs.Spec) { s.Process.Rlimits[1].Hard, s.Process.Rlimits[1].Soft = 0, 0 }},
		{"the network namespace", "net", removeNamespace(specs.NetworkNamespace)},
		{"the ipc namespace", "ipc", removeNamespace(specs.IPCNamespace)},
		{"the uts namespace", "uts", removeNamespace(specs.UTSNamespace)},
		{"the cgroup namespace", "cgroup", removeNamespace(specs.CgroupNamespace)},
		{"the size of /tmp", "tmpfs /tmp has", func(s *specs.Spec) {
			m := mountOf(s, "/tmp")
			m.Options = slices.DeleteFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, "size=") })
		}},
		{"noexec of the home", "tmpfs " + jail.HomeDir + " allows programs", func(s *specs.Spec) {
			m := mountOf(s, jail.HomeDir)
			m.Options = without(m.Options, "noexec")
		}},
		{"the tmpfs at /dev/shm", "tmpfs /dev/shm is missing", func(s *specs.Spec) {
			s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/dev/shm" })
		}},
		{"the read-only stage", jail.StageDir + " is writable", func(s *specs.Spec) {
			m := mountOf(s, jail.StageDir)
			m.Options = without(m.Options, "ro")
		}},
		{"the read-only /dev", "/dev is writable", func(s *specs.Spec) {
			m := mountOf(s, "/dev")
			m.Options = without(m.Options, "ro")
		}},
		{"no mounts of the host's", "/mnt is writable", func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: "/var/tmp", Options: []string{"bind", "rw"}})
		}},
	} {
		t.Run(tt.control, func(t *testing.T) {
			p := h.place(t, probeSpec(jail.KindBrowser))
			j, err := h.hold(t, p, tt.amend)
			if err != nil {
				t.Fatal(err)
			}
			h.says(t, j, tt.says)
			h.end(t, p.Name, j.proc)
		})
	}
	for _, tt := range []struct {
		control, says string
		amend         func(*specs.Spec)
	}{
		{"a user of its own", "uid is 1000, declared 21", func(s *specs.Spec) {
			removeNamespace(specs.UserNamespace)(s)
			s.Linux.UIDMappings, s.Linux.GIDMappings = nil, nil
			s.Process.Args = inside.Argv() // the staged files are the jail's user's
		}},
		{"a user namespace of its own user's", "the owner of its user namespace is 0", func(s *specs.Spec) {
			removeNamespace(specs.UserNamespace)(s)
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace}) // the runtime's, which is root
		}},
		{"the number in the jail", "uid in the jail is 21", func(s *specs.Spec) {
			own := slices.IndexFunc(s.Linux.UIDMappings, func(m specs.LinuxIDMapping) bool { return m.HostID > jailIDs })
			number := s.Linux.UIDMappings[own].HostID
			removeNamespace(specs.UserNamespace)(s)
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
			s.Linux.UIDMappings = []specs.LinuxIDMapping{{Size: jailIDs}, {ContainerID: number, HostID: number, Size: 1}}
			s.Process.User.UID, s.Process.Args = number, inside.Argv()
		}},
	} {
		t.Run(tt.control, func(t *testing.T) {
			p := h.place(t, probeSpec(jail.KindAgent))
			j, err := h.hold(t, p, tt.amend)
			if err != nil {
				t.Fatal(err)
			}
			h.says(t, j, tt.says)
			h.end(t, p.Name, j.proc)
		})
	}
	for file, says := range map[string]string{"memory": "limit memory", "cpu": "limit cpu", "tasks": "limit tasks"} {
		t.Run("the limit of "+file, func(t *testing.T) {
			p := h.place(t, probeSpec(jail.KindBrowser))
			h.unlimit(t, p.Name, file)
			j, err := h.launch(t, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			h.says(t, j, says)
			h.end(t, p.Name, j.proc)
		})
	}
	t.Run("the filter of devices", func(t *testing.T) {
		p := h.place(t, probeSpec(jail.KindBrowser))
		j, err := h.launch(t, p, nil)
		must(t, err)
		if h.limiter.Version() == 1 {
			must(t, writeGroupText(h.limiter.group(h.limiter.devices, string(p.Name)), "devices.allow", "a"))
		} else {
			h.limiter.attached = func(string) (bool, error) { return false, nil }
			defer func() { h.limiter.attached = filterAttached }()
		}
		h.says(t, j, "devices of the host are not filtered")
		h.end(t, p.Name, j.proc)
	})
	t.Run("the control group", func(t *testing.T) {
		p := h.place(t, probeSpec(jail.KindBrowser))
		j, err := h.launch(t, p, func(s *specs.Spec) { s.Linux.CgroupsPath = filepath.Join(h.limiter.base(), "elsewhere") })
		if err != nil {
			t.Fatal(err)
		}
		h.says(t, j, "limit memory is 0")
		must(t, unix.Kill(j.proc.PID, unix.SIGKILL))
		h.end(t, p.Name, j.proc)
		must(t, h.limiter.remove(context.Background(), "elsewhere"))
	})
	t.Run("the root without devices and setuid programs", func(t *testing.T) {
		p := h.place(t, probeSpec(jail.KindBrowser))
		j, err := h.hold(t, p, nil)
		must(t, err)
		pr, err := openProcess(j.proc)
		must(t, err)
		defer pr.Close()
		must(t, pr.changeRoot(unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_NODEV}))
		h.says(t, j, "/ (with devices or setuid programs)")
		must(t, pr.changeRoot(unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV, Attr_clr: unix.MOUNT_ATTR_NOSUID}))
		h.says(t, j, "/ (with devices or setuid programs)")
		h.end(t, p.Name, j.proc)
	})
	t.Run("pivot_root", func(t *testing.T) {
		p := h.place(t, probeSpec(jail.KindBrowser))
		cmd := exec.Command("/bin/sh", "-c", "read x")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Chroot: p.Root}
		stdin, err := cmd.StdinPipe()
		must(t, err)
		must(t, cmd.Start())
		j := &testJail{host: h, place: p, proc: jail.Process{PID: cmd.Process.Pid}}
		h.says(t, j, "pivot_root")
		must(t, stdin.Close())
		if err := cmd.Wait(); err == nil {
			t.Error("read did not see the end")
		}
	})
	t.Run("the mode of /tmp", func(t *testing.T) {
		j := h.start(t, probeSpec(jail.KindBrowser), nil)
		seen, err := h.runtime.Observe(context.Background(), j.place, j.proc)
		must(t, err)
		for i, want := range j.place.Profile.Tmpfs {
			if i >= len(seen.Tmpfs) || !slices.ContainsFunc(seen.Tmpfs, func(got jail.Tmpfs) bool { return got.Path == want.Path && got.Mode == want.Mode }) {
				t.Errorf("%s has not mode %o: %+v", want.Path, want.Mode, seen.Tmpfs)
			}
		}
	})
}

// TestNodesInARootAreDead plants a device in the root of each kind of jail, as a root that somebody else made may have one.
func TestNodesInARootAreDead(t *testing.T) {
	for _, runtime := range []string{RuntimeCrun, RuntimeRunc} {
		h := newTestHost(t, func(o *Options) { o.Runtime = runtime })
		for name, spec := range map[string]jail.Spec{"browser": probeSpec(jail.KindBrowser), "agent": agentSpec("one")} {
			t.Run(runtime+" "+name, func(t *testing.T) {
				p := h.place(t, spec)
				node := filepath.Join(p.Root, "planted")
				must(t, unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))) // zero
				must(t, os.Chmod(node, 0o666))
				j, err := h.hold(t, p, nil)
				must(t, err)
				pr, err := openProcess(j.proc)
				must(t, err)
				defer pr.Close()
				open := func() error {
					f, err := os.Open(fmt.Sprintf("/proc/%d/root/planted", j.proc.PID))
					if err == nil {
						err = f.Close()
					}
					return err
				}
				if err := open(); !errors.Is(err, unix.EACCES) {
					t.Errorf("a device in the root of a jail opens: %v", err)
				}
				if name != "agent" { // whose user namespace keeps the flags: nobody takes them away
					must(t, pr.changeRoot(unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_NODEV}))
					if err := open(); err != nil {
						t.Errorf("it does not open without the control either, which shows nothing: %v", err)
					}
				}
				h.end(t, p.Name, j.proc)
			})
		}
	}
}

// says checks that the comparison of a jail names a thing, and no more than goes along with it.
func (h *testHost) says(t *testing.T, j *testJail, want string) {
	t.Helper()
	seen, err := h.runtime.Observe(context.Background(), j.place, j.proc)
	must(t, err)
	diff := j.place.Profile.Compare(seen)
	if !slices.ContainsFunc(diff, func(s string) bool { return strings.Contains(s, want) }) {
		t.Errorf("the comparison says %q, want %q among it", diff, want)
	}
}

// unlimit takes one limit off a jail's groups.
func (h *testHost) unlimit(t *testing.T, name jail.Name, what string) {
	t.Helper()
	l := h.limiter
	if l.Version() == 2 {
		file := map[string]string{"memory": "memory.max", "cpu": "cpu.max", "tasks": "pids.max"}[what]
		must(t, writeGroupText(l.group(l.memory, string(name)), file, "max"))
		return
	}
	switch what {
	case "memory":
		dir := l.group(l.memory, string(name))
		if _, err := os.Stat(filepath.Join(dir, "memory.memsw.limit_in_bytes")); err == nil {
			must(t, writeGroupText(dir, "memory.memsw.limit_in_bytes", "-1"))
		}
		must(t, writeGroupText(dir, "memory.limit_in_bytes", "-1"))
	case "cpu":
		must(t, writeGroupText(l.group(l.cpu, string(name)), "cpu.cfs_quota_us", "-1"))
	case "tasks":
		must(t, writeGroupText(l.group(l.pids, string(name)), "pids.max", "max"))
	}
}
