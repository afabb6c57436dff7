//go:build unix

package zfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// saying is a zfs that prints a text and ends with a status, and writes down what it was called with.
func saying(t *testing.T, stdout, stderr string, status int) (d *Datasets, calls func() string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"out": stdout, "err": stderr,
		"zfs": fmt.Sprintf("#!/bin/sh\necho \"$*\" >>%[1]s/calls\ncat %[1]s/out\ncat %[1]s/err >&2\nexit %[2]d\n", dir, status)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d, err := New(hostcmd.Runner{Dir: dir}, "zroot/clawjail")
	if err != nil {
		t.Fatal(err)
	}
	return d, func() string {
		text, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return string(text)
	}
}

func TestWhatTheCommandSaysIsUnderstood(t *testing.T) {
	for _, tt := range []struct {
		says  string
		means error
		not   error
	}{
		{"cannot destroy 'p/c/x': dataset is busy\n", jail.ErrBusy, jail.ErrHasDependents},
		{"cannot unmount '/x/dependents': pool or dataset is busy\n", jail.ErrBusy, nil},
		{"cannot unmount '/x': Device busy\n", jail.ErrBusy, nil},
		{"umount: /x: target is busy.\ncannot unmount '/x': umount failed\n", jail.ErrBusy, nil},
		{"cannot destroy 'p/c/x@s': snapshot has dependent clones\nuse '-R' to destroy the following datasets:\np/c/y\n", jail.ErrHasDependents, jail.ErrBusy},
		{"cannot destroy 'p/c/x': filesystem has dependent clones\nuse '-R' to destroy the following datasets:\n", jail.ErrHasDependents, jail.ErrBusy},
		{"cannot destroy 'p/c/x': filesystem has children\nuse '-r' to destroy the following datasets:\np/c/x@s\n", jail.ErrHasDependents, jail.ErrBusy},
		{"cannot create 'p/c/x': dataset already exists\n", fs.ErrExist, fs.ErrNotExist},
		{"cannot open 'p/c/x': dataset does not exist\n", fs.ErrNotExist, fs.ErrExist},
		{"could not find any snapshots to destroy; check snapshot names.\n", fs.ErrNotExist, nil},
		{"cannot create 'p/c/x': parent does not exist\n", fs.ErrNotExist, nil},
		{"cannot mount 'p/c/x': filesystem already mounted\n", errMounted, fs.ErrExist},
		{"cannot unmount 'p/c/x': not currently mounted\n", errNotMounted, nil},
		{"cannot destroy 'p/c/x': permission denied\n", fs.ErrPermission, nil},
	} {
		d, _ := saying(t, "", tt.says, 1)
		err := d.zfs(t.Context(), []string{"destroy"}, "x")
		if !errors.Is(err, tt.means) || tt.not != nil && errors.Is(err, tt.not) || !strings.Contains(err.Error(), strings.SplitN(tt.says, "\n", 2)[0]) {
			t.Errorf("%q is %v, want %v", tt.says, err, tt.means)
		}
	}
	d, _ := saying(t, "", "cannot create 'zroot/clawjail/x': out of space\n", 1)
	if err := d.Create(t.Context(), "x", nil); problem.CodeOf(err) != problem.DiskFull {
		t.Errorf("out of space is %v", err)
	}
	d, err := New(hostcmd.Runner{Dir: t.TempDir()}, "zroot/clawjail")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Open(t.Context()); problem.CodeOf(err) != problem.ToolMissing {
		t.Errorf("without the command: %v", err)
	}
}

// A name that says what an error means is not taken for the error.
func TestNamesAreNotTakenForWhatIsSaid(t *testing.T) {
	d, _ := saying(t, "", "cannot destroy 'zroot/clawjail/has.children': I/O error\n", 1)
	if err := d.Destroy(t.Context(), "has.children"); err == nil || errors.Is(err, jail.ErrHasDependents) {
		t.Errorf("%v", err)
	}
}

func TestNamesThatLeadElsewhereNeverReachTheCommand(t *testing.T) {
	d, calls := saying(t, "", "", 0)
	ctx := t.Context()
	for _, name := range []string{"", "-r", "/x", "../x", "x/../y", ".", "x//y", "x/", "x y", "x@", "x@-r", "x@s@t", "x@s/t", "x%y", "x\ny", "x#b", "é",
		strings.Repeat("x", 250)} {
		_, err1 := d.List(ctx, name)
		_, err2 := d.Get(ctx, name, "used")
		for i, err := range []error{err1, err2, d.Create(ctx, name, nil), d.Destroy(ctx, name), d.Mount(ctx, name), d.Unmount(ctx, name, true),
			d.Set(ctx, name, "quota", "1G"), d.Clone(ctx, name, "x", nil), d.Clone(ctx, "x@s", name, nil), d.Snapshot(ctx, name, "s"), d.Snapshot(ctx, "x", name)} {
			if err == nil && !(i == 10 && name == "") {
				t.Errorf("call %d took the name %q", i, name)
			}
		}
	}
	for _, p := range []map[string]string{{"-x": ""}, {"a=b": "c"}, {"mountpoint": "/x\ny"}, {"": "x"}} {
		if err := d.Create(ctx, "x", p); err == nil {
			t.Errorf("the properties %q were taken", p)
		}
	}
	if got := calls(); got != "" {
		t.Errorf("it was called:\n%s", got)
	}
	for _, parent := range []string{"", "zroot", "zroot/", "/zroot/x", "zroot/x@s", "zroot/../x", "-r/x", "zroot/-r", "zroot/" + strings.Repeat("x", 250)} {
		if _, err := New(hostcmd.Runner{}, parent); problem.CodeOf(err) != problem.BadConfig {
			t.Errorf("the parent %q: %v", parent, err)
		}
	}
}

