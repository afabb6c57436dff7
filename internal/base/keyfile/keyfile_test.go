package keyfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const canary = "canary-7f3a"

func TestFileThatIsNotItsOwnersAloneIsRefused(t *testing.T) {
	write := func(content string, mode fs.FileMode) func(string) error {
		return func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, mode))
		}
	}
	beside := func(make func(from, to string) error) func(string) error {
		return func(path string) error { return errors.Join(write(canary, 0o600)(path+".x"), make(path+".x", path)) }
	}
	for name, tt := range map[string]struct {
		make func(path string) error
		why  Why // zero: it is read
	}{
		"as it should be":       {write(canary, 0o600), 0},
		"that is only read":     {write(canary, 0o400), 0},
		"as long as it may be":  {write(canary+strings.Repeat(" ", 20-len(canary)), 0o600), 0},
		"empty":                 {write("", 0o600), 0},
		"with a second name":    {beside(os.Link), 0},
		"too long":              {write(canary+strings.Repeat(" ", 21-len(canary)), 0o600), Large},
		"that its group reads":  {write(canary, 0o640), Shared},
		"that others read":      {write(canary, 0o604), Shared},
		"that others run":       {write(canary, 0o601), Shared},
		"behind a link":         {beside(os.Symlink), Link},
		"a folder":              {func(path string) error { return os.Mkdir(path, 0o700) }, Irregular},
		"a pipe without an end": {func(path string) error { return unix.Mkfifo(path, 0o600) }, Irregular},
	} {
		path := filepath.Join(t.TempDir(), "some.key")
		if err := tt.make(path); err != nil {
			t.Fatal(err)
		}
		data, info, err := Read(path, 20)
		var refused *Refused
		switch {
		case tt.why == 0 && (err != nil || info == nil || !strings.HasPrefix(string(data), canary[:min(len(data), len(canary))])):
			t.Errorf("a file %s is %q, %v", name, data, err)
		case tt.why != 0 && (!errors.As(err, &refused) || refused.Why != tt.why || data != nil || !strings.HasPrefix(err.Error(), path+" is ") || strings.Contains(err.Error(), "canary")):
			t.Errorf("a file %s is %q, %v", name, data, err)
		}
	}
	if _, _, err := Read(filepath.Join(t.TempDir(), "none"), 20); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file is %v", err)
	}
}

func TestFileOfSomebodyElseIsRefused(t *testing.T) {
	for _, tt := range []struct {
		owner, me int
		refused   bool
	}{{0, 0, false}, {999, 0, false}, {999, 999, false}, {0, 999, false}, {1000, 999, true}, {-1, 999, true}} {
		if strange(tt.owner, tt.me) != tt.refused {
			t.Errorf("user %d and a file of user %d: %v", tt.me, tt.owner, !tt.refused)
		}
	}
	if got := (&Refused{Why: Strange, Owner: 7}).What(); got != "a file of user 7" {
		t.Errorf("it is %q", got)
	}
}

// The folders are made by others: by systemd for a service, by a package, by an engine for a container, by people at home.
func TestFilesAreReadWhereverInstallationsHaveThem(t *testing.T) {
	for name, mode := range map[string]fs.FileMode{
		"/var/lib/clawjail/control": 0o700, "StateDirectory of systemd": 0o750, "/etc/clawjail of a package": 0o755, "a volume of a container": 0o777,
		"a shared volume": fs.ModeSticky | 0o777, "~/.config/clawjail with umask 002": 0o775, "a folder with set-group-ID": fs.ModeSetgid | 0o770,
	} {
		folder := filepath.Join(t.TempDir(), "f")
		if err := errors.Join(os.Mkdir(folder, 0o700), os.Chmod(folder, mode)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, "some.key")
		err := Write(path, 0o600, []byte(canary), os.Link)
		if os.Geteuid() == 0 { // it is the service's own, and root reads it
			err = errors.Join(err, os.Chown(folder, 65534, 65534), os.Chown(path, 65534, 65534))
		}
		if data, _, readErr := Read(path, 20); err != nil || readErr != nil || string(data) != canary {
			t.Errorf("%s: %q, %v, %v", name, data, err, readErr)
		}
	}
}

func TestFileIsWrittenWholeOrNotAtAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "some.key")
	failed := errors.New("no")
	for _, tt := range []struct {
		data  string
		mode  fs.FileMode
		place func(from, to string) error
		want  error
		there string
	}{
		{"one", 0o600, os.Link, nil, "one"}, {"two", 0o600, os.Link, fs.ErrExist, "one"}, {"three", 0o644, os.Rename, nil, "three"},
		{"four", 0o644, func(string, string) error { return failed }, failed, "three"},
	} {
		err := Write(path, tt.mode, []byte(tt.data), tt.place)
		there, readErr := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if !errors.Is(err, tt.want) || readErr != nil || string(there) != tt.there || statErr != nil || info.Mode() != tt.mode {
			t.Errorf("%s: %q, %v, %v, %v", tt.data, there, err, readErr, statErr)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
