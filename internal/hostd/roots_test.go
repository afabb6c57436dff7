package hostd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// rootsFixture is a data directory, and beside it the folder of a user with a file in it.
func rootsFixture(t *testing.T) (c config.Config, bots string) {
	t.Helper()
	testenv.Need(t, testenv.Root)
	dir, err := os.MkdirTemp("", "roots-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	bots = filepath.Join(dir, "ada", "bots")
	c.DataDir, c.RunDir, c.TemplatesDir = filepath.Join(dir, "data"), filepath.Join(dir, "run"), filepath.Join(dir, "data/templates")
	must(t, os.Chmod(dir, 0o755))
	must(t, os.Mkdir(c.DataDir, 0o755))
	must(t, os.MkdirAll(bots, 0o755))
	must(t, os.Chown(filepath.Dir(bots), 1234, 1234))
	must(t, os.Chown(bots, 1234, 1234))
	return c, bots
}

func TestAFolderThatWasAddedIsUsedWhileNobodyElseCanReplaceIt(t *testing.T) {
	c, bots := rootsFixture(t)
	usable := func(when string, want ...string) {
		t.Helper()
		if got, err := UsableRoots(c); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", when, got, err, want)
		}
	}
	usable("before anything was added")
	dir := filepath.Join(bots, "workspaces")
	r, err := NewRoot(c, dir)
	must(t, err)
	if _, err := os.Lstat(dir); err == nil || r.Owner != 1234 {
		t.Errorf("a look has made the folder, or it would be of %d", r.Owner)
	}
	must(t, AddRoot(c, r))
	usable("added", dir)
	info, err := os.Lstat(dir)
	must(t, err)
	if owner, _ := ownerOf(info); owner != 1234 || info.Mode().Perm() != 0o755 {
		t.Errorf("the folder is of %d with mode %v", owner, info.Mode())
	}
	second, err := NewRoot(c, filepath.Join(bots, "more"))
	must(t, err)
	must(t, AddRoot(c, second))
	usable("a second one", dir, second.Path)
	if info, err := os.Lstat(WorkspaceRootsFile(c)); err != nil || info.Mode() != 0o644 {
		t.Errorf("the file: %v, %v", info, err)
	}
	for what, change := range map[string]struct{ do, undo func() error }{
		"others may write above it": {func() error { return os.Chmod(bots, 0o777) }, func() error { return os.Chmod(bots, 0o755) }},
		"another user has it":       {func() error { return os.Chown(dir, 99, 99) }, func() error { return os.Chown(dir, 1234, 1234) }},
		"it is a link": {func() error {
			return sequence(func() error { return os.Rename(dir, dir+".old") }, func() error { return os.Symlink("/etc", dir) })
		},
			func() error {
				return sequence(func() error { return os.Remove(dir) }, func() error { return os.Rename(dir+".old", dir) })
			}},
	} {
		must(t, change.do())
		if got, err := UsableRoots(c); err != nil || slices.Contains(got, dir) {
			t.Errorf("%s, and it is used: %v, %v", what, got, err)
		}
		must(t, change.undo())
		usable(what+" no more", dir, second.Path)
	}
	// A line that is taken away takes the folder back.
	text, err := os.ReadFile(WorkspaceRootsFile(c))
	must(t, err)
	must(t, os.WriteFile(WorkspaceRootsFile(c), []byte(strings.ReplaceAll(string(text), "1234 "+dir+"\n", "")), 0o644))
	usable("taken back", second.Path)
}

