package safepath

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

// Links are followed where root has put them, and nowhere else.
func TestLinksOfOthersAreNotFollowed(t *testing.T) {
	testenv.Need(t, testenv.Root)
	const theirs = 1234
	home := t.TempDir()
	mine, other := filepath.Join(home, "mine"), filepath.Join(home, "theirs")
	for _, dir := range []string{mine, other, filepath.Join(mine, "dir"), filepath.Join(other, "dir")} {
		must(t, os.Mkdir(dir, 0o755))
	}
	for _, file := range []string{"mine/file", "mine/dir/file", "theirs/dir/file", "theirs/file"} {
		must(t, os.WriteFile(filepath.Join(home, file), []byte(file), 0o600))
	}
	must(t, os.Symlink("file", filepath.Join(mine, "link")))
	must(t, os.Symlink("../theirs/file", filepath.Join(mine, "to-theirs")))
	must(t, os.Symlink("dir/../../mine/./dir", filepath.Join(mine, "around")))
	must(t, os.Symlink("round", filepath.Join(mine, "round")))
	must(t, os.Symlink(mine, filepath.Join(other, "to-mine")))
	must(t, os.Symlink("file", filepath.Join(other, "link")))
	must(t, os.Link(filepath.Join(mine, "file"), filepath.Join(other, "second")))
	must(t, os.WriteFile(filepath.Join(other, "roots"), nil, 0o600))
	for _, name := range []string{"", "dir", "file", "dir/file"} {
		must(t, os.Chown(filepath.Join(other, name), theirs, theirs))
	}
	for name, want := range map[string]string{
		"mine/file": "mine/file", "mine/link": "mine/file", "mine/to-theirs": "theirs/file", "mine/around/file": "mine/dir/file", "theirs/file": "theirs/file",
		"theirs/dir/file": "theirs/dir/file", "theirs/../mine/file": "mine/file", "mine/round": "", "theirs/to-mine/file": "", "theirs/link": "", "theirs/second": "",
		"theirs/roots": "", "theirs/dir": "", "mine/none": "missing", "mine/none/file": "missing",
	} {
		got, err := believed(filepath.Join(home, name))
		switch {
		case want == "missing" && !errors.Is(err, fs.ErrNotExist), want == "" && !errors.Is(err, ErrPlanted):
			t.Errorf("%s: %q, %v", name, got, err)
		case want != "" && want != "missing" && (err != nil || got != want):
			t.Errorf("%s: %q, %v, want %s", name, got, err, want)
		}
	}
	if _, err := believed("mine/file"); err == nil {
		t.Error("a path that is not absolute is one")
	}
	// The owner of the folder with the link may be another user than the owner of its target.
	must(t, os.Chmod(mine, 0o777))
	if got, err := believed(filepath.Join(mine, "link")); !errors.Is(err, ErrPlanted) {
		t.Errorf("a link in a folder that everybody may write to: %q, %v", got, err)
	}
}

func believed(name string) (string, error) {
	dir, file, err := Reach(name)
	if err != nil {
		return "", err
	}
	f, err := dir.OpenBelieved(file)
	if err = errors.Join(err, dir.Close()); err != nil {
		return "", err
	}
	text, err := io.ReadAll(f)
	return string(text), errors.Join(err, f.Close())
}
