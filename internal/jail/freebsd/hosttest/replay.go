//go:build linux

package hosttest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/jail/freebsd/transcript"
)

// Replay runs the commands of a transcript on a new simulated host, in order, and reports every difference of a status or of
// what was said on standard error; standard output is compared too where the entry is not Unchecked. Numbers, addresses and
// folders count as the same. Commands that the simulator has not are left out. After a recording nothing is left on the host.
func Replay(t testing.TB, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was read
	r, err := transcript.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := r.All()
	if err != nil {
		t.Fatal(err)
	}
	h := New(t)
	for _, name := range r.Header.Datasets {
		h.Fill(name, name, nil)
	}
	for _, e := range entries {
		if names()[e.Command[0]] == "" {
			t.Logf("not simulated: %v", e.Command)
			continue
		}
		for path, text := range e.Files {
			path = strings.ReplaceAll(path, "{root}", h.Root())
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "{root}", h.Root())), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		args := make([]string, len(e.Command))
		for i, a := range e.Command {
			args[i] = strings.ReplaceAll(a, "{root}", h.Root())
		}
		e.Stdout, e.Stderr = strings.ReplaceAll(e.Stdout, "{root}", h.Root()), strings.ReplaceAll(e.Stderr, "{root}", h.Root())
		for _, d := range compare(e, func() (string, int, string) { return h.Run(args...) }) {
			t.Errorf("%s: %v: %s", r.Header.System, e.Command, d)
		}
	}
	if r.Header.Recorded == "" {
		return
	}
	for _, thing := range h.Resources() { // a recording removes what it made
		if kind, name, _ := strings.Cut(thing, " "); kind != "dataset" && kind != "mount" && thing != "interface lo0" {
			t.Errorf("%s: the last command leaves %s %s", r.Header.System, kind, name)
		}
	}
}

// compare says how a command ended otherwise than it did on the real host.
func compare(e transcript.Entry, run func() (string, int, string)) []string {
	out, status, errs := run()
	var diff []string
	if status != e.Status {
		diff = append(diff, fmt.Sprintf("status %d, the host %d (%q, the host %q)", status, e.Status, errs, e.Stderr))
	}
	if e.Unchecked {
		return diff
	}
	for _, p := range [][3]string{{"stderr", errs, e.Stderr}, {"stdout", out, e.Stdout}} {
		if normal(p[1]) != normal(p[2]) {
			diff = append(diff, fmt.Sprintf("%s %q, the host %q", p[0], p[1], p[2]))
		}
	}
	return diff
}

func normal(text string) string {
	text = regexp.MustCompile(`/[^\s':,]*`).ReplaceAllString(text, "/")
	return regexp.MustCompile(`[0-9]+`).ReplaceAllString(strings.TrimSpace(text), "N")
}