func sequence(all ...func() error) error {
	for _, f := range all {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func TestAFileOfAddedFoldersThatIsNotRootsIsRefused(t *testing.T) {
	c, bots := rootsFixture(t)
	path := WorkspaceRootsFile(c)
	must(t, os.Mkdir(filepath.Join(bots, "ws"), 0o755))
	must(t, os.Chown(filepath.Join(bots, "ws"), 1234, 1234))
	good := "1234 " + filepath.Join(bots, "ws") + "\n"
	write := func(text string) func() error { return func() error { return os.WriteFile(path, []byte(text), 0o644) } }
	for what, make := range map[string]func() error{
		"the file of another user":         func() error { return sequence(write(good), func() error { return os.Chown(path, 1234, 0) }) },
		"one that others may write":        func() error { return sequence(write(good), func() error { return os.Chmod(path, 0o666) }) },
		"a link":                           func() error { return os.Symlink(filepath.Join(bots, "file"), path) },
		"a folder":                         func() error { return os.Mkdir(path, 0o755) },
		"a path that is not whole":         write("0 srv\n"),
		"a path that is not plain":         write("0 /srv/../etc\n"),
		"no owner":                         write("/srv/x\n"),
		"an owner below zero":              write("-1 /srv/x\n"),
		"more folders than there may be":   write(strings.Repeat(good, maxAddedRoots+1)),
		"more bytes than are ever written": write("#" + strings.Repeat("x", maxAddedRootsLen)),
	} {
		must(t, os.RemoveAll(path))
		must(t, make())
		if got, err := UsableRoots(c); problem.CodeOf(err) != problem.BadConfig || len(got) > 0 {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	must(t, os.RemoveAll(path))
	must(t, write("# a remark\n\n"+good)())
	if got, err := UsableRoots(c); err != nil || len(got) != 1 {
		t.Errorf("a good file: %v, %v", got, err)
	}
	// Clawjail's own folders are none, also when the file names one.
	must(t, write("0 "+c.DataDir+"\n0 "+c.RunDir+"\n0 "+filepath.Dir(c.DataDir)+"\n")())
	if got, err := UsableRoots(c); err != nil || len(got) > 0 {
		t.Errorf("clawjail's own folders: %v, %v", got, err)
	}
}

func TestWhatCannotBeAddedIsNotMade(t *testing.T) {
	c, bots := rootsFixture(t)
	must(t, os.Symlink("/etc", filepath.Join(bots, "link")))
	must(t, os.WriteFile(filepath.Join(bots, "file"), nil, 0o644))
	must(t, os.MkdirAll(filepath.Join(bots, "loose"), 0o755))
	must(t, os.Chmod(filepath.Join(bots, "loose"), 0o777))
	for _, dir := range []string{filepath.Join(bots, "link"), filepath.Join(bots, "link/x"), filepath.Join(bots, "file"), filepath.Join(bots, "loose/x"),
		filepath.Join(bots, "none/x"), c.DataDir, filepath.Join(c.DataDir, "state"), "/", "relative"} {
		if r, err := NewRoot(c, dir); err == nil {
			t.Errorf("%s could be added: %+v", dir, r)
		}
	}
	// A link that is planted between the look and the yes is not followed.
	r, err := NewRoot(c, filepath.Join(bots, "late"))
	must(t, err)
	must(t, os.Symlink("/etc", r.Path))
	if err := AddRoot(c, r); err == nil {
		t.Error("a link that was planted was added")
	}
	if all, err := AddedRoots(c); err != nil || len(all) > 0 {
		t.Errorf("there is %v, %v", all, err)
	}
}

func TestAFolderBeyondTheMostIsNotMade(t *testing.T) {
	c, bots := rootsFixture(t)
	list := workspaceRootsHead
	for i := range maxAddedRoots - 1 {
		list += fmt.Sprintf("%d /srv/%d\n", os.Geteuid(), i)
	}
	must(t, os.WriteFile(filepath.Join(c.DataDir, workspaceRootsName), []byte(list), 0o644))
	last, err := NewRoot(c, filepath.Join(bots, "last"))
	must(t, err)
	must(t, AddRoot(c, last))
	beyond, err := NewRoot(c, filepath.Join(bots, "beyond"))
	must(t, err)
	if err := AddRoot(c, beyond); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("one folder more: %v", err)
	}
	if _, err := os.Lstat(beyond.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder that was refused: %v", err)
	}
}

func TestTheFolderOfWorkspacesIsRootsAloneAndMayBeOpened(t *testing.T) {
	c, _ := rootsFixture(t)
	self := account{os.Geteuid(), os.Getegid()}
	must(t, makeFolders(c, self))
	if _, err := os.Lstat(c.Workspaces()); err == nil {
		t.Error("it is made although it is no root of workspaces")
	}
	c.Agents.WorkspaceRoots = []string{c.Workspaces()}
	for _, mode := range []os.FileMode{0o700, 0o755} { // the second is the operator's choice, and stays
		must(t, makeFolders(c, self))
		info, err := os.Lstat(c.Workspaces())
		must(t, err)
		if owner, _ := ownerOf(info); owner != uint32(os.Geteuid()) || info.Mode().Perm() != mode {
			t.Errorf("it is of %d with mode %v, not %v", owner, info.Mode(), mode)
		}
		must(t, os.Chmod(c.Workspaces(), 0o755))
	}
	must(t, os.Remove(c.Workspaces()))
	must(t, os.Symlink("/etc", c.Workspaces()))
	if err := makeFolders(c, self); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("a link in its place: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAFolderWithAnotherOwnerIsAddedAnewInItsOwnPlace(t *testing.T) {
	c, bots := rootsFixture(t)
	dir := filepath.Join(bots, "workspaces")
	for _, owner := range []uint32{1234, 1235} {
		must(t, os.Chown(filepath.Dir(bots), int(owner), int(owner)))
		must(t, os.Chown(bots, int(owner), int(owner)))
		if owner == 1235 {
			must(t, os.Chown(dir, int(owner), int(owner)))
			if got, err := UsableRoots(c); err != nil || len(got) > 0 {
				t.Errorf("with another owner it is used: %v, %v", got, err)
			}
		}
		r, err := NewRoot(c, dir)
		must(t, err)
		must(t, AddRoot(c, r))
		if all, err := AddedRoots(c); err != nil || !slices.Equal(all, []AddedRoot{{dir, owner}}) {
			t.Errorf("there are %v, %v", all, err)
		}
	}
}

func TestFoldersThatAreAddedAtOnceAreAllWrittenDown(t *testing.T) {
	c, bots := rootsFixture(t)
	var adding sync.WaitGroup
	for i := range 16 {
		adding.Go(func() {
			r, err := NewRoot(c, filepath.Join(bots, strconv.Itoa(i)))
			if err == nil {
				err = AddRoot(c, r)
			}
			if err != nil {
				t.Errorf("folder %d: %v", i, err)
			}
		})
	}
	adding.Wait()
	if all, err := AddedRoots(c); err != nil || len(all) != 16 {
		t.Errorf("there are %v, %v", all, err)
	}
}

// Every user of the machine can lock a folder that they can open.
func TestNobodyElseKeepsFoldersFromBeingAdded(t *testing.T) {
	c, bots := rootsFixture(t)
	data, err := os.Open(c.DataDir)
	must(t, err)
	defer data.Close()
	must(t, flock(data))
	added := make(chan error, 1)
	r, err := NewRoot(c, filepath.Join(bots, "workspaces"))
	must(t, err)
	go func() { added <- AddRoot(c, r) }()
	select {
	case err := <-added:
		must(t, err)
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for who has locked the data directory")
	}
	if info, err := os.Lstat(WorkspaceRootsFile(c) + ".lock"); err != nil || info.Mode() != 0o600 {
		t.Errorf("what is locked can be opened by others: %v, %v", info, err)
	}
}
