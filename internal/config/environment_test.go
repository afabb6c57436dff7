package config

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestPathsFollowTheEnvironment(t *testing.T) {
	user := func(name string, vars map[string]string) Environment {
		return Environment{GOOS: "linux", User: name, Home: "/home/ann", Getenv: variables(vars)}
	}
	freebsd := linuxRoot()
	freebsd.GOOS = "freebsd"
	tests := []struct {
		name         string
		env          Environment
		source, text string
		data, run    string
	}{
		{"root", linuxRoot(), "/x.yml", "", "/var/lib/clawjail", "/run/clawjail"},
		{"root on FreeBSD", freebsd, "/x.yml", "", "/var/db/clawjail", "/var/run/clawjail"},
		{"a user", user("ann", nil), "/x.yml", "", "/home/ann/.local/share/clawjail", "/home/ann/.local/share/clawjail/run"},
		{"a user with XDG", user("ann", map[string]string{"XDG_DATA_HOME": "/d", "XDG_RUNTIME_DIR": "/r"}), "/x.yml", "",
			"/d/clawjail", "/r/clawjail"},
		{"a relative XDG is ignored", user("ann", map[string]string{"XDG_DATA_HOME": "d", "XDG_RUNTIME_DIR": "r"}), "/x.yml", "",
			"/home/ann/.local/share/clawjail", "/home/ann/.local/share/clawjail/run"},
		{"the service's user", user("clawjail", nil), "/x.yml", "", "/var/lib/clawjail", "/run/clawjail"},
		{"the service's user of the file", user("jailer", nil), "/x.yml", "user: jailer", "/var/lib/clawjail", "/run/clawjail"},
		{"a user reading the machine's file", user("ann", nil), SystemFile, "", "/var/lib/clawjail", "/run/clawjail"},
		{"set in the file", user("ann", nil), "/x.yml", "data_dir: /a\nrun_dir: /b", "/a", "/b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := tt.env.Parse(tt.source, []byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if c.DataDir != tt.data || c.RunDir != tt.run || c.TemplatesDir != tt.data+"/templates" {
				t.Errorf("got data %s, run %s, templates %s", c.DataDir, c.RunDir, c.TemplatesDir)
			}
		})
	}
}

func TestUserWithoutHomeIsTold(t *testing.T) {
	e := Environment{GOOS: "linux", User: "nobody", Getenv: variables(nil)}
	if _, err := e.Load(""); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("got %v", err)
	}
}

func TestFindOrder(t *testing.T) {
	home := t.TempDir()
	own := filepath.Join(home, ".config", "clawjail", "clawjail.yml")
	e := Environment{GOOS: "linux", User: "ann", Home: home, Getenv: variables(map[string]string{Variable: "/from/env.yml"})}
	if got := e.Find("/from/flag.yml"); got != "/from/flag.yml" {
		t.Errorf("flag: got %q", got)
	}
	if got := e.Find(""); got != "/from/env.yml" {
		t.Errorf("variable: got %q", got)
	}
	e.Getenv = variables(nil)
	system := ""
	if _, err := os.Stat(SystemFile); err == nil {
		system = SystemFile
	}
	if got := e.Find(""); got != system {
		t.Errorf("no file of one's own: got %q, want %q", got, system)
	}
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := e.Find(""); got != own {
		t.Errorf("own file: got %q, want %q", got, own)
	}
	e.Root = true
	if got := e.Find(""); got != system {
		t.Errorf("root takes a file of its home: got %q, want %q", got, system)
	}
}

func TestLoadRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large.yml")
	if err := os.WriteFile(large, make([]byte, largest+1), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "missing.yml"), dir, pipe, large} {
		_, err := linuxRoot().Load(path)
		p, ok := problem.As(err)
		if !ok || p.Code != problem.BadConfig || p.Hint == "" {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

// fileInfo is what lstat says about one imagined path.
type fileInfo struct {
	name string
	mode fs.FileMode
	uid  uint32
}

func (f fileInfo) Name() string       { return f.name }
func (f fileInfo) Size() int64        { return 0 }
func (f fileInfo) Mode() fs.FileMode  { return f.mode }
func (f fileInfo) ModTime() time.Time { return time.Time{} }
func (f fileInfo) IsDir() bool        { return f.mode.IsDir() }
func (f fileInfo) Sys() any           { return &syscall.Stat_t{Uid: f.uid} }

func TestOnlyWhatRootAloneCanWriteIsTrusted(t *testing.T) {
	folder := fileInfo{mode: fs.ModeDir | 0o755}
	tests := []struct {
		name string
		file fileInfo
		dir  fileInfo
		ok   bool
	}{
		{"root's", fileInfo{mode: 0o644}, folder, true},
		{"somebody's", fileInfo{mode: 0o644, uid: 1000}, folder, false},
		{"writable by its group", fileInfo{mode: 0o664}, folder, false},
		{"writable by all", fileInfo{mode: 0o646}, folder, false},
		{"a link", fileInfo{mode: fs.ModeSymlink | 0o777}, folder, false},
		{"in somebody's folder", fileInfo{mode: 0o644}, fileInfo{mode: fs.ModeDir | 0o755, uid: 1000}, false},
		{"in a folder for all", fileInfo{mode: 0o644}, fileInfo{mode: fs.ModeDir | 0o777}, false},
		{"in a folder for all with the sticky bit", fileInfo{mode: 0o644}, fileInfo{mode: fs.ModeDir | fs.ModeSticky | 0o777}, true},
		{"a file for all with the sticky bit", fileInfo{mode: fs.ModeSticky | 0o666}, folder, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lstat := func(path string) (os.FileInfo, error) {
				switch path {
				case "/etc/clawjail/clawjail.yml":
					return tt.file, nil
				case "/etc/clawjail":
					return tt.dir, nil
				}
				return folder, nil
			}
			err := checkOwnership("/etc/clawjail/clawjail.yml", lstat, 0)
			if (err == nil) != tt.ok {
				t.Errorf("got %v", err)
			}
			if err != nil && problem.CodeOf(err) != problem.BadConfig {
				t.Errorf("code %q", problem.CodeOf(err))
			}
		})
	}
	if err := CheckOwnership("clawjail.yml"); err == nil {
		t.Error("a relative path is trusted")
	}
}

func TestRootReadsOnlyTrustedFiles(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	file := filepath.Join(dir, "clawjail.yml")
	if err := os.WriteFile(file, []byte("user: jailer\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.yml")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		if c, err := LoadTrusted(path); err != nil || c.User != "jailer" {
			t.Errorf("%s: user %q, %v", path, c.User, err)
		}
	}
	if err := os.Chown(file, 12345, 0); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		if _, err := LoadTrusted(path); problem.CodeOf(err) != problem.BadConfig {
			t.Errorf("%s is read although user 12345 can write it: %v", path, err)
		}
	}
}
