package doctor

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/docker"
	"github.com/clawjail/clawjail/internal/problem"
)

// fake is a host that can do everything. Tests take something away.
type fake struct {
	t *testing.T
	Options
	Host
	commands  map[string]string // what programs print, by their line
	resources []inventory.HostResource
	free      uint64
	// added are the folders that root has let agents have, and addedProblem is what is wrong with them.
	added        []hostd.AddedRoot
	addedProblem error
}

var errPlain = errors.New("the kernel says no")

func newFake(t *testing.T) *fake {
	t.Helper()
	root := t.TempDir()
	f := &fake{t: t, free: 100 << 30, commands: map[string]string{
		"timedatectl show --property=NTPSynchronized": "NTPSynchronized=yes\n",
		"/usr/bin/crun --version":                     "crun version 1.8.1\ncommit: f8a0\n",
	}}
	f.Config = config.Default()
	f.Config.DataDir, f.Config.RunDir = filepath.Join(root, "var/lib/clawjail"), filepath.Join(root, "run/clawjail")
	f.Config.Agents.WorkspaceRoots = nil
	f.ConfigPath = "/etc/clawjail/clawjail.yml"
	f.ControlURL = "http://127.0.0.1:18780"
	facts := func(facts Facts) func(context.Context) (Facts, error) {
		return func(context.Context) (Facts, error) { return facts, nil }
	}
	f.Host = Host{
		Root: root,
		Command: func(_ context.Context, name string, args ...string) (string, error) {
			line := strings.Join(append([]string{name}, args...), " ")
			if out, ok := f.commands[line]; ok {
				return out, nil
			}
			return "", errors.New(line + ": not found")
		},
		Space:      func(string) (Space, error) { return Space{Free: f.free, Type: "ext4"}, nil },
		Ownership:  func(string) error { return nil },
		AddedRoots: func(config.Config) ([]hostd.AddedRoot, error) { return f.added, nil },
		CheckRoot:  func(config.Config, hostd.AddedRoot) error { return f.addedProblem },
		Daemon: func(context.Context) (hostd.Info, error) {
			return hostd.Info{Version: "1.0", Jails: 3, Installation: "k3x9", Subnet: netip.MustParsePrefix("10.213.0.0/20")}, nil
		},
		Health:    func(context.Context) error { return nil },
		Resources: func(context.Context, inventory.Scope) ([]inventory.HostResource, error) { return f.resources, nil },
		Trials: Trials{
			Storage: facts(Facts{"kind": "overlay"}),
			Limits:  facts(nil),
			State:   facts(Facts{"bytes": 8 << 20}),
			Engine: func(context.Context) (docker.Engine, error) {
				return docker.Engine{Version: "20.10.24", Seccomp: true}, nil
			},
			Runtime: func(context.Context) (string, error) { return "/usr/bin/crun", nil },
			Subnet: func(_ context.Context, _ jail.Installation, c netip.Prefix) (netip.Prefix, error) {
				if c.IsValid() {
					return c, nil
				}
				return netip.MustParsePrefix("10.213.0.0/20"), nil
			},
			Port:          func(context.Context) error { return nil },
			Network:       facts(nil),
			Element:       facts(nil),
			Reach:         func(context.Context) (bool, error) { return true, nil },
			Filters:       func(context.Context) ([]Filter, error) { return nil, nil },
			Renderer:      facts(Facts{"product": "HeadlessChrome/156"}),
			UserNamespace: func(context.Context, uint32) error { return nil },
			Map:           func(string) error { return nil },
		},
	}
	for path, text := range map[string]string{
		"proc/self/status":                      "Name:\tclawjail\nCapEff:\t000001ffffffffff\nSeccomp:\t0\nSeccomp_filters:\t0\n",
		"proc/self/limits":                      "Limit                     Soft Limit           Hard Limit           Units     \nMax open files            1024                 4096                 files     \n",
		"proc/self/mountinfo":                   "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
		"sys/fs/cgroup/cgroup.controllers":      "cpuset cpu io memory hugetlb pids\n",
		"proc/sys/kernel/osrelease":             "6.12.9-amd64\n",
		"proc/sys/kernel/seccomp/actions_avail": "kill_process kill_thread trap errno user_notif trace log allow\n",
		"proc/sys/user/max_user_namespaces":     "95000\n",
		"proc/meminfo":                          "MemTotal:       16000000 kB\nMemFree:  100 kB\nMemAvailable:    8000000 kB\n",
		"etc/passwd":                            "root:x:0:0:root:/root:/bin/bash\nclawjail:x:999:999::/var/lib/clawjail:/usr/sbin/nologin\n",
		"etc/group":                             "root:x:0:\ndocker:x:100:anna\n",
		"etc/subuid":                            "anna:100000:65536\n",
		"usr/bin/crun":                          "",
		"etc/resolv.conf":                       "# made by hand\nnameserver 192.0.2.53\noptions edns0\n",
		"usr/sbin/debootstrap":                  "",
		"usr/bin/apt-get":                       "",
		"usr/bin/apt-config":                    "",
		"usr/sbin/e2fsck":                       "",
		"usr/sbin/resize2fs":                    "",
		"usr/share/doc/other/changelog.txt":     "",
	} {
		f.write(path, text)
	}
	return f
}

