package inventory_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// installation and uidBase are of this test binary alone: control groups and users are shared with others.
func installation() string { return "z" + testenv.Tag(1) }

func uidBase() uint32 { return 1_879_190_000 + 1000*uint32(testenv.Slot()) }

// TestAPlantedLeakOfEachKindIsSeen goes through the table itself, so that a line without a planted leak fails.
func TestAPlantedLeakOfEachKindIsSeen(t *testing.T) {
	testenv.Root(t)
	scope := inventory.Scope{Installation: jail.Installation(installation()), Data: t.TempDir(), Run: filepath.Join(t.TempDir(), "a folder"), UIDBase: uidBase(), UIDs: 100}
	must(t, os.Mkdir(scope.Run, 0o755))
	plant := map[string]func(t *testing.T){
		"process": func(t *testing.T) {
			cmd := exec.Command("sleep", "60")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uidBase() + 7, Gid: uidBase() + 7}}
			must(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		},
		"cgroup": func(t *testing.T) {
			root := "/sys/fs/cgroup"
			if dirs, _ := filepath.Glob(root + "/pids"); len(dirs) > 0 {
				root = dirs[0]
			}
			dir := filepath.Join(root, "clawjail-"+installation())
			_ = os.Remove(dir) // of a run that was killed
			must(t, os.Mkdir(dir, 0o755))
			t.Cleanup(func() { _ = os.Remove(dir) })
		},
		"mount": func(t *testing.T) {
			dir := filepath.Join(scope.Run, "mounted")
			must(t, os.Mkdir(dir, 0o755))
			must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
			t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
		},
		"interface": func(t *testing.T) {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "cj" + installation() + "0001"
			link := &netlink.Veth{LinkAttrs: attrs, PeerName: attrs.Name + "p"}
			must(t, netlink.LinkAdd(link))
			t.Cleanup(func() { _ = netlink.LinkDel(link) })
		},
		"namespace":   file(filepath.Join(scope.Run, "netns", "0001")),
		"nft_table":   func(t *testing.T) { table(t) },
		"nft_element": func(t *testing.T) { element(t) },
		"loop_device": func(t *testing.T) {
			image := filepath.Join(scope.Data, "image")
			must(t, os.WriteFile(image, make([]byte, 1<<20), 0o600))
			out, err := exec.Command(testenv.Tool(t, "losetup"), "--find", "--show", image).Output()
			must(t, err)
			t.Cleanup(func() { _ = exec.Command("losetup", "-d", strings.TrimSpace(string(out))).Run() })
		},
		"clone":         file(filepath.Join(scope.Data, "clones", "b"+installation()+"00001")),
		"record":        file(filepath.Join(scope.Data, "journal", "b"+installation()+"00001.json")),
		"staged":        file(filepath.Join(scope.Run, "bundles", "b"+installation()+"00001")),
		"runtime_state": file(filepath.Join(scope.Run, "runtime", "b"+installation()+"00001")),
		"jail_dir":      file(filepath.Join(scope.Run, "jails", "b"+installation()+"00001")),
		"shared_memory": owned("/dev/shm/clawjail-inventory-test"),
		"temporary":     owned(filepath.Join(os.TempDir(), "clawjail-inventory-test")),
	}
	for _, kind := range inventory.Kinds() {
		t.Run(kind, func(t *testing.T) {
			before, err := inventory.Take(t.Context(), scope)
			must(t, err)
			if len(before) > 0 {
				t.Fatalf("the host is not clean before: %v", before)
			}
			if plant[kind] == nil {
				t.Fatal("nobody knows how to plant this; add it here")
			}
			plant[kind](t)
			after, err := inventory.Take(t.Context(), scope)
			must(t, err)
			added := inventory.Added(before, after)
			if len(added) == 0 {
				t.Fatal("the comparison does not see it")
			}
			for _, a := range added {
				if a.Kind == kind {
					return
				}
			}
			t.Fatalf("seen only as %v", added)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func file(path string) func(*testing.T) {
	return func(t *testing.T) {
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, nil, 0o600))
		t.Cleanup(func() { _ = os.Remove(path) })
	}
}

func owned(path string) func(*testing.T) {
	return func(t *testing.T) {
		file(path)(t)
		must(t, os.Chown(path, int(uidBase())+1, int(uidBase())+1))
	}
}

func table(t *testing.T) (*nftables.Conn, *nftables.Table) {
	conn, err := nftables.New()
	must(t, err)
	tab := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "clawjail_" + installation()})
	must(t, conn.Flush())
	t.Cleanup(func() { conn.DelTable(tab); _ = conn.Flush() })
	return conn, tab
}

func element(t *testing.T) {
	conn, tab := table(t)
	set := &nftables.Set{Table: tab, Name: "browser_tasks", KeyType: nftables.TypeIPAddr}
	must(t, conn.AddSet(set, []nftables.SetElement{{Key: net.IPv4(10, 99, 0, 7).To4()}}))
	must(t, conn.Flush())
}
