package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/docker"
	"github.com/clawjail/clawjail/internal/problem"
)

// fail makes a trial fail.
func fail(try *func(context.Context) (Facts, error), err error) {
	*try = func(context.Context) (Facts, error) { return nil, err }
}

// takenAway is what can be missing on a host, one thing at a time.
func takenAway() []struct {
	check, what   string
	away          func(*fake)
	want          Status
	says, advises string
} {
	dropping := Filter{Family: "inet", Table: "filter", Chain: "input", Drops: true}
	unreached := func(filters ...Filter) func(*fake) {
		return func(f *fake) {
			f.Reach = func(context.Context) (bool, error) { return false, nil }
			f.Filters = func(context.Context) ([]Filter, error) { return filters, nil }
		}
	}
	namespaces := func(setting, value string) func(*fake) {
		return func(f *fake) {
			f.UserNamespace = func(context.Context, uint32) error { return errPlain }
			if setting != "" {
				f.write("proc/sys/"+setting, value)
			}
		}
	}
	return []struct {
		check, what   string
		away          func(*fake)
		want          Status
		says, advises string
	}{
		{"privileges", "root", func(f *fake) { f.UID = 1001 }, Skip, "user 1001", "sudo clawjail doctor"},
		{"privileges", "CAP_SYS_ADMIN", func(f *fake) { f.write("proc/self/status", "CapEff:\t000001ffffdfffff\n") }, Fail, "CAP_SYS_ADMIN", "container"},
		{"privileges", "CAP_SYS_RESOURCE", func(f *fake) {
			f.Config.Limits.Files = 4096
			f.write("proc/self/status", "CapEff:\t000001fffeffffff\n")
		}, OK, "without CAP_SYS_RESOURCE", ""},
		{"privileges", "CAP_SYS_RESOURCE and files", func(f *fake) { f.write("proc/self/status", "CapEff:\t000001fffeffffff\n") }, Fail, "4096 files", "ulimit -Hn 8192"},
		{"kernel", "a new kernel", func(f *fake) { f.write("proc/sys/kernel/osrelease", "5.10.0-30-amd64\n") }, Fail, "5.10.0-30", "5.14"},
		{"kernel", "a version", func(f *fake) { f.write("proc/sys/kernel/osrelease", "mine\n") }, Warn, "mine", ""},
		{"configuration", "a valid file", func(f *fake) { f.ConfigErr = problem.New(problem.BadConfig, "write 1", "line 3 is wrong") }, Fail, "line 3", "write 1"},
		{"configuration", "its ownership", func(f *fake) {
			f.Ownership = func(string) error { return problem.New(problem.BadConfig, "sudo chown root x", "it belongs to user 5") }
		}, Fail, "user 5", "chown"},
		{"keys", "their secrecy", func(f *fake) { f.write("var/lib/clawjail/control/admin.key", "secret") }, Fail, "open to others", "chmod 600"},
		{"certificate", "its files", func(f *fake) { f.Config.TLS = config.TLS{Cert: "/no/such", Key: "/no/such"} }, Fail, "cannot be used", "tls.cert"},
		{"clock", "who keeps it right", func(f *fake) {
			f.commands["timedatectl show --property=NTPSynchronized"] = "NTPSynchronized=no\n"
		}, Warn, "grants", "set-ntp"},
		{"units", "one that runs", func(f *fake) {
			f.write("run/systemd/system/none", "")
			for _, name := range []string{"clawjail-hostd.service", "clawjail.service"} {
				f.commands["systemctl show "+name+" --property=LoadState,ActiveState,SubState,UnitFileState"] = "LoadState=loaded\nActiveState=failed\nUnitFileState=enabled\n"
			}
		}, Fail, "has failed", "journalctl"},
		{"package", "its configuration", func(f *fake) { f.packaged("unpacked") }, Fail, "is unpacked", "sudo apt-get install --fix-broken"},
		{"package", "its files", func(f *fake) { f.packaged("half-installed") }, Fail, "is half-installed", "sudo apt-get install --fix-broken"},
		{"package", "itself", func(f *fake) { f.packaged("config-files") }, OK, "not installed as a package of Debian", ""},
		{"package", "nothing", func(f *fake) { f.packaged("installed") }, OK, "1.1.0 is installed", ""},
		{"configuration", "the file", func(f *fake) { f.ConfigPath = "" }, OK, "defaults", ""},
		{"user", "the user", func(f *fake) { f.write("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n") }, Warn, "no user clawjail", "clawjail up"},
		{"user", "its harmlessness", func(f *fake) { f.write("etc/group", "docker:x:100:anna,clawjail\n") }, Warn, "docker", "gpasswd -d clawjail docker"},
		{"user", "its own id", func(f *fake) { f.write("etc/passwd", "clawjail:x:0:0:::/bin/sh\n") }, Fail, "is root", "user"},
		{"uid_range", "an id", func(f *fake) { f.add("etc/passwd", "eve:x:1879100007:5::/:/bin/sh\n") }, Fail, "eve", "uid_base"},
		{"uid_range", "sub-ids", func(f *fake) { f.add("etc/subuid", "eve:1879103944:10\n") }, Fail, "eve", "uid_base"},
		{"uid_range", "sub-ids of groups", func(f *fake) { f.write("etc/subgid", "eve:1879090000:10001\n") }, Fail, "/etc/subgid", "uid_base"},
		{"uid_1000", "nobody", func(f *fake) {
			f.Config.Agents.Driver = config.AgentDriverDocker
			f.add("etc/passwd", "anna:x:1000:1000::/home/anna:/bin/bash\n")
		}, Warn, "anna", "anna"},
		{"uid_1000", "a login", func(f *fake) {
			f.Config.Agents.Driver = config.AgentDriverDocker
			f.add("etc/passwd", "svc:x:1000:1000::/:/usr/sbin/nologin\n")
		}, OK, "cannot log in", ""},
		{"disk_data", "the right to look", func(f *fake) {
			f.UID = 1001
			f.Space = func(string) (Space, error) { return Space{}, fs.ErrPermission }
		}, Skip, "only root", "sudo"},
		{"disk_data", "a working disk", func(f *fake) { f.Space = func(string) (Space, error) { return Space{}, fs.ErrPermission } }, Fail, "permission", ""},
		{"memory", "memory", func(f *fake) { f.write("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 100000 kB\n") }, Warn, "97 MiB", "limits.memory"},
		{"disk_data", "room", func(f *fake) { f.free = 4 << 30 }, Warn, "4.0 GiB", "data_dir"},
		{"disk_data", "all room", func(f *fake) { f.free = 3 << 20 }, Fail, "is full: 3 MiB", "free some space"},
		{"disk_run", "all room", func(f *fake) { f.free = 0 }, Fail, "is full", "run_dir"},
		{"disk_run", "room", func(f *fake) { f.free = 200 << 20 }, Warn, "200 MiB", "run_dir"},
		{"disk_data", "writing", func(f *fake) {
			f.Space = func(string) (Space, error) { return Space{Free: 1 << 40, ReadOnly: true}, nil }
		}, Fail, "read-only", "data_dir"},
		{"disk_run", "a folder", func(f *fake) { f.Config.RunDir = "" }, Fail, "no run directory", "run_dir"},
		{"runtime", "a runtime", func(f *fake) {
			f.Runtime = func(context.Context) (string, error) {
				return "", problem.New(problem.RuntimeMissing, "install one", "no OCI runtime works")
			}
		}, Fail, "no OCI runtime", "apt install crun runc"},
		{"runtime_version", "a fix (upstream)", func(f *fake) { f.runc("1.2.7", "", "") }, Fail, "CVE-2025-31133", "1.2.8"},
		{"runtime_version", "a fix (distribution)", func(f *fake) {
			f.runc("1.1.5+ds1", "1.1.5+ds1-1+deb12u1", "runc (1.1.5+ds1-1+deb12u1)\n * CVE-2024-21626: breakouts\n")
		}, Warn, "does not name them", "check its changelog"},
		{"runtime_version", "nothing (all back-ported)", func(f *fake) {
			f.runc("1.1.12", "1.1.12-0ubuntu9", "* CVE-2025-31133, CVE-2025-52565, CVE-2025-52881\n")
		}, OK, "has fixed CVE-2025-31133", ""},
		{"runtime_version", "a version", func(f *fake) { f.commands["/usr/bin/crun --version"] = "hello\n" }, Warn, "hello", ""},
		{"runtime_version", "an answer", func(f *fake) { delete(f.commands, "/usr/bin/crun --version") }, Fail, "crun", ""},
		{"runtime_version", "a runtime", func(f *fake) {
			f.Runtime = func(context.Context) (string, error) { return "", errPlain }
		}, Skip, "no runtime", ""},
		{"storage", "overlayfs", func(f *fake) { fail(&f.Trials.Storage, errPlain) }, Fail, "says no", "overlayfs"},
		{"cgroups", "a limit", func(f *fake) { fail(&f.Limits, errPlain) }, Fail, "says no", ""},
		{"cgroups", "a controller", func(f *fake) { f.write("sys/fs/cgroup/cgroup.controllers", "cpu pids\n") }, Fail, "lack memory", "cgroup_enable"},
		{"cgroups", "a controller, by the kernel's command line", func(f *fake) {
			f.write("sys/fs/cgroup/cgroup.controllers", "cpu pids\n")
			f.write("proc/cmdline", "root=/dev/vda1 cgroup_disable=memory quiet\n")
		}, Fail, "lack memory", "take cgroup_disable=memory off"},
		{"cgroups", "all of it", func(f *fake) { f.write("proc/self/mountinfo", "1 1 0:1 / / rw - ext4 /dev/vda rw\n") }, Fail, "no control groups", "systemd"},
		{"cgroups", "root", func(f *fake) { f.UID = 1001 }, Skip, "(v2)", "sudo"},
		{"seccomp", "the facility", func(f *fake) { f.write("proc/self/status", "Name:\tx\n") }, Fail, "no seccomp", "CONFIG_SECCOMP_FILTER"},
		{"seccomp", "an action", func(f *fake) { f.write("proc/sys/kernel/seccomp/actions_avail", "allow\n") }, Fail, "cannot errno", "CONFIG_SECCOMP_FILTER"},
		{"user_namespaces", "it", namespaces("", ""), Fail, "says no", "forbids"},
		{"user_namespaces", "it by number", namespaces("user/max_user_namespaces", "0\n"), Fail, "says no", "user.max_user_namespaces"},
		{"user_namespaces", "it by Debian's setting", namespaces("kernel/unprivileged_userns_clone", "0\n"), Fail, "says no", "unprivileged_userns_clone=1"},
		{"user_namespaces", "it by AppArmor", namespaces("kernel/apparmor_restrict_unprivileged_userns", "1\n"), Fail, "says no", "sudo apt install apparmor"},
		{"user_namespaces", "it by AppArmor, where jails have a profile", func(f *fake) {
			namespaces("kernel/apparmor_restrict_unprivileged_userns", "1\n")(f)
			f.appArmor()
		}, OK, "browsers' jails have one that allows them", ""},
		{"user_namespaces", "it by AppArmor, where jails do without", func(f *fake) {
			namespaces("kernel/apparmor_restrict_unprivileged_userns", "1\n")(f)
			f.appArmor()
			f.Config.AppArmor = config.AppArmorOff
		}, Fail, "says no", "apparmor: auto"},
		{"apparmor", "AppArmor", func(*fake) {}, OK, "no AppArmor that is on", ""},
		{"apparmor", "AppArmor, which is required", func(f *fake) { f.Config.AppArmor = config.AppArmorRequired }, Fail, "it is required", "apparmor=1"},
		{"apparmor", "nothing", (*fake).appArmor, OK, "jails run under profiles", ""},
		{"apparmor", "the wish for it", func(f *fake) {
			f.appArmor()
			f.Config.AppArmor = config.AppArmorOff
		}, Warn, "made without a profile", "apparmor: auto"},
		{"apparmor", "the parser", func(f *fake) {
			f.appArmor()
			f.remove("usr/sbin/apparmor_parser")
		}, Warn, "its parser is not installed", "apt install apparmor"},
		{"apparmor", "the file system of the kernel", func(f *fake) {
			f.appArmor()
			f.remove("sys/kernel/security/apparmor/profiles")
		}, Warn, "cannot be seen", "mount -t securityfs"},
		{"apparmor", "the host daemon", func(f *fake) {
			f.appArmor()
			f.noDaemon()
		}, OK, "when it starts", ""},
		{"apparmor", "a host daemon that loads profiles", func(f *fake) {
			f.appArmor()
			f.Daemon = func(context.Context) (hostd.Info, error) { return hostd.Info{Installation: "k3x9"}, nil }
		}, Warn, "has started without it", "systemctl restart clawjail-hostd"},
		{"apparmor", "a profile", func(f *fake) {
			f.appArmor()
			f.write("sys/kernel/security/apparmor/profiles", "clawjail-k3x9-browser (enforce)\nclawjail-other-agent (enforce)\n")
		}, Fail, "profile clawjail-k3x9-agent, and no jail starts", "systemctl restart clawjail-hostd"},
		{"apparmor", "a profile that is enforced", func(f *fake) {
			f.appArmor()
			f.write("sys/kernel/security/apparmor/profiles", "clawjail-k3x9-browser (complain)\nclawjail-k3x9-agent (enforce)\n")
		}, Fail, "profile clawjail-k3x9-browser, and no jail starts", "systemctl restart clawjail-hostd"},
		{"apparmor", "the profile of a jail", func(f *fake) {
			f.appArmor()
			f.write("proc/17/attr/current", "unconfined\n")
		}, Warn, "1 processes of older ones", "agent restart"},
		{"subnet", "a free network", func(f *fake) {
			f.Subnet = func(context.Context, jail.Installation, netip.Prefix) (netip.Prefix, error) {
				return netip.Prefix{}, problem.New(problem.BadConfig, "set subnet", "10.213.0.0/20 overlaps a route")
			}
		}, Fail, "overlaps", "set subnet"},
		{"subnet", "the network of the installation", func(f *fake) {
			f.install()
			f.Config.Subnet = netip.MustParsePrefix("10.1.0.0/20")
		}, Fail, "has 10.213.0.0/20", "remove subnet"},
		{"gateway_port", "the port", func(f *fake) { f.Port = func(context.Context) error { return errors.Join(errPort) } }, Fail, "port 3000", "ss -ltnp"},
		{"network", "bridges", func(f *fake) { fail(&f.Network, errPlain) }, Fail, "says no", "bridges"},
		{"nft", "nf_tables", func(f *fake) { fail(&f.Element, errPlain) }, Fail, "says no", "nf_tables"},
		{"nft", "the port", func(f *fake) { fail(&f.Element, errPort) }, Skip, "gateway_port", ""},
		{"other_firewall", "the way", unreached(Filter{Family: "inet", Table: "x", Chain: "c"}, dropping), Fail, "inet filter input",
			`sudo nft insert rule inet filter input iifname '"cjbr*"' tcp dport 3000 accept`},
		{"other_firewall", "the way (iptables)", unreached(Filter{Family: "ip", Table: "filter", Chain: "INPUT", Drops: true}), Fail, "ip filter INPUT",
			"sudo iptables -I INPUT -i cjbr+ -p tcp --dport 3000 -j ACCEPT"},
		{"other_firewall", "the way (ufw)", func(f *fake) {
			unreached(Filter{Family: "ip", Table: "filter", Chain: "INPUT", Drops: true})(f)
			f.write("etc/ufw/ufw.conf", "# comment\nENABLED=yes\nLOGLEVEL=low\n")
		}, Fail, "(ufw)", "sudo ufw allow in on cjbr+ to any port 3000 proto tcp"},
		{"other_firewall", "the way (firewalld)", func(f *fake) {
			unreached(Filter{Family: "inet", Table: "firewalld", Chain: "filter_INPUT", Refuses: true})(f)
			f.write("run/systemd/system/x", "")
			f.commands["systemctl is-active firewalld"] = "active\n"
		}, Fail, "(firewalld)", "firewall-cmd --permanent --zone=trusted --add-interface=cjbr+"},
		{"other_firewall", "the way (older iptables)", func(f *fake) {
			unreached()(f)
			f.write("proc/net/ip_tables_names", "nat\nfilter\n")
			f.commands["iptables-legacy -S"] = "-P INPUT DROP\n-P FORWARD ACCEPT\n-A INPUT -i lo -j ACCEPT\n"
		}, Fail, "iptables-legacy", "sudo iptables-legacy -I INPUT -i cjbr+"},
		{"other_firewall", "the way, nobody knows how", unreached(), Fail, "no chain", "nft list ruleset"},
		{"other_firewall", "the way of others, not ours", func(f *fake) {
			f.install()
			open := dropping
			open.Accepts = []string{"lo", "cjbrk3x9"}
			unreached(open)(f)
		}, Warn, "cjbrk3x9", `"cjbr*"`},
		{"other_firewall", "root", func(f *fake) {
			f.UID = 1001
			f.write("etc/ufw/ufw.conf", "ENABLED=yes\n")
		}, Skip, "ufw is on", "sudo"},
		{"sandboxed_renderer", "the template", func(f *fake) {
			fail(&f.Renderer, problem.New(problem.TemplateMissing, "build it", "there is no template"))
		}, Skip, "no template", "sudo clawjail template build browser"},
		{"sandboxed_renderer", "a template of before", func(f *fake) {
			f.Renderer = func(context.Context) (Facts, error) {
				return Facts{"product": "Chromium 1", "lacks": "fonts-noto-core"}, nil
			}
		}, Warn, "without fonts-noto-core", "template build browser --replace"},
		{"sandboxed_renderer", "the sandbox", func(f *fake) { fail(&f.Renderer, errPlain) }, Fail, "says no", "user_namespaces"},
		{"agent_state", "the tool", func(f *fake) { fail(&f.State, problem.New(problem.ToolMissing, "install it", "there is no mkfs.ext4")) }, Fail, "mkfs.ext4", "sudo apt install e2fsprogs"},
		{"agent_state", "loop devices", func(f *fake) {
			fail(&f.State, problem.New(problem.Unsupported, "modprobe loop", "there are no loop devices"))
		}, Fail, "loop devices", "modprobe loop"},
		{"agent_state", "the bound", func(f *fake) { fail(&f.State, errPlain) }, Fail, "says no", ""},
		{"agent_state", "what enlarges", func(f *fake) { f.Root = f.t.TempDir() }, Warn, "without e2fsck and resize2fs", "e2fsprogs"},
		{"unix_sockets", "the filter", func(f *fake) {
			f.write("var/lib/clawjail/agents/open.json", `{"spec":{"agent":{"tenant":"default","name":"open"},"mounts":[{"source":"/srv/a"}],"unix_sockets":true}}`)
			f.write("var/lib/clawjail/agents/own.json", `{"spec":{"agent":{"tenant":"default","name":"own"},"unix_sockets":true}}`)
			f.write("var/lib/clawjail/agents/shut.json", `{"spec":{"agent":{"tenant":"default","name":"shut"},"mounts":[{"source":"/srv/a"}]}}`)
		}, Warn, "connect open with whoever", "unix_sockets"},
		{"unix_sockets", "what is declared", func(f *fake) { f.write("var/lib/clawjail/agents/open.json", `{"spec":`) }, Warn, "open.json cannot be read", "agent sync"},
		{"workspace_roots", "a folder", func(f *fake) { f.Config.Agents.WorkspaceRoots = []string{"/srv/agents"} }, Warn, "/srv/agents of workspace_roots is not there", "sudo mkdir -p /srv/agents"},
		{"workspace_roots", "the folder itself", func(f *fake) { f.link("/srv/agents", "/etc"); f.Config.Agents.WorkspaceRoots = []string{"/srv/agents"} }, Fail, "is a link", "write /etc into workspace_roots"},
		{"workspace_roots", "the folders above", func(f *fake) {
			f.link("/srv", "/etc")
			f.write("etc/agents/x", "")
			f.Config.Agents.WorkspaceRoots = []string{"/srv/agents"}
		}, Fail, "leads through one", "write /etc/agents into"},
		{"workspace_roots", "a folder (a file)", func(f *fake) { f.write("srv/agents", ""); f.Config.Agents.WorkspaceRoots = []string{"/srv/agents"} }, Fail, "is not a folder", "workspace_roots"},
		{"workspace_roots", "root's ownership", func(f *fake) {
			f.write("home/anna/agents/x", "")
			f.Config.Agents.WorkspaceRoots = []string{"/home/anna/agents"}
			f.Ownership = func(path string) error {
				if path != "/home/anna" {
					return nil
				}
				return problem.New(problem.BadConfig, "sudo chown root /home/anna", "/home/anna belongs to user 5")
			}
		}, Fail, "somebody else than root can replace the folder /home/anna/agents", "chown root"},
		{"workspace_roots", "a file system that maps owners", func(f *fake) {
			f.write("srv/agents/x", "")
			f.Config.Agents.WorkspaceRoots = []string{"/srv/agents"}
			f.Map = func(string) error {
				return problem.New(problem.Unsupported, "move it to ext4", "the file system cannot map")
			}
		}, Fail, "cannot map", "move it"},
		{"workspace_roots", "the default folder", func(f *fake) {
			f.Config.DataDir, f.Config.Agents.WorkspaceRoots = "/var/lib/clawjail", []string{"/var/lib/clawjail/workspaces"}
		}, OK, "there", ""},
		{"workspace_roots", "a file system that maps owners, for the default folder", func(f *fake) {
			f.write("var/lib/clawjail/workspaces/x", "")
			f.Config.DataDir, f.Config.Agents.WorkspaceRoots = "/var/lib/clawjail", []string{"/var/lib/clawjail/workspaces"}
			f.Map = func(string) error {
				return problem.New(problem.Unsupported, "move it to ext4", "the file system cannot map")
			}
		}, Warn, "cannot map", "move it"},
		{"workspace_roots", "an added folder", func(f *fake) {
			f.added = []hostd.AddedRoot{{Path: "/home/anna/bots/workspaces", Owner: 5}}
		}, OK, "whose /home/anna/bots/workspaces are", ""},
		{"workspace_roots", "an added folder's owner", func(f *fake) {
			f.added, f.addedProblem = []hostd.AddedRoot{{Path: "/home/anna/bots/workspaces", Owner: 5}}, errPlain
		}, Warn, "no folders beneath /home/anna/bots/workspaces any more", "workspace-roots"},
		{"workspace_roots", "a root of jails", func(f *fake) { f.Config.Agents.JailRoots = []string{"/srv/jails"} }, Warn, "/srv/jails of jail_roots", "mkdir"},
		{"workspace_roots", "nothing", func(f *fake) { f.write("srv/agents/x", ""); f.Config.Agents.WorkspaceRoots = []string{"/srv/agents"} }, OK, "nobody but root can replace them", ""},
		{"resolver", "the file", func(f *fake) { f.remove("etc/resolv.conf") }, Warn, "there is no /etc/resolv.conf", "systemd-resolved"},
		{"resolver", "the servers", func(f *fake) {
			f.write("etc/resolv.conf", "#nameserver 192.0.2.53\nnameserver\nnameserver nobody\nsearch example.com\n")
		}, Warn, "names no server", "/etc/resolv.conf"},
		{"build_tools", "debootstrap", func(f *fake) { f.remove("usr/sbin/debootstrap") }, Warn, "without debootstrap", "sudo apt install debootstrap"},
		{"build_tools", "apt", func(f *fake) { f.remove("usr/bin/apt-get"); f.remove("usr/bin/apt-config") }, Warn, "without apt-get, apt-config", "sudo apt install apt"},
		{"container_engine", "nothing", func(f *fake) { f.write("var/run/docker.sock", "") }, OK, "20.10.24 answers", ""},
		{"container_engine", "an answer", func(f *fake) { f.engine(docker.Engine{}, errPlain) }, Warn, "does not answer", "systemctl start docker"},
		{"container_engine", "an answer, which is needed", func(f *fake) {
			f.engine(docker.Engine{}, errPlain)
			f.Config.Agents.Driver = config.AgentDriverDocker
		}, Fail, "does not answer", "systemctl start docker"},
		{"container_engine", "the engine, which is needed", func(f *fake) { f.Config.Agents.Driver = config.AgentDriverDocker }, Fail, "there is no engine", "docker.io"},
		{"container_engine", "users of the host's", func(f *fake) { f.engine(docker.Engine{Version: "27", Mapped: "rootless", Seccomp: true}, nil) }, Warn, "maps users (rootless)", "root"},
		{"container_engine", "seccomp", func(f *fake) { f.engine(docker.Engine{Version: "27"}, nil) }, Warn, "no seccomp", "seccomp"},
		{"container_engine", "its walls", func(f *fake) {
			f.engine(docker.Engine{Seccomp: true}, nil)
			if err := os.Chmod(filepath.Join(f.Root, "var/run/docker.sock"), 0o666); err != nil {
				f.t.Fatal(err)
			}
		}, Fail, "everybody on this host", "chmod o-rw"},
		{"container_engine", "root", func(f *fake) {
			f.engine(docker.Engine{Seccomp: true}, nil)
			f.UID = 1001
		}, Skip, "asked as root", "sudo clawjail doctor"},
		{"host_daemon", "the daemon", func(f *fake) { f.noDaemon() }, Warn, "does not answer", "sudo clawjail up"},
		{"host_daemon", "root", func(f *fake) {
			f.UID = 1001
			f.Daemon = func(context.Context) (hostd.Info, error) { return hostd.Info{}, fs.ErrPermission }
		}, Skip, "only root", "sudo"},
		{"api", "the control plane", func(f *fake) { f.Health = func(context.Context) error { return errPlain } }, Warn, "18780", "sudo clawjail up"},
		{"orphans", "the order", func(f *fake) {
			f.install()
			f.noDaemon()
			f.resources = []inventory.HostResource{{Kind: "interface", ID: "cjk3x90007"}}
		}, Warn, "interface cjk3x90007", "clawjail reap"},
	}
}

