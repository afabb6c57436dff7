package testenv

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// PiTemplates returns a folder with the machine's templates browser and clawbot, and with the template pi of examples/pi. The
// templates in it cannot be written to, and the folder is there for this test alone. clawjail is the program that builds pi, by
// examples/pi/build.sh; what it has built, with the packages of npm and in a minute, is kept in Cache until something that went
// into it changes.
func PiTemplates(t testing.TB, clawjail string) string {
	t.Helper()
	Root(t)
	machine := filepath.Dir(TemplateNamed(t, "browser"))
	TemplateNamed(t, "clawbot")
	Tool(t, "npm")
	Tool(t, "jq")
	c := piBuild{clawjail: clawjail, machine: machine, example: filepath.Join(Repository(t), "examples/pi")}
	if err := os.MkdirAll(filepath.Join(Cache, "templates"), 0o755); err != nil {
		t.Fatal(err)
	}
	var key string
	current := func() bool {
		var err error
		if key, err = c.key(); err != nil {
			t.Fatal(err)
		}
		return c.current(key)
	}
	Keep(t, "pi", current, func() {
		if err := c.build(t, key); err != nil {
			t.Fatalf("build the template pi: %v", err)
		}
	})
	return together(t, filepath.Join(machine, "browser"), filepath.Join(machine, "clawbot"), filepath.Join(Cache, "templates/pi"))
}

// piBuild is how the template is built.
type piBuild struct{ clawjail, machine, example string }

// key stands for all that goes into the template.
func (c piBuild) key() (string, error) {
	sum := sha256.New()
	add := func(path string) error {
		text, err := os.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n%s", filepath.Base(path), len(text), text)
		return err
	}
	err := filepath.WalkDir(filepath.Join(c.example, "agent"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return add(path)
	})
	err = errors.Join(err, add(filepath.Join(c.example, "build.sh")), add(filepath.Join(c.machine, "clawbot/template.json")))
	return hex.EncodeToString(sum.Sum(nil)), err
}

func piKey() string    { return filepath.Join(Cache, "pi.key") }
func piConfig() string { return filepath.Join(Cache, "clawjail.yml") }

// current says whether the template that is kept has this key, and is as it was built.
func (c piBuild) current(key string) bool {
	kept, err := os.ReadFile(piKey())
	if err != nil || string(kept) != key {
		return false
	}
	return exec.Command(c.clawjail, "--config", piConfig(), "template", "verify", "--quick", "pi").Run() == nil
}

func (c piBuild) build(t testing.TB, key string) error {
	t.Log("building the template pi, which takes about a minute")
	configuration := func(templates string) string {
		return "data_dir: " + filepath.Join(Cache, "data") + "\ntemplates_dir: " + templates + "\n"
	}
	machine, program := filepath.Join(Cache, "machine.yml"), filepath.Join(Cache, "clawjail")
	// pi is made from the machine's templates; it is not to be among them.
	script := fmt.Sprintf("#!/bin/sh\ncase \"$1 $2\" in 'template image') config='%s' ;; *) config='%s' ;; esac\nexec '%s' --config \"$config\" \"$@\"\n",
		machine, piConfig(), c.clawjail)
	err := errors.Join(
		os.WriteFile(machine, []byte(configuration(c.machine)), 0o644),
		os.WriteFile(piConfig(), []byte(configuration(filepath.Join(Cache, "templates"))), 0o644),
		os.WriteFile(program, []byte(script), 0o755))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", filepath.Join(c.example, "build.sh"))
	cmd.Env = append(os.Environ(), "CLAWJAIL="+program)
	OnHostNetwork(t, cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return os.WriteFile(piKey(), []byte(key), 0o644)
}

// together mounts templates side by side in one folder. Nothing can be written through it, not for a moment: what is there is
// the machine's own, and a removal that goes wrong must find no way to it.
func together(t testing.TB, templates ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "clawjail-test-templates-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(filepath.Join(dir, ".lock")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	for _, template := range templates {
		place := filepath.Join(dir, filepath.Base(template))
		if err := os.Mkdir(place, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			unmount(place)
			if err := syscall.Rmdir(place); err != nil {
				t.Errorf("remove %s: %v", place, err)
			}
		})
		if err := show(template, place); err != nil {
			t.Fatalf("mount %s: %v", template, err)
		}
	}
	return dir
}

// show mounts a folder at another place, read-only.
func show(from, to string) (err error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(tree)) }()
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make it read-only: %w", err)
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
