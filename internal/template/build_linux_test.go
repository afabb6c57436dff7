package template

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// runIn runs a program in a tree as a build runs what comes out of one, and returns its lines.
func runIn(ctx context.Context, rootfs string, argv ...string) ([]string, error) {
	var lines []string
	out := newOutput(nil)
	out.stage("test", "", 0, func(line string, _ *Progress) bool {
		lines = append(lines, line)
		return true
	})
	err := out.run(ctx, command{argv: argv, env: chrootEnv(), chroot: rootfs, unprivileged: true})
	return lines, err
}

func wantLine(t testing.TB, lines []string, want string) {
	t.Helper()
	if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, want) }) {
		t.Errorf("no line has %q in it:\n%s", want, strings.Join(lines, "\n"))
	}
}

// wantFinished holds a tree to what every template has in common.
func wantFinished(t testing.TB, rootfs string) {
	t.Helper()
	for _, f := range emptyFolders() {
		info, err := os.Lstat(filepath.Join(rootfs, f.path))
		if err != nil || !info.IsDir() || info.Mode()&(fs.ModePerm|fs.ModeSticky) != f.mode {
			t.Errorf("%s is no mount point: %v, %v", f.path, info, err)
		}
	}
	for name, want := range map[string]string{"tmp": "", "run": "clawjail hermit lock", "dev": "mqueue pts shm", "proc": "", "home/browser": "", "state": "", "workspace": ""} {
		if got := strings.Join(names(t, filepath.Join(rootfs, name)), " "); got != want {
			t.Errorf("in %s is %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{"etc/resolv.conf": "", "etc/machine-id": "", "etc/hosts": "127.0.0.1\tlocalhost\n"} {
		info, err := os.Lstat(filepath.Join(rootfs, name))
		if err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s is no file: %v", name, err)
			continue
		}
		if data, err := os.ReadFile(filepath.Join(rootfs, name)); err != nil || string(data) != want {
			t.Errorf("%s is %q, %v", name, data, err)
		}
	}
	for name, want := range map[string]string{ // the template of this machine may be of before agents had a name of their own
		"etc/passwd": `(?m)^(browser:x:1000:1000::/home/browser|agent:x:1000:1000::/state):/bin/sh$`, "etc/group": `(?m)^(browser|agent):x:1000:$`,
		"etc/nsswitch.conf": `(?m)^hosts: files$`,
	} {
		data, err := os.ReadFile(filepath.Join(rootfs, name))
		if err != nil || len(regexp.MustCompile(want).FindAll(data, -1)) != 1 {
			t.Errorf("%s has not one line %s: %q, %v", name, want, data, err)
		}
	}
	shadow, err := os.ReadFile(filepath.Join(rootfs, "etc/shadow"))
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(shadow)) {
		if strings.Split(line, ":")[1] != "*" {
			t.Errorf("an account has a password: %s", line)
		}
	}
	err = filepath.WalkDir(rootfs, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
			t.Errorf("%s has the mode %v", name, info.Mode())
		}
		attributes, err := listAttributes(name)
		if slices.Contains(attributes, fileCapabilities) {
			t.Errorf("%s has capabilities", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// capability is a file capability as the kernel stores it: version 2, effective, CAP_NET_RAW permitted.
func capability() []byte {
	return []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// sourceTree is a folder with a root filesystem in it, and with everything that a template must not have from it.
func sourceTree(t testing.TB) string {
	dir := filepath.Join(t.TempDir(), "source")
	put(t, dir, map[string]string{
		"etc/passwd":               "root:$6$x:0:0:root:/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n",
		"etc/group":                "root:x:0:\nnode:x:1000:\n",
		"etc/shadow":               "root:$6$secret:1:0:99999:7:::\nnode::1:0:99999:7:::\n",
		"etc/resolv.conf":          "->/run/systemd/resolve/stub-resolv.conf",
		"etc/machine-id":           "0123456789abcdef0123456789abcdef\n",
		"etc/ssh/ssh_host_rsa_key": "key", "etc/ssh/ssh_config": "x",
		"etc/apt/auth.conf": "machine m login l password p", "etc/apt/apt.conf.d/proxy": "x", "etc/apt/sources.list.d/a.list": "x",
		"dev": "->/etc", "run": "->../../../../../run", "tmp/left": "x", "var/log/syslog": "x", "var/tmp/left": "x",
		"usr/share/doc/a/copyright": "c", "usr/share/doc/a/changelog.gz": "x", "usr/share/man/man1/a.1": "x",
		"usr/bin/tool": "#!/bin/sh\n", "usr/bin/other": "x", "usr/bin/link": "->tool", "usr/bin/abs": "->/usr/bin/tool",
	})
	for _, program := range []string{"/bin/sh", "/usr/bin/id", "/usr/bin/cat", "/usr/bin/ls"} {
		must(t, copyWithLibraries(dir, program))
	}
	tool := filepath.Join(dir, "usr/bin/tool")
	must(t,
		os.Chmod(tool, 0o755|fs.ModeSetuid|fs.ModeSetgid), os.Link(tool, filepath.Join(dir, "usr/bin/same")),
		os.Lchown(filepath.Join(dir, "usr/bin/other"), 12, 34), os.Chtimes(filepath.Join(dir, "usr/bin/other"), time.Unix(1e9, 5), time.Unix(1e9, 5)),
		unix.Setxattr(filepath.Join(dir, "usr/bin/other"), fileCapabilities, capability(), 0),
		unix.Setxattr(filepath.Join(dir, "usr/bin/other"), "user.note", []byte("kept"), 0),
		os.Chmod(filepath.Join(dir, "var/log"), 0o775|fs.ModeSetgid),
		unix.Mknod(filepath.Join(dir, "usr/bin/device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Mkfifo(filepath.Join(dir, "usr/bin/pipe"), 0o666),
		os.MkdirAll(filepath.Join(dir, "mounted/inside"), 0o755),
	)
	return dir
}

func TestFolderBecomesATemplate(t *testing.T) {
	testenv.Need(t, testenv.Root)
	source := sourceTree(t)
	mounted := filepath.Join(source, "mounted")
	must(t, unix.Mount("tmpfs", mounted, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { must(t, unix.Unmount(mounted, unix.MNT_DETACH)) })
	put(t, source, map[string]string{"mounted/foreign": "x"})

	s := testStore(t)
	ctx := context.Background()
	var stages []string
	built, err := s.Build(ctx, BuildOptions{Name: "mine", From: "dir:" + source, Progress: func(p Progress) {
		if len(stages) == 0 || stages[len(stages)-1] != p.Stage {
			stages = append(stages, p.Stage)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{StageCopy, StageFinish, StageManifest, StagePublish}, stages); diff != "" {
		t.Error(diff)
	}
	got, err := s.Get(ctx, "mine")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(built, got); diff != "" {
		t.Errorf("what was built is not what is there: %s", diff)
	}
	if got.Source != "dir:"+source || got.TaskLimit != defaultTaskLimit || got.Programs[ProgramSh].Path != "/bin/sh" || !got.CreatedAt.Equal(s.clock()) {
		t.Errorf("it is described as %+v", got)
	}
	if diff := cmp.Diff([]string{manifestName, rootfsName, metadataName}, names(t, got.Dir)); diff != "" {
		t.Error(diff)
	}
	rootfs := got.RootFS()
	wantFinished(t, rootfs)
	for _, name := range []string{
		"etc/ssh/ssh_host_rsa_key", "etc/apt/auth.conf", "etc/apt/apt.conf.d/proxy", "etc/apt/sources.list.d/a.list", "var/log/syslog",
		"usr/share/doc/a/changelog.gz", "usr/share/man/man1", "usr/bin/device", "usr/bin/pipe", "mounted/foreign",
	} {
		if _, err := os.Lstat(filepath.Join(rootfs, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	for _, name := range []string{"etc/ssh/ssh_config", "usr/share/doc/a/copyright", "mounted"} {
		if _, err := os.Lstat(filepath.Join(rootfs, name)); err != nil {
			t.Error(err)
		}
	}
	e, err := statEntry(unix.AT_FDCWD, filepath.Join(rootfs, "usr/bin/other"), "other")
	must(t, err)
	if e.uid != 12 || e.gid != 34 || e.stamp.mtime != 1e18+5 {
		t.Errorf("owner or time were lost: %+v", e)
	}
	if value, err := getAttribute(filepath.Join(rootfs, "usr/bin/other"), "user.note"); string(value) != "kept" {
		t.Errorf("an attribute was lost: %q, %v", value, err)
	}
	if target, err := os.Readlink(filepath.Join(rootfs, "usr/bin/abs")); target != "/usr/bin/tool" {
		t.Errorf("a link was changed: %q, %v", target, err)
	}
	one, err := os.Stat(filepath.Join(rootfs, "usr/bin/tool"))
	must(t, err)
	two, err := os.Stat(filepath.Join(rootfs, "usr/bin/same"))
	must(t, err)
	if !os.SameFile(one, two) || one.Mode() != 0o755 {
		t.Errorf("a hard link became two files, or %v is no plain program", one.Mode())
	}

	_, err = s.Build(ctx, BuildOptions{Name: "mine", From: "dir:" + source})
	wantCode(t, err, problem.Conflict)
	verifyFinds(t, s, rootfs)
}

// verifyFinds changes an untouched template in every way and undoes it, and expects Verify to see each.
func verifyFinds(t *testing.T, s *Store, rootfs string) {
	ctx := context.Background()
	file := filepath.Join(rootfs, "usr/bin/tool")
	info, err := os.Stat(file)
	must(t, err)
	for name, change := range map[string]struct {
		do, undo func() error
		want     Report
	}{
		"content of the same size and time": {
			func() error {
				return errors.Join(os.WriteFile(file, []byte("#!/bin/sx\n"), 0o755), os.Chtimes(file, info.ModTime(), info.ModTime()))
			},
			func() error { return os.WriteFile(file, []byte("#!/bin/sh\n"), 0o755) },
			Report{ChangedCount: 2, Changed: []Change{{"/usr/bin/same", []string{"content"}}, {"/usr/bin/tool", []string{"content"}}}},
		},
		"mode": {
			func() error { return os.Chmod(file, 0o755|fs.ModeSetuid) },
			func() error { return os.Chmod(file, 0o755) },
			Report{ChangedCount: 2, Changed: []Change{{"/usr/bin/same", []string{"mode"}}, {"/usr/bin/tool", []string{"mode"}}}},
		},
		"owner of a link": {
			func() error { return os.Lchown(filepath.Join(rootfs, "usr/bin/link"), 5, 5) },
			func() error { return os.Lchown(filepath.Join(rootfs, "usr/bin/link"), 0, 0) },
			Report{ChangedCount: 1, Changed: []Change{{"/usr/bin/link", []string{"owner"}}}},
		},
		"capabilities": {
			func() error {
				return unix.Setxattr(filepath.Join(rootfs, "usr/bin/id"), fileCapabilities, capability(), 0)
			},
			func() error { return unix.Removexattr(filepath.Join(rootfs, "usr/bin/id"), fileCapabilities) },
			Report{ChangedCount: 1, Changed: []Change{{"/usr/bin/id", []string{"attributes"}}}},
		},
		"added": {
			func() error { return os.WriteFile(filepath.Join(rootfs, "usr/bin/new"), nil, 0o644) },
			func() error { return os.Remove(filepath.Join(rootfs, "usr/bin/new")) },
			Report{AddedCount: 1, Added: []string{"/usr/bin/new"}},
		},
		"removed": {
			func() error {
				return os.Rename(filepath.Join(rootfs, "usr/bin/link"), filepath.Join(rootfs, "../kept"))
			},
			func() error {
				return os.Rename(filepath.Join(rootfs, "../kept"), filepath.Join(rootfs, "usr/bin/link"))
			},
			Report{RemovedCount: 1, Removed: []string{"/usr/bin/link"}},
		},
		"a profile": {
			func() error { return os.MkdirAll(filepath.Join(rootfs, "opt/profile/Local Storage"), 0o755) },
			func() error { return os.RemoveAll(filepath.Join(rootfs, "opt")) },
			Report{AddedCount: 3, Added: []string{"/opt", "/opt/profile", "/opt/profile/Local Storage"}, Credentials: []string{"/opt/profile/Local Storage"}},
		},
	} {
		for _, quick := range []bool{true, false} {
			if report, err := s.Verify(ctx, "mine", VerifyOptions{Quick: quick}); err != nil || !report.OK() || quick == (report.Read == report.Files) {
				t.Fatalf("before %s (quick %v): %+v, %v", name, quick, report, err)
			}
			must(t, change.do())
			report, err := s.Verify(ctx, "mine", VerifyOptions{Quick: quick})
			if err == nil {
				t.Errorf("%s (quick %v) was not found", name, quick)
			} else {
				wantCode(t, err, problem.TemplateChanged)
			}
			want := change.want
			want.Template, want.Quick, want.Digest, want.Files, want.Read = "mine", quick, report.Digest, report.Files, report.Read
			if diff := cmp.Diff(want, report); diff != "" {
				t.Errorf("%s (quick %v): %s", name, quick, diff)
			}
			must(t, change.undo())
		}
	}
	// A template that a quick look has found unchanged is not read again, and not compared, until something is touched.
	look := func() (Report, error) { return s.Verify(ctx, "mine", VerifyOptions{Quick: true}) }
	if report, err := look(); err != nil || report.Read == 0 { // what was changed and changed back
		t.Errorf("the first look: %+v, %v", report, err)
	}
	if report, err := look(); err != nil || report.Read != 0 || report.Files == 0 {
		t.Errorf("the second look: %+v, %v", report, err)
	}
	must(t, os.Chtimes(file, info.ModTime(), info.ModTime()))
	if report, err := look(); err != nil || report.Read == 0 {
		t.Errorf("the look after a file was touched: %+v, %v", report, err)
	}
	// A manifest that was exchanged for one that fits a changed tree does not help.
	must(t, os.WriteFile(file, []byte("#!/bin/evil\n"), 0o755))
	entries, err := statTree(ctx, rootfs)
	must(t, err, readContents(ctx, rootfs, entries, every(len(entries)), nil))
	manifest := filepath.Join(rootfs, "../"+manifestName)
	must(t, os.Remove(manifest), writeManifest(manifest, entries))
	for _, quick := range []bool{true, false} {
		_, err = s.Verify(ctx, "mine", VerifyOptions{Quick: quick})
		wantCode(t, err, problem.TemplateChanged)
	}
}

func TestPrivilegesAreStripped(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := sourceTree(t) // its /dev and /run are links, and lead out of it
	privileged := func() (found []string) {
		must(t, filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
			must(t, err)
			info, err := entry.Info()
			must(t, err)
			attributes, err := listAttributes(name)
			if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice|fs.ModeNamedPipe) != 0 || slices.Contains(attributes, fileCapabilities) {
				found = append(found, name)
			}
			return err
		}))
		return found
	}
	if before := privileged(); len(before) < 6 { // setuid twice, capabilities, a folder with setgid, a device, a pipe
		t.Fatalf("the tree has %v before, so that nothing is left shows little", before)
	}
	must(t, stripTree(context.Background(), dir))
	if left := privileged(); len(left) > 0 {
		t.Errorf("privileges are left on %v", left)
	}
	for _, name := range []string{"usr/bin/tool", "usr/bin/link", "dev"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestReplacedTemplateIsThereAtEveryMoment(t *testing.T) {
	testenv.Need(t, testenv.Root)
	s := testStore(t)
	ctx := context.Background()
	source := filepath.Join(t.TempDir(), "source")
	put(t, source, map[string]string{"etc/version": "1"})
	first, err := s.Build(ctx, BuildOptions{Name: "mine", From: "dir:" + source})
	must(t, err)
	put(t, source, map[string]string{"etc/version": "2"})
	seen := 0
	second, err := s.Build(ctx, BuildOptions{Name: "mine", From: "dir:" + source, Replace: true, Progress: func(Progress) {
		seen++
		if data, err := os.ReadFile(filepath.Join(first.RootFS(), "etc/version")); string(data) != "1" {
			t.Errorf("the old template has gone before the new one is there: %q, %v", data, err)
		}
	}})
	must(t, err)
	if data, err := os.ReadFile(filepath.Join(first.RootFS(), "etc/version")); string(data) != "2" || seen == 0 {
		t.Errorf("the new template is not there: %q, %v", data, err)
	}
	if first.Digest == second.Digest {
		t.Error("different trees have the same digest")
	}
	if diff := cmp.Diff([]string{storeLockName, "mine"}, names(t, s.dir)); diff != "" {
		t.Error(diff)
	}
}

func TestATemplateIsReplacedWhileJailsRunFromIt(t *testing.T) {
	testenv.Need(t, testenv.Root)
	jails := []string{"bk3x900001"}
	s := testStore(t, func(c *Config) {
		c.Jails = func(context.Context, string) ([]string, error) { return jails, nil }
	})
	source := filepath.Join(t.TempDir(), "source")
	put(t, source, map[string]string{"etc/version": "1"})
	first, err := s.Build(t.Context(), BuildOptions{Name: "mine", From: "dir:" + source})
	must(t, err)
	old, err := os.OpenRoot(first.RootFS()) // as a jail has it
	must(t, err)
	defer old.Close()
	put(t, source, map[string]string{"etc/version": "2"})
	second, err := s.Build(t.Context(), BuildOptions{Name: "mine", From: "dir:" + source, Replace: true})
	must(t, err)
	if data, err := os.ReadFile(filepath.Join(second.RootFS(), "etc/version")); string(data) != "2" {
		t.Errorf("the new template is not there: %q, %v", data, err)
	}
	jails = append(jails, "bk3x900002")
	if removed, err := s.Sweep(t.Context()); err != nil || len(removed) > 0 {
		t.Errorf("swept while a jail runs: %v, %v", removed, err)
	}
	if data, err := old.ReadFile("etc/version"); string(data) != "1" {
		t.Errorf("the jail has lost its files: %q, %v", data, err)
	}
	jails = jails[1:]
	if removed, err := s.Sweep(t.Context()); err != nil || len(removed) != 1 {
		t.Errorf("swept when it has ended: %v, %v", removed, err)
	}
	if _, err := old.Stat("etc/version"); err == nil {
		t.Error("the old tree is still there")
	}
}

func TestSourceWithACredentialIsRefusedAndNothingStays(t *testing.T) {
	testenv.Need(t, testenv.Root)
	s := testStore(t)
	source := filepath.Join(t.TempDir(), "source")
	put(t, source, map[string]string{"etc/x": "", "home/browser/.config/chromium/Default/Preferences": "x"})
	_, err := s.Build(context.Background(), BuildOptions{Name: "mine", From: "dir:" + source})
	wantCode(t, err, problem.BadTemplate)
	if diff := cmp.Diff([]string{storeLockName}, names(t, s.dir)); diff != "" {
		t.Error(diff)
	}
}

func TestFoldersThatAreNoSourceAreRefused(t *testing.T) {
	testenv.Need(t, testenv.Root)
	s := testStore(t)
	must(t, os.MkdirAll(s.dir, 0o700))
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o644))
	for _, dir := range []string{"/", filepath.Dir(s.dir), s.dir, "/nonexistent/dir", file} {
		_, err := s.Build(context.Background(), BuildOptions{Name: "mine", From: "dir:" + dir})
		wantCode(t, err, problem.BadTemplate)
	}
	if diff := cmp.Diff([]string{storeLockName}, names(t, s.dir)); diff != "" {
		t.Error(diff)
	}
}

func TestFullDiskHasItsCodeAndNothingStays(t *testing.T) {
	testenv.Need(t, testenv.Root)
	small := t.TempDir()
	must(t, unix.Mount("tmpfs", small, "tmpfs", 0, "size=3m"))
	t.Cleanup(func() { must(t, unix.Unmount(small, unix.MNT_DETACH)) })
	s := testStore(t, func(c *Config) { c.Dir = filepath.Join(small, "templates") })
	source := filepath.Join(t.TempDir(), "source")
	put(t, source, map[string]string{"etc/big": strings.Repeat("x", 8<<20)})
	ctx := context.Background()
	_, err := s.Build(ctx, BuildOptions{Name: "mine", From: "dir:" + source})
	wantCode(t, err, problem.DiskFull)
	if diff := cmp.Diff([]string{storeLockName}, names(t, s.dir)); diff != "" {
		t.Error(diff)
	}
	// A build from packages does not even begin.
	_, err = s.Build(ctx, BuildOptions{Name: "browser"})
	wantCode(t, err, problem.DiskFull)
	if diff := cmp.Diff([]string{storeLockName}, names(t, s.dir)); diff != "" {
		t.Error(diff)
	}
}
