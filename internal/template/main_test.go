package template

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/problem"
)

// helperVariable makes the test binary a builder that its parent kills.
const helperVariable = "CLAWJAIL_TEMPLATE_TEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperVariable) {
	case "build":
		os.Exit(helperBuild(os.Args[1], os.Args[2], os.Args[3]))
	case "command":
		os.Exit(helperCommand(os.Args[1], os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

// helperBuild builds a template and says on its standard output which stage it has reached. At the stage with the given
// name it stops until its standard input ends.
func helperBuild(dir, from, barrier string) int {
	s, err := New(Config{Dir: dir, Clock: time.Now})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	last := ""
	_, err = s.Build(context.Background(), BuildOptions{Name: "victim", From: from, Replace: true, Progress: func(p Progress) {
		if p.Stage == last {
			return
		}
		last = p.Stage
		fmt.Println("stage", p.Stage)
		if p.Stage == barrier {
			fmt.Println("waiting")
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // the parent kills us here
		}
	}})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	return 0
}

// helperCommand makes a folder under construction and runs a command in its tree that does not end by itself.
func helperCommand(dir, marker string) int {
	s, err := New(Config{Dir: dir, Clock: time.Now})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	ctx := context.Background()
	path, _, err := s.beginBuilding(ctx, "victim")
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	rootfs := filepath.Join(path, rootfsName)
	if err := hostTree(rootfs); err != nil {
		fmt.Println("error", err)
		return 1
	}
	out := newOutput(func(p Progress) {
		if p.Line != "" {
			fmt.Println(p.Line)
		}
	})
	err = out.run(ctx, command{argv: []string{"/host/usr/bin/env", "sh", "-c", "echo waiting; sleep 1000000 & wait # " + marker}, env: chrootEnv(), chroot: rootfs})
	fmt.Println("error", err)
	return 1
}

// hostTree makes a tree in which the programs of this host run: links into nowhere would do no good, so it has copies
// of the shell, env and sleep with the libraries that they need.
func hostTree(rootfs string) error {
	for _, dir := range []string{"proc", "dev", "run", "tmp", "etc", "host/usr/bin", "usr/bin"} {
		if err := os.MkdirAll(filepath.Join(rootfs, dir), 0o755); err != nil {
			return err
		}
	}
	for _, program := range []string{"/usr/bin/env", "/bin/sh", "/usr/bin/sleep", "/usr/bin/id", "/usr/bin/cat", "/usr/bin/ls"} {
		if err := copyWithLibraries(rootfs, program); err != nil {
			return err
		}
	}
	return os.Link(filepath.Join(rootfs, "/usr/bin/env"), filepath.Join(rootfs, "host/usr/bin/env"))
}

// copyWithLibraries copies a program of this host and the libraries that it needs into a tree.
func copyWithLibraries(rootfs, program string) error {
	files := []string{program}
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		return fmt.Errorf("ldd %s: %w", program, err)
	}
	for field := range strings.FieldsSeq(string(out)) {
		if filepath.IsAbs(field) {
			files = append(files, field)
		}
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		target := filepath.Join(rootfs, file)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, data, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// testStore is a store in a folder of the test.
func testStore(t testing.TB, change ...func(*Config)) *Store {
	t.Helper()
	config := Config{
		Dir:    filepath.Join(t.TempDir(), "data", "templates"),
		Clock:  func() time.Time { return time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC) },
		Getenv: func(string) string { return "" },
	}
	for _, f := range change {
		f(&config)
	}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wantCode fails the test unless the error has the code.
func wantCode(t testing.TB, err error, code string) {
	t.Helper()
	if problem.CodeOf(err) != code {
		t.Fatalf("got the code %q (%v), want %q", problem.CodeOf(err), err, code)
	}
}

// put writes files into a folder; a path that ends in / is a folder, a content that begins with -> a link.
func put(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for _, name := range sortedKeys(files) {
		path := filepath.Join(dir, name)
		parent := filepath.Dir(path)
		if strings.HasSuffix(name, "/") {
			parent = path
		}
		if err := os.MkdirAll(parent, 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			continue
		}
		var err error
		if target, ok := strings.CutPrefix(files[name], "->"); ok {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(files[name]), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// names are what a folder has in it.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, entry := range entries {
		out = append(out, entry.Name())
	}
	return out
}
