package jails

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// A jail finds the files of its template that it has not opened yet, after that was replaced and the host daemon has looked at the
// templates, until it ends.
func TestATemplateIsReplacedUnderARunningJail(t *testing.T) {
	b, c := tiny(t, instance.Options{Settings: testkit.NoPool + "storage: overlay\n"})
	const script = `echo begun; read line; for f in /etc/only-*; do echo "$f"; done; /bin/cat /etc/hosts >/dev/null && echo whole; read line`
	run := func() (ended func(), answer func() []string, say io.Writer) {
		j, err := c.Create(t.Context(), jailtest.Subject{Template: "tiny"}.Spec(script))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(j.Stdio.Close)
		lines := bufio.NewScanner(j.Stdio.Out)
		if !lines.Scan() || lines.Text() != "begun" {
			t.Fatalf("it has not begun: %q", lines.Text())
		}
		return func() {
				if err := c.Destroy(t.Context(), j.Name); err != nil {
					t.Error(err)
				}
			}, func() (out []string) {
				for len(out) < 2 && lines.Scan() {
					out = append(out, lines.Text())
				}
				return out
			}, j.Stdio.In
	}
	end, answer, say := run()

	root := filepath.Join(t.TempDir(), "root")
	inside.Template(t, root)
	testkit.CopyFile(t, testenv.Tool(t, "cat"), filepath.Join(root, "bin/cat"))
	if err := os.WriteFile(filepath.Join(root, "etc/only-new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	must := func(args ...string) {
		t.Helper()
		if out, err := b.Run(t.Context(), args...); err != nil {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	left := func() (n int) {
		t.Helper()
		must("template", "ls") // which sweeps
		all, err := filepath.Glob(filepath.Join(b.Config.TemplatesDir, ".building-tiny-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	must("template", "build", "tiny", "--replace", "--from", "dir:"+root)
	if n := left(); n != 1 {
		t.Errorf("%d folders hold the old template, want 1", n)
	}
	if _, err := c.Templates(t.Context()); err != nil { // the host daemon sweeps, too
		t.Error(err)
	}
	endNew, answerNew, sayNew := run()
	for _, w := range []io.Writer{say, sayNew} {
		if _, err := io.WriteString(w, "go\n"); err != nil {
			t.Fatal(err)
		}
	}
	if got := answer(); !slices.Equal(got, []string{"/etc/only-*", "whole"}) {
		t.Errorf("the jail that ran then: %q", got)
	}
	if got := answerNew(); !slices.Equal(got, []string{"/etc/only-new", "whole"}) {
		t.Errorf("a jail that was made afterwards: %q", got)
	}
	end()
	if n := left(); n != 0 {
		t.Errorf("%d folders are left, while no jail runs from the old template", n)
	}
	endNew()
}
