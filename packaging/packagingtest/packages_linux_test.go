package packagingtest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/testenv"
)

// built builds the tool, the programs and, twice the same version and once a newer one, the packages.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "clawjail-packages-")
	if err != nil {
		return "", err
	}
	made = dir
	sh := func(dir, command string) error {
		cmd := exec.Command("sh", "-euc", command)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return errors.Join(err, errors.New(string(out)))
		}
		return nil
	}
	return dir, sh("../..", `
export OUT=`+dir+` SOURCE_DATE_EPOCH=1700000000 CGO_ENABLED=0
(cd packaging/nfpm && go build -trimpath -o $OUT/nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm)
mkdir $OUT/programs
go build -trimpath -ldflags '-s -w' -o $OUT/programs/ ./cmd/...
export NFPM=$OUT/nfpm CLAWJAIL_PROGRAMS=$OUT/programs
packaging/packages.sh v1.0.0 $OUT/first `+runtime.GOARCH+`
packaging/packages.sh v1.0.0 $OUT/again `+runtime.GOARCH+`
packaging/packages.sh v1.1.0 $OUT/newer `+runtime.GOARCH)
})

var made string

func TestMain(m *testing.M) {
	status := m.Run()
	if made != "" {
		_ = os.RemoveAll(made) // a folder in the temporary one
	}
	os.Exit(status)
}

