//go:build linux

package spawntest

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/jail/freebsd/hosttest"
	"github.com/clawjail/clawjail/internal/testenv"
)

// Simulated is a simulated FreeBSD host with a jail mcp0 that runs, and a folder that jails are made of.
type Simulated struct {
	*hosttest.Host
	t testing.TB
	// Base is root's own folder, which everybody may enter. Named is the root of mcp0, and Folder that folder.
	Base, Named, Folder string
}

// Simulate makes a simulated host, where mac_do lets [UID] become root, and sudo asks that user nothing. The commands are
// setuid, and do for users what they would on a real host: without mdo, sudo or the helper, nobody but root makes a jail
// or enters one. The test's TestMain must call hosttest.Main.
func Simulate(t testing.TB) *Simulated {
	t.Helper()
	h := hosttest.New(t)
	s := &Simulated{Host: h, t: t, Base: filepath.Dir(h.Commands()), Named: h.Root() + "/jails/mcp0", Folder: h.Root() + "/jails/scratch"}
	h.Fill("zroot/jails/mcp0", "/jails/mcp0", s.fill)
	h.Fill("zroot/jails/scratch", "/jails/scratch", s.fill)
	h.Scenario("mac_do-loaded")
	uid := strconv.Itoa(UID)
	h.Set(hosttest.Settings{Sysctls: map[string]string{"hosttest.uid": "", "hosttest.sudo": uid,
		"security.mac.do.rules": "uid=" + uid + ">uid=0,gid=*,+gid=*"}})
	s.reachable()
	h.Must("jail", "-c", "name=mcp0", "path="+s.Named, "host.hostname=mcp0", "persist", "mount.devfs")
	return s
}

// fill fills a root.
func (s *Simulated) fill(root string) {
	for _, dir := range []string{"etc", "dev", "tmp", "home", Home} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := os.Chown(root+Home, UID, UID); err != nil {
		s.t.Fatal(err)
	}
	s.write(root+"/etc/passwd", "root:*:0:0:x:/root:/bin/sh\n"+User+":*:65534:65534:x:"+Home+":/bin/sh\n", 0o644)
	for _, name := range []string{"sh", "sleep", "cat", "mv", "kill", "setsid", "id", "ls"} {
		Install(s.t, root, name)
	}
}

// reachable puts the program that the commands are where every user can start it: the folder of a test's own binary is its
// builder's.
func (s *Simulated) reachable() {
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(s.Base+"/self", string(data), 0o755)
	s.write(s.Caller(), string(data), 0o755)
	if err := os.Chmod(s.Base+"/self", 0o755|os.ModeSetuid); err != nil {
		s.t.Fatal(err)
	}
	commands, err := os.ReadDir(s.Commands())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range commands {
		if c.Type() != os.ModeSymlink {
			continue
		}
		link := filepath.Join(s.Commands(), c.Name())
		if err := errors.Join(os.Remove(link), os.Symlink(s.Base+"/self", link)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Caller is the test's own program, for users who call.
func (s *Simulated) Caller() string { return s.Base + "/caller" }

func (s *Simulated) write(path, text string, mode os.FileMode) {
	s.t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		s.t.Fatal(err)
	}
}

// Helper builds the setuid helper, with a configuration of root's that names both roots and user 65534.
func (s *Simulated) Helper() (path, config string) {
	s.t.Helper()
	path, config = s.Base+"/clawjail-spawn", s.Base+"/spawn.conf"
	BuildHelper(s.t, path, config)
	may := " users " + strconv.Itoa(UID) + " as " + User
	s.write(config, "commands "+s.Commands()+"\nrun_dir "+s.Base+"/runs\njail mcp0"+may+" root "+s.Named+"\nroot scratch"+may+" path "+s.Folder+"\n", 0o644)
	return path, config
}

// BuildHelper builds the helper setuid root, with a configuration file that is fixed.
func BuildHelper(t testing.TB, path, config string) {
	t.Helper()
	build := exec.Command(testenv.Tool(t, "go"), "build", "-ldflags", "-X main.configFile="+config, "-o", path, "./cmd/clawjail-spawn")
	build.Dir = testenv.Repository(t)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := errors.Join(os.Chown(path, 0, 0), os.Chmod(path, 0o755|os.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
}

// Left is all that exists on the host, as text to compare, with what is staged in either root.
func (s *Simulated) Left() string {
	s.t.Helper()
	all := s.Resources()
	for _, root := range []string{s.Named, s.Folder} {
		names, err := filepath.Glob(root + Home + "/.cache/clawjail/stage/*")
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, names...)
	}
	return strings.Join(all, "\n")
}

// Programs counts the processes in all jails.
func (s *Simulated) Programs() int {
	s.t.Helper()
	return strings.Count("\n"+strings.Join(s.Resources(), "\n"), "\nprocess ")
}

// Ran says whether a command was run whose words, in JSON, have a part.
func (s *Simulated) Ran(part string) bool {
	s.t.Helper()
	text, err := json.Marshal(s.Log())
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Contains(string(text), part)
}
