// Package inside lets tests of drivers ask what a jail can do, from within.
//
// Template makes the smallest root file system that a jail can start from: a shell, and the program
// internal/jail/jailtest/probe. Connect speaks with that program once a jail runs it as "/bin/probe serve".
//
// Only tests import this package.
package inside

import (
	"bufio"
	"debug/elf"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

// ProbePath is where the probe is in a template.
const ProbePath = "/bin/probe"

// Argv starts the probe so that Connect can speak with it.
func Argv() []string { return []string{ProbePath, "serve"} }

// Build builds the probe, static and for this system, and returns its path.
func Build(t testing.TB) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "probe")
	cmd := exec.Command(testenv.Tool(t, "go"), "build", "-trimpath", "-ldflags=-s -w", "-o", out, "./internal/jail/jailtest/probe")
	cmd.Dir = testenv.Repository(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, text)
	}
	return out
}

// Template fills an empty folder with a root file system: /bin/sh, /bin/probe and the folders that mounts go to.
func Template(t testing.TB, root string) {
	t.Helper()
	for _, d := range []string{"bin", "dev", "etc", "home", "proc", "run", "tmp", "var"} {
		must(t, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	sh, err := filepath.EvalSymlinks("/bin/sh")
	must(t, err)
	install(t, root, sh, "/bin/sh")
	install(t, root, Build(t), ProbePath)
	must(t, os.Symlink("probe", filepath.Join(root, "bin/cp")))
	must(t, os.WriteFile(filepath.Join(root, "etc/hosts"), nil, 0o644))
}

// install copies a program and the libraries that it is linked to.
func install(t testing.TB, root, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	must(t, err)
	dest := filepath.Join(root, to)
	if _, err := os.Stat(dest); err == nil {
		return
	}
	must(t, os.MkdirAll(filepath.Dir(dest), 0o755))
	must(t, os.WriteFile(dest, text, 0o755))
	f, err := elf.Open(from)
	must(t, err)
	defer func() { _ = f.Close() }() // opened for reading
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			name, err := io.ReadAll(p.Open())
			must(t, err)
			loader := strings.TrimRight(string(name), "\x00")
			install(t, root, loader, loader)
		}
	}
	libs, err := f.ImportedLibraries()
	must(t, err)
	for _, l := range libs {
		path := library(l)
		if path == "" {
			t.Fatalf("%s needs %s, which is in none of the usual folders", from, l)
		}
		install(t, root, path, path)
	}
}

func library(name string) string {
	for _, pattern := range []string{"/lib/*-linux-gnu/", "/usr/lib/*-linux-gnu/", "/lib64/", "/usr/lib64/", "/lib/", "/usr/lib/"} {
		if found, err := filepath.Glob(pattern + name); err == nil && len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// Answer is what a probe found.
type Answer struct {
	OK     bool     `json:"ok"`
	Errno  string   `json:"errno"` // such as EPERM
	Error  string   `json:"error"`
	Text   string   `json:"text"`
	List   []string `json:"list"`
	Number int64    `json:"number"`
}

// Probe is a probe that runs in a jail.
type Probe struct {
	t   testing.TB
	in  io.Writer
	out *bufio.Reader
}

// Connect speaks with a probe over its stdin and stdout.
func Connect(t testing.TB, in io.Writer, out io.Reader) *Probe {
	return &Probe{t: t, in: in, out: bufio.NewReader(out)}
}

// Ask runs one probe and fails the test when there is no answer.
func (p *Probe) Ask(name string, args ...string) Answer {
	p.t.Helper()
	a, err := p.Try(name, args...)
	if err != nil {
		p.t.Fatalf("probe %s %q: %v", name, args, err)
	}
	return a
}

// Try runs one probe. An error is that of the connection: the probe may have been ended in the middle.
func (p *Probe) Try(name string, args ...string) (Answer, error) {
	line := strings.Join(append([]string{name}, args...), "\t") + "\n"
	if _, err := io.WriteString(p.in, line); err != nil {
		return Answer{}, err
	}
	text, err := p.out.ReadBytes('\n')
	if err != nil {
		return Answer{}, err
	}
	var a Answer
	return a, json.Unmarshal(text, &a)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