func TestCommandLinesAreThoseThatWereAskedFor(t *testing.T) {
	d, calls := saying(t, "", "", 0)
	ctx := t.Context()
	if err := errors.Join(
		d.Create(ctx, "a/b", map[string]string{"quota": "1G", "mountpoint": "/a b"}), d.Snapshot(ctx, "a/b", "s"),
		d.Clone(ctx, "a/b@s", "c", map[string]string{"atime": "off"}), d.Set(ctx, "c", "readonly", "on"),
		d.Mount(ctx, "c"), d.Unmount(ctx, "c", false), d.Unmount(ctx, "c", true), d.Destroy(ctx, "c"), d.Destroy(ctx, "a/b@s"),
	); err != nil {
		t.Fatal(err)
	}
	const want = `create -o mountpoint=/a b -o quota=1G zroot/clawjail/a/b
snapshot zroot/clawjail/a/b@s
clone -o atime=off zroot/clawjail/a/b@s zroot/clawjail/c
set readonly=on zroot/clawjail/c
mount zroot/clawjail/c
unmount zroot/clawjail/c
unmount -f zroot/clawjail/c
destroy zroot/clawjail/c
destroy zroot/clawjail/a/b@s
`
	if got := calls(); got != want {
		t.Errorf("called as\n%swant\n%s", got, want)
	}
}

func lines(name string, values ...string) string {
	var b strings.Builder
	for i, p := range strings.Split(properties, ",") {
		b.WriteString(name + "\t" + p + "\t" + values[i] + "\n")
	}
	return b.String()
}

func TestListsAreReadExactly(t *testing.T) {
	const p = "zroot/clawjail/jails"
	text := lines(p, "filesystem", "none", "no", "-", "96") + lines(p+"@auto", "snapshot", "-", "-", "-", "0") +
		lines(p+"/b", "filesystem", "/a\tb", "yes", "zroot/clawjail/t@s", "18446") + lines(p+"/a", "filesystem", "legacy", "no", "other/t@s", "0") +
		lines(p+"/v", "volume", "-", "-", "-", "0")
	d, _ := saying(t, text, "", 0)
	got, err := d.List(t.Context(), "jails")
	if err != nil {
		t.Fatal(err)
	}
	want := []Dataset{{Name: "jails/a", Mountpoint: "legacy", Origin: "other/t@s"},
		{Name: "jails/b", Mountpoint: "/a\tb", Origin: "t@s", Mounted: true, Used: 18446}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if snapshots, err := d.Snapshots(t.Context(), "jails"); err != nil || fmt.Sprint(snapshots) != "[jails@auto]" {
		t.Errorf("snapshots %v (%v)", snapshots, err)
	}
	for what, text := range map[string]string{
		"nothing":             "",
		"somebody else's":     lines("zroot/other", "filesystem", "none", "no", "-", "96"),
		"its neighbour":       lines(p, "filesystem", "none", "no", "-", "96") + lines(p+"x", "filesystem", "none", "no", "-", "96"),
		"one line less":       strings.SplitAfterN(lines(p, "filesystem", "none", "no", "-", "96"), "\n", 2)[1],
		"twice the same":      lines(p, "filesystem", "none", "no", "-", "96") + lines(p+"/a", "filesystem", "none", "no", "-", "1") + lines(p+"/a", "filesystem", "none", "no", "-", "1"),
		"a number for humans": lines(p, "filesystem", "none", "no", "-", "96K"),
		"a new type":          lines(p, "bookmark", "none", "no", "-", "96"),
		"half mounted":        lines(p, "filesystem", "none", "maybe", "-", "96"),
		"no tabs":             strings.ReplaceAll(lines(p, "filesystem", "none", "no", "-", "96"), "\t", " "),
	} {
		d, _ := saying(t, text, "", 0)
		if got, err := d.List(t.Context(), "jails"); err == nil {
			t.Errorf("%s was read as %+v", what, got)
		}
	}
	d, _ = saying(t, "", "cannot open 'zroot/clawjail/jails': dataset does not exist\n", 1)
	if got, err := d.List(t.Context(), "jails"); err != nil || got != nil {
		t.Errorf("a dataset that is not there has %v (%v)", got, err)
	}
}

func FuzzParseEntries(f *testing.F) {
	f.Add(lines("p/a", "filesystem", "none", "no", "-", "96"))
	f.Add(lines("p/a", "filesystem", "/x\ty", "yes", "p/b@s", "9") + lines("p/a@s", "snapshot", "-", "-", "-", "0"))
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := parseEntries(text)
		if err != nil {
			return
		}
		var again strings.Builder
		for _, e := range entries {
			if e.name == "" || e.kind == "" || e.origin == "" || e.used < 0 {
				t.Fatalf("%q was read as %+v", text, e)
			}
			if n := len(again.String()); n > len(text) {
				t.Fatal("more was read than there is")
			}
			again.WriteString(e.name)
		}
	})
}