func (f *fake) write(path, text string) {
	f.t.Helper()
	path = filepath.Join(f.Root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		f.t.Fatal(err)
	}
}

// add appends to a file.
func (f *fake) add(path, text string) {
	f.t.Helper()
	old, err := os.ReadFile(filepath.Join(f.Root, path))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Fatal(err)
	}
	f.write(path, string(old)+text)
}

// remove takes a file away.
func (f *fake) remove(path string) {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.Root, path)); err != nil {
		f.t.Fatal(err)
	}
}

// link makes a link, and the folder that it leads to.
func (f *fake) link(at, to string) {
	f.t.Helper()
	at, to = filepath.Join(f.Root, at), filepath.Join(f.Root, to)
	if err := errors.Join(os.MkdirAll(to, 0o755), os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(to, at)); err != nil {
		f.t.Fatal(err)
	}
}

// engine puts a container engine there, which says that of itself.
func (f *fake) engine(e docker.Engine, err error) {
	f.write("var/run/docker.sock", "")
	f.Engine = func(context.Context) (docker.Engine, error) { return e, err }
}

// appArmor makes it a host with AppArmor, whose host daemon has loaded the profiles, and with a jail.
func (f *fake) appArmor() {
	f.install()
	f.write("sys/module/apparmor/parameters/enabled", "Y\n")
	f.write("sys/kernel/security/apparmor/profiles", "docker-default (enforce)\nclawjail-k3x9-browser (enforce)\nclawjail-k3x9-agent (enforce)\n")
	f.write("usr/sbin/apparmor_parser", "")
	f.write("proc/17/attr/current", "clawjail-k3x9-agent (enforce)\n")
	f.write("proc/18/attr/current", "unconfined\n")
	f.resources = []inventory.HostResource{{Kind: "process", ID: fmt.Sprintf("17 sh uid %d", f.Config.UIDBase+3)}, {Kind: "process", ID: "18 crun uid 0"}}
	f.Daemon = func(context.Context) (hostd.Info, error) {
		return hostd.Info{Installation: "k3x9", AppArmor: true}, nil
	}
}

func (f *fake) install() {
	f.write("var/lib/clawjail/installation.json", `{"id":"k3x9","subnet":"10.213.0.0/20","created":"2026-01-02T03:04:05Z"}`)
}

func (f *fake) noDaemon() {
	f.Daemon = func(context.Context) (hostd.Info, error) {
		return hostd.Info{}, problem.New(problem.HostdUnreachable, "start it", "the host daemon does not answer")
	}
}

func (f *fake) runc(version, pkg, changelog string) {
	f.Runtime = func(context.Context) (string, error) { return "/usr/sbin/runc", nil }
	f.commands["/usr/sbin/runc --version"] = "runc version " + version + "\ncommit: x\nspec: 1.0.2-dev\n"
	if pkg == "" {
		return
	}
	f.commands["dpkg-query -S /usr/sbin/runc"] = "runc: /usr/sbin/runc\n"
	f.commands["dpkg-query -W -f ${Version} runc"] = pkg
	path := filepath.Join(f.Root, "usr/share/doc/runc/changelog.Debian.gz")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	file, err := os.Create(path)
	if err != nil {
		f.t.Fatal(err)
	}
	z := gzip.NewWriter(file)
	_, err = z.Write([]byte(changelog))
	if err := errors.Join(err, z.Close(), file.Close()); err != nil {
		f.t.Fatal(err)
	}
}

// packaged makes clawjail a package of Debian's, in a state of dpkg.
func (f *fake) packaged(state string) {
	f.commands["dpkg-query -W -f ${db:Status-Status} ${Version} clawjail"] = state + " 1.1.0\n"
}

// check runs one check by its name.
func (f *fake) check(name string) Result {
	f.t.Helper()
	e := &exam{f.Options, f.Host.complete()}
	all := e.table()
	i := slices.IndexFunc(all, func(c check) bool { return c.name == name })
	if i < 0 {
		f.t.Fatalf("there is no check %q", name)
	}
	return run(f.t.Context(), e, all[i:i+1]).Checks[0]
}

func TestAHostThatCanDoEverything(t *testing.T) {
	f := newFake(t)
	r := Run(t.Context(), f.Options, f.Host)
	for i, name := range Names() {
		if c := r.Checks[i]; c.Name != name || c.Status != OK || c.Message == "" {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if !r.OK {
		t.Error("the report is not ok")
	}
}
