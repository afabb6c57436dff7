//go:build linux

package hosttest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// withJail is a host with a jail x that persists, in a clone of a template with a shell, with an interface and a tmpfs.
func withJail(t *testing.T) (*Host, string) {
	t.Helper()
	h := New(t)
	h.Fill("zroot/cj/templates/tiny", "templates/tiny", func(dir string) { inside.Template(t, dir) })
	h.Must("zfs", "snapshot", "zroot/cj/templates/tiny@clawjail")
	h.Must("zfs", "create", "-o", "mountpoint=none", "zroot/cj/jails")
	return h, startJail(h, "x")
}

func startJail(h *Host, name string) string {
	root := filepath.Join(h.Root(), "jails", name)
	h.Must("zfs", "clone", "-o", "mountpoint="+root, "-o", "setuid=off", "zroot/cj/templates/tiny@clawjail", "zroot/cj/jails/"+name)
	h.Must("ifconfig", "epair", "create")
	h.Must("ifconfig", "epair0a", "name", "e0a_"+name)
	h.Must("ifconfig", "epair0b", "name", "e0b_"+name)
	h.Must("mount", "-t", "tmpfs", "-o", "size=1048576,mode=1777,uid=1000,gid=1000,nosuid,noexec", "tmpfs", root+"/tmp")
	h.Must("zfs", "set", "readonly=on", "zroot/cj/jails/"+name)
	h.Must("jail", "-f", conf(h, name, root), "-c", name)
	return root
}

func conf(h *Host, name, root string) string {
	file := filepath.Join(h.Root(), name+".conf")
	text := name + " {\n  path = \"" + root + "\";\n  host.hostname = " + name + ";\n  persist;\n  vnet;\n  vnet.interface = e0b_" + name +
		";\n  mount.devfs;\n  devfs_ruleset = 4711;\n  exec.clean;\n  enforce_statfs = 2;\n  securelevel = 3;\n  children.max = 0;\n  allow.noraw_sockets;\n  sysvshm = new;\n  stop.timeout = 0;\n}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return file
}

// jexec is the command line of a program in jail x as a user.
func user(args ...string) []string {
	return append([]string{"jexec", "x", "/usr/sbin/chroot", "-n", "-G", "1000", "-g", "1000", "-u", "1000", "/"}, args...)
}
