package host

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// Program is a browser that is installed.
type Program struct {
	// Name is canary, chromium, chrome, or custom for one that the settings name.
	Name string
	Path string
}

// finder looks for browsers. Root is put before every path, so that a test can bring a file tree of its own.
type finder struct {
	goos, root, home string
	path             []string // folders of programs
}

// candidate is one browser, with the ways it can be installed.
type candidate struct {
	name     string
	app      string   // macOS: the bundle, without .app
	commands []string // names in the PATH
	binaries []string // where the program behind a script is
}

// candidates are in the order in which they are taken: those that a person does not confuse with their own browser come first.
func candidates() []candidate {
	return []candidate{
		{
			name: "canary", app: "Google Chrome Canary",
			commands: []string{"google-chrome-canary", "google-chrome-unstable"},
			binaries: []string{"/opt/google/chrome-canary/chrome", "/opt/google/chrome-unstable/chrome"},
		}, {
			name: "chromium", app: "Chromium",
			commands: []string{"chromium", "chromium-browser"},
			binaries: []string{
				"/usr/lib/chromium/chromium", "/usr/lib/chromium-browser/chromium-browser",
				"/usr/lib64/chromium-browser/chromium-browser", "/usr/local/share/chromium/chrome",
			},
		}, {
			name: "chrome", app: "Google Chrome",
			commands: []string{"google-chrome", "google-chrome-stable", "chrome"},
			binaries: []string{"/opt/google/chrome/chrome"},
		},
	}
}

// find returns the browser to use: the one that the settings name, else the first that is installed.
func (f finder) find(executable string) (Program, error) {
	if executable != "" {
		if !f.executable(executable) {
			return Program{}, problem.New(problem.BrowserMissing, "correct browser.executable in the configuration, or leave it out",
				"%s is not a program that can be run", executable)
		}
		return Program{Name: "custom", Path: f.root + executable}, nil
	}
	for _, c := range candidates() {
		look := f.command
		if f.goos == "darwin" {
			look = f.bundle
		}
		if path, ok := look(c); ok {
			return Program{Name: c.name, Path: path}, nil
		}
	}
	hint := "install Chromium, or set browser.executable in the configuration"
	return Program{}, problem.New(problem.BrowserMissing, hint,
		"no browser is installed: looked for Google Chrome Canary, Chromium and Google Chrome")
}

// bundle looks for a macOS application, for everybody and for the user.
func (f finder) bundle(c candidate) (string, bool) {
	for _, dir := range []string{"/Applications", filepath.Join(f.home, "Applications")} {
		if dir == "Applications" {
			continue // a user without a home
		}
		path := filepath.Join(dir, c.app+".app", "Contents", "MacOS", c.app)
		if !f.executable(path) {
			continue
		}
		if real, err := filepath.EvalSymlinks(f.root + path); err == nil {
			return real, true
		}
	}
	return "", false
}

// command looks for a program in the PATH. Distributions put a script there, which reads flags of its own and may not
// hand on the pipe; the program behind it is taken where it is known.
func (f finder) command(c candidate) (string, bool) {
	for _, name := range c.commands {
		for _, dir := range f.path {
			path := filepath.Join(dir, name)
			if !filepath.IsAbs(path) || !f.executable(path) {
				continue
			}
			real, err := filepath.EvalSymlinks(f.root + path)
			if err != nil {
				continue
			}
			if !isScript(real) {
				return real, true
			}
			for _, binary := range c.binaries {
				if f.executable(binary) && !isScript(f.root+binary) {
					return f.root + binary, true
				}
			}
			if beside := filepath.Join(filepath.Dir(real), "chrome"); executableFile(beside) && !isScript(beside) {
				return beside, true
			}
			return real, true
		}
	}
	return "", false
}

func (f finder) executable(path string) bool { return executableFile(f.root + path) }

func executableFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

func isScript(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close() // only read from
	var start [2]byte
	_, err = io.ReadFull(f, start[:])
	return err == nil && bytes.Equal(start[:], []byte("#!"))
}

// searchPath are the folders where programs are looked for: those of the PATH, and those that a desktop has in it.
func searchPath(path string) []string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/snap/bin"} {
		if !strings.Contains(":"+path+":", ":"+dir+":") {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}