func TestEveryCheckNoticesWhatIsTakenAway(t *testing.T) {
	covered := map[string]bool{}
	for _, tt := range takenAway() {
		t.Run(tt.check+" without "+tt.what, func(t *testing.T) {
			f := newFake(t)
			tt.away(f)
			r := f.check(tt.check)
			if r.Status != tt.want || !strings.Contains(r.Message, tt.says) || !strings.Contains(r.Hint, tt.advises) {
				t.Errorf("got %+v\nwant %s, a message with %q and a hint with %q", r, tt.want, tt.says, tt.advises)
			}
		})
		covered[tt.check] = covered[tt.check] || tt.want != OK
	}
	for _, name := range Names() {
		if !covered[name] {
			t.Errorf("no facility of the check %s is taken away", name)
		}
	}
}

func TestOtherSystemsHaveNothingToTry(t *testing.T) {
	f := newFake(t)
	f.Trials = Trials{}
	for _, name := range []string{"runtime", "storage", "agent_state", "user_namespaces", "subnet", "gateway_port", "network", "nft", "other_firewall", "sandboxed_renderer"} {
		if r := f.check(name); r.Status != Skip {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestControlGroupsOfEveryLayout(t *testing.T) {
	const v1 = "31 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"32 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n33 23 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
	for layout, mounts := range map[string]string{
		"v1": v1, "hybrid": v1 + "34 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
		"v2": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
	} {
		f := newFake(t)
		f.write("proc/self/mountinfo", mounts)
		if r := f.check("cgroups"); r.Status != OK || r.Facts["layout"] != layout {
			t.Errorf("%s: %+v", layout, r)
		}
	}
}

func TestOrphansAreToldFromWhatShouldBe(t *testing.T) {
	f := newFake(t)
	f.install()
	f.noDaemon()
	f.write("var/lib/clawjail/journal/ak3x900001.json", `{"version":1,"name":"ak3x900001","lease":{"index":5,"addr":"10.213.0.155","uid":1879100005}}`)
	f.write("var/lib/clawjail/journal/notes.txt", "")
	run := f.Config.RunDir
	f.resources = []inventory.HostResource{
		// what all jails share
		{Kind: "nft_table", ID: "1 clawjail_k3x9"}, {Kind: "interface", ID: "cjbrk3x9"}, {Kind: "cgroup", ID: "/sys/fs/cgroup/pids/clawjail-k3x9"},
		{Kind: "mount", ID: run + "/jails"}, {Kind: "nft_element", ID: "origins 636a6b33"}, {Kind: "record", ID: "journal/ak3x900001.json"},
		// of the jail that is known
		{Kind: "clone", ID: "/x/clones/ak3x900001"}, {Kind: "interface", ID: "cjk3x90005"}, {Kind: "namespace", ID: run + "/netns/0005"},
		{Kind: "nft_element", ID: "agent_jails 10.213.0.155"}, {Kind: "process", ID: "77 node uid 1879100005"}, {Kind: "shared_memory", ID: "/dev/shm/x"},
	}
	if r := f.check("orphans"); r.Status != OK {
		t.Errorf("with what should be there: %+v", r)
	}
	shared := len(f.resources)
	for _, planted := range []inventory.HostResource{
		{Kind: "clone", ID: "/x/clones/bk3x900002"}, {Kind: "mount", ID: run + "/jails/bk3x900002/root"}, {Kind: "cgroup", ID: "/sys/fs/cgroup/pids/clawjail-k3x9/bk3x900002"},
		{Kind: "staged", ID: run + "/bundles/bk3x900002"}, {Kind: "runtime_state", ID: run + "/runtime/bk3x900002"}, {Kind: "jail_dir", ID: run + "/jails/bk3x900002"},
		{Kind: "interface", ID: "cjk3x90006"}, {Kind: "namespace", ID: run + "/netns/0006"}, {Kind: "nft_element", ID: "browser_tasks 10.213.0.156"},
		{Kind: "process", ID: "78 chromium uid 1879100006"},
	} {
		f.resources = append(f.resources[:shared:shared], planted)
		if r := f.check("orphans"); r.Status != Warn || !strings.Contains(r.Message, planted.ID) {
			t.Errorf("with %s: %+v", planted, r)
		}
	}
	f.write("var/lib/clawjail/journal/ak3x900001.json", "{")
	f.resources = []inventory.HostResource{{Kind: "clone", ID: "/x/clones/ak3x900001"}}
	if r := f.check("orphans"); r.Status != OK {
		t.Errorf("with a damaged record: %+v", r)
	}
	if err := os.RemoveAll(f.Config.DataDir + "/journal"); err != nil {
		t.Fatal(err)
	}
	if r := f.check("orphans"); r.Status != Warn {
		t.Errorf("with no record: %+v", r)
	}
}

func TestDamagedInstallationIsReported(t *testing.T) {
	for _, text := range []string{"{", `{"id":"K3X9","subnet":"10.213.0.0/20"}`} {
		f := newFake(t)
		f.noDaemon()
		f.write("var/lib/clawjail/installation.json", text)
		for _, name := range []string{"orphans", "subnet"} {
			if r := f.check(name); r.Status != Fail {
				t.Errorf("%s with %s: %+v", name, text, r)
			}
		}
	}
}

func TestVersionsAndHoles(t *testing.T) {
	const three = "CVE-2025-31133 CVE-2025-52565 CVE-2025-52881"
	for _, tt := range []struct{ runtime, version, holes string }{
		{"runc", "1.0.0-rc92", three}, {"runc", "1.0.0-rc93", "CVE-2024-21626 " + three}, {"runc", "1.1.5+ds1", "CVE-2024-21626 " + three},
		{"runc", "1.1.12", three}, {"runc", "1.2.7", three}, {"runc", "1.2.8", ""}, {"runc", "1.2.9", ""},
		{"runc", "1.3.0-rc.1", three}, {"runc", "1.3.2", three}, {"runc", "1.3.3", ""}, {"runc", "1.3.3-rc.1", three},
		{"runc", "1.4.0-rc.1", three}, {"runc", "1.4.0-rc.2+dev", three}, {"runc", "1.4.0-rc.3", ""}, {"runc", "1.4.0", ""}, {"runc", "1.5.2", ""},
		{"runc", "v1.2.8", ""}, {"runc", "1.4.0~rc2", three},
		{"crun", "0.10.4", "CVE-2019-18837 CVE-2022-27650"}, {"crun", "1.4.3", "CVE-2022-27650"}, {"crun", "1.4.4", ""}, {"crun", "1.8.1", ""}, {"crun", "1.25", ""},
		{"runsc", "1.0", ""},
	} {
		v, ok := parseVersion(tt.version)
		if got := strings.Join(holes(tt.runtime, v), " "); !ok || got != tt.holes {
			t.Errorf("%s %s: understood %v, holes %q, want %q", tt.runtime, tt.version, ok, got, tt.holes)
		}
	}
	for _, bad := range []string{"", "release-20221219.0", "one.two", "1"} {
		if v, ok := parseVersion(bad); ok {
			t.Errorf("%q is understood as %v", bad, v)
		}
	}
}

func TestWithoutRootTheRuntimeIsLookedFor(t *testing.T) {
	f := newFake(t)
	f.UID = 1001
	f.Runtime = nil
	if r := f.check("runtime_version"); r.Status != OK || r.Facts["path"] != "/usr/bin/crun" {
		t.Errorf("%+v", r)
	}
	if err := os.Remove(f.Root + "/usr/bin/crun"); err != nil {
		t.Fatal(err)
	}
	if r := f.check("runtime_version"); r.Status != Skip {
		t.Errorf("without one: %+v", r)
	}
}

func TestLegacyFilter(t *testing.T) {
	got := legacyFilter("-P INPUT ACCEPT\n-P FORWARD DROP\n-N ufw\n-A INPUT -i cjbrk3x9 -p tcp -j ACCEPT\n-A INPUT -j REJECT --reject-with icmp-port-unreachable\n")
	if got.Drops || !got.Refuses || len(got.Accepts) != 1 || got.Accepts[0] != "cjbrk3x9" {
		t.Errorf("%+v", got)
	}
	if got := legacyFilter("-P INPUT ACCEPT\n-A FORWARD -j DROP\n"); got.stops() {
		t.Errorf("a chain that lets everything in: %+v", got)
	}
}