func packages(t *testing.T) string {
	t.Helper()
	testenv.Need(t, testenv.Time)
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

func TestPackagesAreTheSameBytesTwice(t *testing.T) {
	dir := packages(t)
	for _, kind := range []string{"*.deb", "*.rpm"} {
		first, err := os.ReadFile(one(t, filepath.Join(dir, "first", kind)))
		if err != nil {
			t.Fatal(err)
		}
		again, err := os.ReadFile(one(t, filepath.Join(dir, "again", kind)))
		if err != nil || !bytes.Equal(first, again) {
			t.Errorf("%s: two builds of one version differ, %v", kind, err)
		}
		newer, err := os.ReadFile(one(t, filepath.Join(dir, "newer", kind)))
		if err != nil || bytes.Equal(first, newer) {
			t.Errorf("%s: two versions are the same, %v", kind, err)
		}
	}
}

// debian is a root file system of Debian that a test may change: the template's below, and a layer of the test's own.
type debian struct {
	t    *testing.T
	root string
}

func newDebian(t *testing.T) debian {
	t.Helper()
	testenv.Need(t, testenv.Root)
	template := filepath.Join(testenv.TemplateNamed(t, "clawbot"), "rootfs")
	dir, err := os.MkdirTemp("/var/lib/clawjail", "test-package-")
	if err != nil {
		t.Fatal(err)
	}
	d := debian{t, filepath.Join(dir, "root")}
	t.Cleanup(func() {
		if err := errors.Join(syscall.Unmount(d.root, 0), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"root", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := "lowerdir=" + template + ",upperdir=" + dir + "/upper,workdir=" + dir + "/work"
	if err := syscall.Mount("overlay", d.root, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	return d
}

// try runs a shell command in it, in namespaces of its own, without a network.
func (d debian) try(command string) (string, error) {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), testenv.Tool(d.t, "unshare"), "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc="+d.root+"/proc",
		"chroot", d.root, "/bin/sh", "-euc", command)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (d debian) run(command string) string {
	d.t.Helper()
	out, err := d.try(command)
	if err != nil {
		d.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

// files lists what is there, but for what package managers keep for themselves.
func (d debian) files() []string {
	d.t.Helper()
	var out []string
	err := filepath.WalkDir(d.root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, d.root)
		for _, own := range []string{"/var/lib/dpkg", "/var/log", "/var/cache", "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/.pwd.lock",
			"/etc/subuid", "/etc/subgid", "/tmp/"} {
			if strings.HasPrefix(name, own) {
				return nil
			}
		}
		out = append(out, name)
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return out
}

func (d debian) bring(path, name string) {
	d.t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(filepath.Join(d.root, "tmp", name), data, 0o644)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

func TestDebianPackageIsInstalledUpgradedRemovedAndPurged(t *testing.T) {
	dir := packages(t)
	d := newDebian(t)
	if _, err := d.try("command -v dpkg useradd flock"); err != nil {
		t.Fatal("the template is no whole Debian")
	}
	// A template has no devices, and has the place where a jail finds what is handed to it: no machine has that.
	d.run("rm -rf /run/clawjail; mknod /dev/null c 1 3")
	// The package's dependencies are not in the template, and there is no network to bring them: dpkg ignores that, and nothing else.
	const install = "dpkg --force-depends --install "
	before := d.files()
	d.bring(one(t, filepath.Join(dir, "first", "*.deb")), "first.deb")
	d.bring(one(t, filepath.Join(dir, "newer", "*.deb")), "newer.deb")

	d.run(install + "/tmp/first.deb")
	if got := d.run("clawjail version; stat -c '%a %U' /usr/bin/clawjail /usr/libexec/clawjail-spawn /etc/clawjail/clawjail.yml; getent passwd clawjail"); !strings.Contains(got, "clawjail control plane") || !strings.Contains(got, "755 root\n755 root\n644 root\n") {
		t.Errorf("after it was installed: %s", got)
	}
	if unit := d.run("cat /usr/lib/systemd/system/clawjail*.service"); strings.Count(unit, "ExecStart=/usr/bin/clawjail ") != 3 || strings.Contains(unit, "/usr/local") {
		t.Errorf("the units start another program:\n%s", unit)
	}
	if enabled := d.run("find /etc/systemd -name 'clawjail*'"); enabled != "" {
		t.Errorf("it has enabled %s", enabled)
	}

	// An upgrade keeps what the operator has changed, and data.
	d.run("echo '# mine' >> /etc/clawjail/clawjail.yml; mkdir -p /var/lib/clawjail/control /var/lib/clawjail/theirs; echo key > /var/lib/clawjail/control/vault.key")
	kept := func(when string) {
		t.Helper()
		if got := d.run("tail -n 1 /etc/clawjail/clawjail.yml; cat /var/lib/clawjail/control/vault.key; getent passwd clawjail"); !strings.HasPrefix(got, "# mine\nkey\nclawjail:") {
			t.Errorf("%s there is %s", when, got)
		}
	}
	d.run(install + "/tmp/newer.deb")
	kept("after the upgrade")
	if got := d.run("dpkg-query -W clawjail"); !strings.Contains(got, "1.1.0") {
		t.Errorf("the upgrade has made it %s", got)
	}
	// With a half that runs, started by hand, nothing could be ended: then no file goes, and the package is whole.
	const installation = `{"id":"k7m2","subnet":"10.203.0.0/20","created":"2026-01-01T00:00:00Z"}`
	d.run("mkdir -m 750 /run/clawjail; umask 077; echo '" + installation + "' > /var/lib/clawjail/installation.json")
	out, err := d.try("flock /run/clawjail/hostd.lock dpkg --remove clawjail")
	if err == nil || !strings.Contains(out, "host daemon of this installation is running") || !strings.Contains(out, "the package stays") {
		t.Errorf("it was removed although a host daemon runs: %v\n%s", err, out)
	}
	if got := d.run("dpkg-query -W -f '${Status}\n' clawjail; dpkg --audit; clawjail version"); !strings.Contains(got, " ok installed\nclawjail ") {
		t.Errorf("after a removal that was refused: %s", got)
	}
	kept("after a removal that was refused")
	d.run("rm -r /run/clawjail /var/lib/clawjail/installation.json")
	d.run("dpkg --remove clawjail")
	kept("after it was removed")
	if _, err := d.try("test -e /usr/bin/clawjail"); err == nil {
		t.Error("the program is still there")
	}

	// A purge takes what is clawjail's, and nothing else: not what is mounted there, though that is of the same file system.
	d.run("mkdir -p /var/lib/clawjail/workspaces/shared /srv/shared; echo theirs > /srv/shared/file")
	out = d.run("unshare --mount sh -c 'mount --bind /srv/shared /var/lib/clawjail/workspaces/shared && dpkg --purge clawjail' 2>&1")
	if got := d.run("cat /srv/shared/file"); got != "theirs\n" || !strings.Contains(out, "mounted below /var/lib/clawjail/workspaces, which stays") {
		t.Errorf("of a folder that was mounted among the workspaces there is %q: %s", got, out)
	}
	d.run("rm -r /srv/shared /var/lib/clawjail/workspaces /run/mount")
	if _, err := d.try("test -d /var/lib/clawjail/theirs"); err != nil {
		t.Error("what somebody else has in the folder is gone")
	}
	d.run("rmdir /var/lib/clawjail/theirs /var/lib/clawjail; ! getent passwd clawjail; ! getent group clawjail")
	after := d.files()
	for _, name := range after {
		if !slices.Contains(before, name) {
			t.Errorf("left: %s", name)
		}
	}
	for _, name := range before {
		if !slices.Contains(after, name) {
			t.Errorf("gone: %s", name)
		}
	}
}

func TestRPMHasTheSameFilesAndScripts(t *testing.T) {
	dir := packages(t)
	rpm := testenv.Tool(t, "rpm")
	out := func(tool string, args ...string) string {
		t.Helper()
		text, err := exec.CommandContext(t.Context(), tool, args...).Output()
		if err != nil {
			t.Fatalf("%s %v: %v", tool, args, err)
		}
		return string(text)
	}
	file := one(t, filepath.Join(dir, "first", "*.rpm"))
	of := func(list string) (names []string) {
		for name := range strings.FieldsSeq(list) {
			if path := strings.TrimPrefix(name, "."); strings.HasPrefix(path, "/") && !strings.HasSuffix(path, "/") {
				names = append(names, path)
			}
		}
		slices.Sort(names)
		return names
	}
	var deb []string
	for line := range strings.Lines(out(testenv.Tool(t, "dpkg-deb"), "-c", one(t, filepath.Join(dir, "first", "*.deb")))) {
		deb = append(deb, of(line)...)
	}
	slices.Sort(deb)
	var files []string
	for line := range strings.Lines(out(rpm, "-qp", "--queryformat", "[%{FILEMODES:perms} %{FILENAMES}\n]", file)) {
		if strings.HasPrefix(line, "-") {
			files = append(files, of(line)...)
		}
	}
	slices.Sort(files)
	if len(files) < 100 || !slices.Equal(files, deb) {
		t.Errorf("the rpm has %d files, the deb %d", len(files), len(deb))
	}
	if got := out(rpm, "-qp", "--configfiles", file); got != "/etc/clawjail/clawjail.yml\n" {
		t.Errorf("its configuration is %q", got)
	}
	if got := out(rpm, "-qp", "--requires", file); !strings.Contains(got, "(runc or crun)") || !strings.Contains(got, "shadow-utils") {
		t.Errorf("it needs %s", got)
	}
	if got := out(rpm, "-qp", "--scripts", file); !strings.Contains(got, "try-restart clawjail-hostd.service") || !strings.Contains(got, "/usr/bin/clawjail uninstall") {
		t.Errorf("its scripts are %s", got)
	}
}

func TestPurgeKnowsEveryNameInTheDataFolder(t *testing.T) {
	text, err := os.ReadFile("../nfpm/postremove.sh")
	if err != nil {
		t.Fatal(err)
	}
	if list := strings.Join(hostd.DataEntries(), " "); !strings.Contains(string(text), "for name in "+list+"; do") {
		t.Errorf("postremove.sh does not name %s", list)
	}
}

func TestInstallAndUninstallBelowDestdir(t *testing.T) {
	testenv.Need(t, testenv.Time)
	dir := t.TempDir()
	sh := func(command string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", command)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "DESTDIR="+dir+"/root", "PREFIX=/opt/claw", "MANUAL="+dir+"/manual", "PROGRAMS="+dir, "SOURCE_DATE_EPOCH=1700000000")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	for _, name := range []string{"clawjail", "clawjail-spawn", "clawjail-shim"} { // what is installed is not looked into
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sh("go run -trimpath ./packaging/manual -out $MANUAL -version 1.2.3; packaging/stage.sh install")
	if got := sh("grep -h ^ExecStart $DESTDIR/opt/claw/lib/systemd/system/*.service"); got != "ExecStart=/opt/claw/bin/clawjail hostd\nExecStart=/opt/claw/bin/clawjail template build --if-missing browser\nExecStart=/opt/claw/bin/clawjail serve\n" {
		t.Errorf("the units start %s", got)
	}
	if info, err := os.Stat(dir + "/root/opt/claw/libexec/clawjail-spawn"); err != nil || info.Mode() != 0o755 {
		t.Errorf("the helper has the mode %v, %v", info.Mode(), err)
	}
	if out := sh("cd $DESTDIR/opt/claw/share && groff -Kutf8 -man -ww -Tutf8 man/man1/*.1 2>&1 >/dev/null; bash -n bash-completion/completions/clawjail"); out != "" {
		t.Errorf("the manual pages and completions have mistakes:\n%.2000s", out)
	}
	if out := sh("gzip -c $DESTDIR/opt/claw/share/man/man1/clawjail-uninstall.1 | zcat"); !strings.Contains(out, `"Nov 2023"`) || !strings.Contains(out, "dry") {
		t.Errorf("a page is %.500s", out)
	}
	sh("echo '# mine' > $DESTDIR/etc/clawjail/clawjail.yml; packaging/stage.sh install")
	if got := sh("cat $DESTDIR/etc/clawjail/clawjail.yml"); got != "# mine\n" {
		t.Errorf("the configuration was replaced: %.100s", got)
	}
	sh("packaging/stage.sh uninstall")
	if got := sh("find $DESTDIR -type f"); got != dir+"/root/etc/clawjail/clawjail.yml\n" {
		t.Errorf("left: %s", got)
	}
}
