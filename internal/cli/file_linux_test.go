package cli

import (
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/session"
)

// A key is in a file of its own, and a second run does not empty the only copy of it: nobody is asked then.
func TestAKeyGoesIntoAFileThatIsItsOwnersAloneAndIsNotReplaced(t *testing.T) {
	w := newFixture(t)
	run := func(args ...string) (printed, said string, status int) {
		var out, errs bytes.Buffer
		status = Main(t.Context(), "v1", args, &out, &errs)
		return out.String(), errs.String(), status
	}
	dir := t.TempDir()
	entries := func() (names []string) {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			names = append(names, e.Name())
		}
		return names
	}
	c := client.New(must(url.Parse(w.url)), w.key)
	defer c.CloseIdle()
	made, err := client.Call(t.Context(), c, op.CreateOperator(), op.NewOperator{Body: op.With(op.OperatorRequest{Name: "bob", Role: "admin"})})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Open(t.Context(), session.OpenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ args, holds string }{
		"a1": {"agent create writer", "cjagt_"}, "a2": {"agent create other --json", `"key": "cjagt_`}, "a3": {"agent token rotate bot", "cjagt_"},
		"o1": {"operator create ada --role admin", "cjop_"}, "o2": {"operator rotate " + made.Operator.ID, "cjop_"},
		"m1": {"mcp --print-config claude --agent shopper", "Bearer cjagt_"}, "s1": {"session cdp --scope view " + s.ID, "cj"},
	} {
		if name == "a3" {
			if _, said, status := run("agent", "create", "bot"); status != 0 {
				t.Fatal(said)
			}
		}
		file := filepath.Join(dir, name)
		args := append(strings.Fields(test.args), "-o", file)
		printed, said, status := run(args...)
		text, err := os.ReadFile(file)
		if err != nil || status != 0 || printed != "" || !strings.Contains(string(text), test.holds) || strings.Contains(said, string(text)) {
			t.Errorf("%s: %d, %v, printed %q, the file has %q\n%s", test.args, status, err, printed, text, said)
			continue
		}
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", test.args, info.Mode(), err)
		}
		t.Setenv(urlVariable, "http://127.0.0.1:1")
		_, said, status = run(args...)
		t.Setenv(urlVariable, w.url)
		after, err := os.ReadFile(file)
		if status != exitFailure || err != nil || !bytes.Equal(after, text) || !strings.Contains(said, "is there already") {
			t.Errorf("%s, again: %d, %v, the file has %q\n%s", test.args, status, err, after, said)
		}
	}
	// A refusal leaves no file, nor does a name that is none.
	before := strings.Join(entries(), " ")
	for _, args := range [][]string{{"agent", "create", "writer", "-o", filepath.Join(dir, "new")}, {"agent", "create", "NO", "-o", filepath.Join(dir, "new")},
		{"agent", "create", "third", "-o", ""}, {"mcp", "-o", filepath.Join(dir, "new")}} {
		if _, said, status := run(args...); status == 0 || strings.Join(entries(), " ") != before {
			t.Errorf("%q: %d, %q\n%s", args, status, entries(), said)
		}
	}
}

// With sudo, the file is that of the person, whose next command reads it.
func TestAFileThatRootMakesWithSudoIsThePersons(t *testing.T) {
	theirs, roots := t.TempDir(), t.TempDir()
	root := os.Geteuid() == 0 // who is not root cannot give a file away, and need not
	if root {
		if err := os.Chown(theirs, 1234, 1235); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		dir    string
		set    map[string]string
		theirs bool
	}{
		{theirs, nil, false}, {theirs, map[string]string{"SUDO_UID": "1234"}, false}, {theirs, map[string]string{"SUDO_UID": "1234", "SUDO_GID": "1235"}, root},
		{roots, map[string]string{"SUDO_UID": "1234", "SUDO_GID": "1235"}, false}, {theirs, map[string]string{"SUDO_UID": "1236", "SUDO_GID": "1235"}, false},
	} {
		f, err := os.CreateTemp(test.dir, "key")
		if err != nil {
			t.Fatal(err)
		}
		p := &program{getenv: func(name string) string { return test.set[name] }}
		if err := p.giveToCaller(f, test.dir); err != nil {
			t.Errorf("%v: %v", test.set, err)
		}
		want := os.Geteuid()
		if test.theirs {
			want = 1234
		}
		if info, err := f.Stat(); err != nil || int(info.Sys().(*syscall.Stat_t).Uid) != want {
			t.Errorf("%v: it is that of %+v, %v", test.set, info.Sys(), err)
		}
		_ = f.Close() // it was only looked at
	}
}
