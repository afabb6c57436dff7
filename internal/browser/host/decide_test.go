package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// tree makes files; those that end in ! are scripts.
func fakeTree(t *testing.T, files ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range files {
		text := "\x7fELF"
		if rest, ok := strings.CutSuffix(name, "!"); ok {
			name, text = rest, "#!/bin/sh\n"
		}
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func TestBrowsersAreFoundInOrder(t *testing.T) {
	const (
		canary   = "/Applications/Google Chrome Canary.app/Contents/MacOS/Google Chrome Canary"
		chromium = "/Applications/Chromium.app/Contents/MacOS/Chromium"
		chrome   = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
		home     = "/Users/ada"
	)
	tests := []struct {
		goos  string
		files []string
		name  string
		path  string
	}{
		{"darwin", []string{chrome, chromium, canary}, "canary", canary},
		{"darwin", []string{chrome, chromium}, "chromium", chromium},
		{"darwin", []string{chrome}, "chrome", chrome},
		{"darwin", []string{chrome, home + canary}, "canary", home + canary},
		{"darwin", []string{home + chromium, chromium}, "chromium", chromium},
		{"darwin", []string{home + chrome}, "chrome", home + chrome},
		{"darwin", []string{"/Applications/Chromium.app/Contents/Info.plist", home + chrome}, "chrome", home + chrome},
		{"darwin", []string{"/usr/bin/chromium"}, "", ""},
		{"linux", []string{"/usr/bin/google-chrome", "/usr/bin/chromium", "/usr/bin/google-chrome-unstable"}, "canary", "/usr/bin/google-chrome-unstable"},
		{"linux", []string{"/usr/bin/google-chrome-unstable", "/usr/bin/google-chrome-canary"}, "canary", "/usr/bin/google-chrome-canary"},
		{"linux", []string{"/usr/bin/google-chrome", "/usr/local/bin/chromium-browser"}, "chromium", "/usr/local/bin/chromium-browser"},
		{"linux", []string{"/usr/bin/google-chrome-stable", "/usr/bin/firefox"}, "chrome", "/usr/bin/google-chrome-stable"},
		// The program behind a script.
		{"linux", []string{"/usr/bin/chromium!", "/usr/lib/chromium/chromium"}, "chromium", "/usr/lib/chromium/chromium"},
		{"linux", []string{"/usr/bin/google-chrome-stable!", "/opt/google/chrome/chrome"}, "chrome", "/opt/google/chrome/chrome"},
		{"linux", []string{"/usr/bin/chromium!"}, "chromium", "/usr/bin/chromium"},
		{"linux", []string{"/Applications/Chromium.app/Contents/MacOS/Chromium"}, "", ""},
	}
	for _, tt := range tests {
		root := fakeTree(t, tt.files...)
		f := finder{goos: tt.goos, root: root, home: home, path: searchPath("/usr/bin")}
		got, err := f.find("")
		if tt.name == "" {
			wantCode(t, err, problem.BrowserMissing)
			continue
		}
		if err != nil || got != (Program{tt.name, root + tt.path}) {
			t.Errorf("%s %v: got %v, %v", tt.goos, tt.files, got, err)
		}
	}
	root := fakeTree(t, "/opt/mine", canary)
	if got, err := (finder{goos: "darwin", root: root}).find("/opt/mine"); err != nil || got.Name != "custom" || got.Path != root+"/opt/mine" {
		t.Errorf("the one of the settings: %v, %v", got, err)
	}
}

func TestAWindowIsForADisplay(t *testing.T) {
	yes, no := true, false
	tests := []struct {
		request *bool
		setting config.Headless
		goos    string
		display string
		want    mode
		fails   bool
	}{
		{nil, config.HeadlessAuto, "linux", "DISPLAY", mode{false, byDefault}, false},
		{nil, config.HeadlessAuto, "linux", "WAYLAND_DISPLAY", mode{false, byDefault}, false},
		{nil, config.HeadlessAuto, "linux", "", mode{true, byFallback}, false},
		{nil, config.HeadlessAuto, "darwin", "", mode{false, byDefault}, false},
		{nil, config.HeadlessYes, "linux", "DISPLAY", mode{true, byConfig}, false},
		{nil, config.HeadlessNo, "linux", "DISPLAY", mode{false, byConfig}, false},
		{nil, config.HeadlessNo, "linux", "", mode{false, byConfig}, true},
		{&no, config.HeadlessYes, "linux", "DISPLAY", mode{false, byRequest}, false},
		{&no, config.HeadlessAuto, "linux", "", mode{false, byRequest}, true},
		{&yes, config.HeadlessNo, "linux", "", mode{true, byRequest}, false},
	}
	for n, tt := range tests {
		e := config.Environment{GOOS: tt.goos, Getenv: func(name string) string {
			if name == tt.display {
				return ":0"
			}
			return ""
		}}
		got, err := decideMode(tt.request, tt.setting, e)
		if got != tt.want || (problem.CodeOf(err) == problem.NoDisplay) != tt.fails {
			t.Errorf("%d: got %v, %v", n, got, err)
		}
		shown := slices.Contains(flags(tt.goos, "/p", got.headless), "--headless=new")
		if shown != got.headless {
			t.Errorf("%d: --headless is there: %v", n, shown)
		}
	}
}

func TestALockIsRemovedOnlyWhenItsOwnerIsGone(t *testing.T) {
	here := machine{Host: "ada", ID: "m1", Boot: "b2", PIDs: "p1"}
	at := func(change func(*machine)) machine {
		m := here
		change(&m)
		return m
	}
	none := owner{}
	tests := []struct {
		name string
		lock string
		last owner
		runs bool
		want verdict
	}{
		{"no lock", "", none, false, lockFree},
		{"own host, runs", "ada-7", none, true, lockInUse},
		{"own host, gone", "ada-7", none, false, lockStale},
		{"a host with a dash, gone", "ada-7", owner{Lock: "x"}, false, lockStale},
		{"other host", "bob-7", none, false, lockUnclear},
		{"other host, a process of that number runs here", "bob-7", none, true, lockUnclear},
		{"old name, gone", "old-7", owner{"old-7", here}, false, lockStale},
		{"old name, runs", "old-7", owner{"old-7", here}, true, lockInUse},
		{"old name, before the last boot", "old-7", owner{"old-7", at(func(m *machine) { m.Boot = "b1" })}, true, lockStale},
		{"own name, before the last boot", "ada-7", owner{"ada-7", at(func(m *machine) { m.Boot = "b1" })}, true, lockStale},
		{"own name, on another machine", "ada-7", owner{"ada-7", at(func(m *machine) { m.ID = "m2" })}, false, lockUnclear},
		{"another container", "ada-7", owner{"ada-7", at(func(m *machine) { m.PIDs = "p2" })}, false, lockUnclear},
		{"a machine that is not known", "bob-7", owner{"bob-7", at(func(m *machine) { m.ID = "" })}, false, lockUnclear},
		{"not a lock", "ada", none, false, lockUnclear},
		{"not a number", "ada-x", none, false, lockUnclear},
		{"everybody", "ada--1", none, false, lockUnclear},
	}
	for _, tt := range tests {
		if got := judge(tt.lock, here, tt.last, func(pid int) bool { return tt.runs }); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestTheBrowserGetsNoKeys(t *testing.T) {
	got := variables([]string{"HOME=/h", "DISPLAY=:0", "LC_ALL=C", "XDG_RUNTIME_DIR=/r", "CLAWJAIL_KEY=secret", "AWS_SECRET_ACCESS_KEY=secret",
		"LD_PRELOAD=/x", "CHROME_LOG_FILE=/x", "https_proxy=http://p"})
	for _, want := range []string{"HOME=/h", "DISPLAY=:0", "LC_ALL=C", "XDG_RUNTIME_DIR=/r", "https_proxy=http://p"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing", want)
		}
	}
	if text := fmt.Sprint(got); strings.Contains(text, "secret") || strings.Contains(text, "/x") {
		t.Errorf("got %v", got)
	}
}

func TestABrowserOfAnotherMachineIsNotDescribedByThisOne(t *testing.T) {
	s := Offline(config.HostBrowser{Enabled: true, ControlURL: "https://desk.example.com:18791", Color: "#FF4500"}, config.Environment{GOOS: "linux"}, "/data")
	if s.URL == "" || s.UserDataDir+s.Detected+s.DetectError+s.CDPURL+s.HeadlessSource != "" {
		t.Errorf("%+v", s)
	}
}

func TestThereIsNoPortAndTheSandboxIsOn(t *testing.T) {
	for _, goos := range []string{"linux", "darwin", "freebsd"} {
		line := strings.Join(flags(goos, "/p", false), " ")
		if strings.Contains(line, "debugging-port") || strings.Contains(line, "sandbox") || !strings.Contains(line, "--user-data-dir=/p ") {
			t.Errorf("%s: %s", goos, line)
		}
		if line = strings.Join(flags(goos, "/p", true), " "); !strings.Contains(line, "--headless=new") || !strings.Contains(line, "--window-size=1280,800") {
			t.Errorf("%s without a window: %s", goos, line)
		}
	}
}

func TestATokenIsMadeOnceAndIsSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config", "browser.token")
	tokens := make(chan Token, 8)
	for range cap(tokens) {
		go func() {
			token, err := EnsureToken(path)
			if err != nil {
				t.Error(err)
			}
			tokens <- token
		}()
	}
	one := <-tokens
	for range cap(tokens) - 1 {
		if other := <-tokens; !other.Equal(one.Text) {
			t.Error("two tokens were made")
		}
	}
	if len(one.Reveal()) < 60 {
		t.Errorf("a token of %d characters", len(one.Reveal()))
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := EnsureToken(path)
	wantCode(t, err, problem.BadConfig)
	if err := errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte("short\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err = EnsureToken(path)
	wantCode(t, err, problem.BadConfig)
}

func TestFilesAreWhereTheSystemHasThem(t *testing.T) {
	tests := []struct {
		goos, home, data, config string
		wantData, wantToken      string
	}{
		{"darwin", "/Users/a", "/ignored", "", "/Users/a/Library/Application Support/clawjail/browser/clawd", "/Users/a/.config/clawjail/browser.token"},
		{"linux", "/home/a", "", "", "/home/a/.local/share/clawjail/browser/clawd", "/home/a/.config/clawjail/browser.token"},
		{"linux", "/home/a", "/d", "/c", "/d/clawjail/browser/clawd", "/c/clawjail/browser.token"},
		{"freebsd", "/home/a", "relative", "relative", "/home/a/.local/share/clawjail/browser/clawd", "/home/a/.config/clawjail/browser.token"},
		{"linux", "", "", "", "", ""},
	}
	for _, tt := range tests {
		e := config.Environment{GOOS: tt.goos, Home: tt.home, Getenv: func(name string) string {
			return map[string]string{"XDG_DATA_HOME": tt.data, "XDG_CONFIG_HOME": tt.config}[name]
		}}
		data, err := DataDir(e)
		token, tokenErr := TokenPath(e)
		if data != tt.wantData || token != tt.wantToken || (err != nil) != (tt.wantData == "") || (tokenErr != nil) != (tt.wantToken == "") {
			t.Errorf("%+v: %s, %s, %v, %v", tt, data, token, err, tokenErr)
		}
	}
}
