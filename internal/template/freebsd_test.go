//go:build unix

package template

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// freebsdCommands is one program that stands in for the commands of a FreeBSD host that builds use, written from their
// manual pages. $S/log has its arguments; a file $S/NO-<name> makes the command fail.
const freebsdCommands = `#!/bin/sh
S=@STATE@
name=${0##*/}
echo "$name $*" >>"$S/log"
[ -e "$S/NO-$name" ] && { echo "$name: $(cat "$S/NO-$name")" >&2; exit 1; }
last() { for a in "$@"; do :; done; echo "$a"; }
programs() {
	mkdir -p "$1/usr/local/share/chromium" "$1/usr/local/libdata/ldconfig" "$1/usr/local/lib" "$1/var/db/pkg"
	: >"$1/var/db/pkg/local.sqlite"
	echo chrome >"$1/usr/local/share/chromium/chrome"; chmod 4755 "$1/usr/local/share/chromium/chrome"
	echo /usr/local/share/chromium >"$1/usr/local/libdata/ldconfig/chromium"
}
case $name in
freebsd-version) echo 15.0-RELEASE-p2 ;;
fetch) cp "$S/mirror/${3##*/}" "$2" ;;
tar) [ "$3" = --no-fflags ] || exit 3; exec /bin/tar -x -p -f "$5" -C "$7" ;;
pkg) case $3 in
	install) cat "$2/etc/resolv.conf" >"$S/resolver"; programs "$2" ;;
	query) echo "chromium 142.0_1"; echo "nss 3.118" ;;
	esac ;;
pwd_mkdb) cp "$4" "$3/passwd-made"; : >"$3/pwd.db" ;;
jail) case $1 in
	-f) [ -e "$S/jail-lies" ] && exit 0
	    path=$(sed -n 's/.*path = "\(.*\)";/\1/p' "$2"); cp "$2" "$S/conf"; echo "jid=7 name=$4 path=$path nodying" >>"$S/jails"; echo "devfs $path/dev devfs rw 0 0" >>"$S/mounts" ;;
	-R) sed -i "/name=$2 /d" "$S/jails" ;;
	esac ;;
jls) cat "$S/jails" ;;
mount) cat "$S/mounts" ;;
umount) sed -i "\\| $2 |d" "$S/mounts" ;;
jexec) case "$*" in
	*--version) echo "Chromium 142.0.7444.175" ;;
	esac ;;
ifconfig) ;;
bastille) case $1 in
	create) [ -e "$S/bastille-lies" ] && exit 0
		root=@HOST@/usr/local/bastille/jails/browser/root; mkdir -p "$root"; cp -R "$S/base/." "$root/"
		echo 'boot="on"' >"$root/../settings.conf"; echo "jid=9 name=browser path=$root nodying" >>"$S/jails" ;;
	stop) sed -i "/name=$2 /d" "$S/jails" ;;
	config) echo "boot=\"$5\"" >"@HOST@/usr/local/bastille/jails/$2/settings.conf" ;;
	esac ;;
esac
`

// freebsdHost is a host of FreeBSD made of that program, and a store on it.
type freebsdHost struct {
	t                 *testing.T
	state, host, base string
	*Store
}

func newFreeBSDHost(t *testing.T) *freebsdHost {
	t.Helper()
	testenv.Root(t)
	dir := t.TempDir()
	h := &freebsdHost{t: t, state: filepath.Join(dir, "state"), host: filepath.Join(dir, "host")}
	h.base = filepath.Join(h.state, "base")
	put(t, dir, map[string]string{
		"state/log": "", "state/jails": "", "state/mounts": "", "host/etc/resolv.conf": "nameserver 192.0.2.1\n",
		"state/base/bin/sh": "sh", "state/base/bin/freebsd-version": "#!/bin/sh\nUSERLAND_VERSION=\"15.0-RELEASE-p1\"\n", "state/base/bin/ps": "ps",
		"state/base/usr/bin/su": "su", "state/base/usr/lib/": "", "state/base/lib/": "", "state/base/rescue/ls": "ls",
		"state/base/usr/share/locale/C.UTF-8/LC_CTYPE": "x", "state/base/home": "->usr/home", "state/base/etc/ssh/ssh_host_rsa_key": "",
		"state/base/etc/master.passwd": "# comment\nroot:$6$secret:0:0::0:0:Charlie &:/root:/bin/csh\nnobody:*:65534:65534::0:0:x:/nonexistent:/usr/sbin/nologin\n",
		"state/base/etc/group":         "wheel:*:0:root\nnobody:*:65534:\n",
		"host/usr/local/etc/bastille/bastille.conf": "bastille_prefix=\"/usr/local/bastille\"   ## default\n" +
			"bastille_jailsdir=\"${bastille_prefix}/jails\"\n",
		"host/usr/local/bastille/releases/15.0-RELEASE/": "",
	})
	for name, mode := range map[string]fs.FileMode{"bin/sh": 0o555, "bin/ps": 0o555, "bin/freebsd-version": 0o555, "usr/bin/su": 0o555 | fs.ModeSetuid} {
		if err := os.Chmod(filepath.Join(h.base, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	h.archive(filepath.Join(h.state, "mirror"))
	program := strings.NewReplacer("@STATE@", h.state, "@HOST@", h.host).Replace(freebsdCommands)
	put(t, dir, map[string]string{"commands/host": program})
	if err := os.Chmod(filepath.Join(dir, "commands/host"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"freebsd-version", "fetch", "tar", "pkg", "pwd_mkdb", "jail", "jls", "mount", "umount", "jexec", "ifconfig", "bastille"} {
		if err := os.Symlink("host", filepath.Join(dir, "commands", name)); err != nil {
			t.Fatal(err)
		}
	}
	recipes := Recipes()
	browser := recipes["browser"]
	browser.NeedBytes = 1
	recipes["browser"] = browser
	h.Store = testStore(t, func(c *Config) {
		c.Run, c.Recipes = hostcmd.Runner{Dir: filepath.Join(dir, "commands")}, recipes
		c.Place = JailPlace{Bridge: "cjk3x9", Address: netip.MustParsePrefix("10.213.0.6/20"), Gateway: netip.MustParseAddr("10.213.0.1")}
	})
	h.goos, h.arch, h.hostRoot = freebsd, "amd64", h.host
	return h
}

// archive makes a base.txz and its MANIFEST in a folder.
func (h *freebsdHost) archive(dir string) {
	h.t.Helper()
	put(h.t, dir, map[string]string{"x/": ""})
	file := filepath.Join(dir, "base.txz")
	if out, err := exec.CommandContext(h.t.Context(), testenv.Tool(h.t, "tar"), "-cf", file, "-C", h.base, ".").CombinedOutput(); err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		h.t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	put(h.t, dir, map[string]string{"MANIFEST": fmt.Sprintf("base-dbg.txz\t%064d\t1\tx\nbase.txz\t%s\t26000\tbase\t\"Base system\"\ton\n", 0, hex.EncodeToString(sum[:]))})
}

// ran reports whether a command with that beginning was run.
func (h *freebsdHost) ran(line string) bool {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(h.state, "log"))
	if err != nil {
		h.t.Fatal(err)
	}
	return slices.ContainsFunc(strings.Split(string(data), "\n"), func(l string) bool { return strings.HasPrefix(l, line) })
}

// set makes a file of the host's state.
func (h *freebsdHost) set(name, text string) { put(h.t, h.state, map[string]string{name: text}) }

func (h *freebsdHost) build(from string) (Template, error) {
	return h.Build(h.t.Context(), BuildOptions{Name: "browser", From: from})
}

// clean looks that nothing of a build is left on the host.
func (h *freebsdHost) clean(templates ...string) {
	h.t.Helper()
	for _, name := range []string{"jails", "mounts"} {
		if data, err := os.ReadFile(filepath.Join(h.state, name)); err != nil || len(data) > 0 {
			h.t.Errorf("%s are left: %s %v", name, data, err)
		}
	}
	var left []string
	for _, name := range names(h.t, h.dir) {
		if name != storeLockName {
			left = append(left, name)
		}
	}
	if !slices.Equal(left, templates) {
		h.t.Errorf("in the folder of templates is %q, want %q", left, templates)
	}
}

// wantFreeBSD holds a template to what every template of FreeBSD has.
func (h *freebsdHost) wantFreeBSD(template Template) {
	h.t.Helper()
	t := h.t
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(template.RootFS(), name))
		if err != nil {
			t.Error(err)
		}
		return string(data)
	}
	if want := (Program{Path: "/usr/local/share/chromium/chrome", Version: "Chromium 142.0.7444.175"}); template.Programs[ProgramFull].Path != want.Path || template.Programs[ProgramFull].Version != want.Version {
		t.Errorf("the browser is %+v", template.Programs)
	}
	if template.Packages["chromium"] != "142.0_1" {
		t.Errorf("packages: %v", template.Packages)
	}
	passwd := read("etc/master.passwd")
	if strings.Contains(passwd, "secret") || !strings.Contains(passwd, "browser:*:1000:1000::0:0::/home/browser:/bin/sh\n") || read("etc/passwd-made") != passwd {
		t.Errorf("accounts:\n%s", passwd)
	}
	if text := read("etc/resolv.conf"); text != "" {
		t.Errorf("the resolver of the build stays: %q", text)
	}
	for _, name := range []string{"usr/bin/su", "usr/local/share/chromium/chrome"} {
		info, err := os.Stat(filepath.Join(template.RootFS(), name))
		if err != nil || info.Mode()&fs.ModeSetuid != 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	for name, there := range map[string]bool{"usr/share/locale/C.UTF-8/LC_CTYPE": true, "rescue/ls": false, "etc/ssh/ssh_host_rsa_key": false} {
		if _, err := os.Lstat(filepath.Join(template.RootFS(), name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	conf, err := os.ReadFile(filepath.Join(h.state, "conf"))
	for _, want := range []string{"\tvnet;\n", "\tdevfs_ruleset = 4711;\n", "\tpersist;\n", "\tchildren.max = 0;\n"} {
		if err != nil || !strings.Contains(string(conf), want) {
			t.Errorf("the jail of the build has no %q: %v\n%s", want, err, conf)
		}
	}
	if report, err := h.Verify(t.Context(), "browser", VerifyOptions{}); err != nil {
		t.Errorf("%v: %+v", err, report)
	}
}

func TestBuildFromTheBaseSystemOfFreeBSD(t *testing.T) {
	h := newFreeBSDHost(t)
	template, err := h.build("")
	if err != nil {
		t.Fatal(err)
	}
	h.wantFreeBSD(template)
	h.clean("browser")
	if !strings.HasPrefix(template.Source, "base.txz:15.0-RELEASE sha256:") {
		t.Errorf("it is from %q", template.Source)
	}
	if resolver, err := os.ReadFile(filepath.Join(h.state, "resolver")); err != nil || string(resolver) != "nameserver 192.0.2.1\n" {
		t.Errorf("packages were installed with the resolver %q, %v", resolver, err)
	}
	const from = "https://download.freebsd.org/releases/amd64/amd64/15.0-RELEASE/"
	for _, line := range []string{"fetch -o " + h.dir, "pkg -r " + h.dir} {
		if !h.ran(line) {
			t.Errorf("%q was not run", line)
		}
	}
	data, _ := os.ReadFile(filepath.Join(h.state, "log")) // it was read before
	for _, want := range []string{from + "base.txz", from + "MANIFEST", " install -y chromium liberation-fonts-ttf ",
		"/sbin/ldconfig -elf /lib /usr/lib /usr/local/lib /usr/local/share/chromium\n",
		"/usr/sbin/chroot -n -G 1000 -g 1000 -u 1000 / /usr/bin/env HOME=/tmp LC_ALL=C.UTF-8 /usr/local/share/chromium/chrome --version\n"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no command has %q in it:\n%s", want, data)
		}
	}
	if _, err := h.build("base.txz"); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("a second one: %v", err)
	}
}

func TestBaseSystemThatIsNotWhatItsManifestSaysIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(*freebsdHost, string){
		"another archive": func(h *freebsdHost, dir string) { put(t, dir, map[string]string{"base.txz": "other"}) },
		"no MANIFEST":     func(h *freebsdHost, dir string) { os.Remove(filepath.Join(dir, "MANIFEST")) },
		"no digest":       func(h *freebsdHost, dir string) { put(t, dir, map[string]string{"MANIFEST": "kernel.txz\tabc\n"}) },
		"no archive":      func(h *freebsdHost, dir string) { os.Remove(filepath.Join(dir, "base.txz")) },
		"a newer system": func(h *freebsdHost, dir string) {
			put(t, h.base, map[string]string{"bin/freebsd-version": "USERLAND_VERSION=\"16.0-RELEASE\"\n"})
			h.archive(dir)
		},
		"no FreeBSD": func(h *freebsdHost, dir string) {
			put(t, h.base, map[string]string{"bin/freebsd-version": "echo\n"})
			h.archive(dir)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFreeBSDHost(t)
			dir := filepath.Join(h.state, "mine")
			h.archive(dir)
			spoil(h, dir)
			_, err := h.build("base.txz:" + filepath.Join(dir, "base.txz"))
			wantCode(t, err, problem.BadTemplate)
			h.clean()
		})
	}
}

func TestBuildThatFailsOnFreeBSDLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct{ file, text, code string }{
		"packages":             {"NO-pkg", "No packages available to install", problem.TemplateBuildFailed},
		"a full disk":          {"NO-pkg", "write error: No space left on device", problem.DiskFull},
		"a jail that is not":   {"jail-lies", "", problem.TemplateBuildFailed},
		"a program that fails": {"NO-jexec", "chrome: Shared object not found", problem.TemplateBuildFailed},
		"accounts":             {"NO-pwd_mkdb", "corrupted entry", problem.TemplateBuildFailed},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFreeBSDHost(t)
			h.set(c.file, c.text)
			_, err := h.build("")
			wantCode(t, err, c.code)
			h.clean()
		})
	}
}

func TestBuildOfAKilledProcessIsSweptOnFreeBSD(t *testing.T) {
	h := newFreeBSDHost(t)
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(h.dir, buildingPrefix+"browser-abc")
	put(t, left, map[string]string{"rootfs/bin/sh": "x"})
	h.set("jails", "jid=7 name=cjbuildabc path="+left+"/rootfs nodying\n")
	h.set("mounts", "/dev/ada0 / ufs rw 1 1\ndevfs "+left+"/rootfs/dev devfs rw 0 0\n")
	if removed, err := h.Sweep(t.Context()); err != nil || len(removed) != 1 {
		t.Fatalf("%v, %v", removed, err)
	}
	h.set("mounts", "")
	h.clean()
	if !h.ran("jail -R cjbuildabc") || !h.ran("umount -f "+left+"/rootfs/dev") {
		t.Error("the jail and its devices stay")
	}
}

func TestBuildWithBastille(t *testing.T) {
	h := newFreeBSDHost(t)
	template, err := h.build("bastille")
	if err != nil {
		t.Fatal(err)
	}
	h.wantFreeBSD(template)
	h.clean("browser")
	if !h.ran("bastille create -T -B --no-boot -g 10.213.0.1 browser 15.0-RELEASE 10.213.0.6/20 cjk3x9") || template.Source != "bastille:browser" {
		t.Errorf("not made as it must be, or it is from %q", template.Source)
	}
	settings, err := os.ReadFile(filepath.Join(h.host, "usr/local/bastille/jails/browser/settings.conf"))
	if err != nil || setting(string(settings), "boot") != "off" {
		t.Errorf("it would be started at boot: %s, %v", settings, err)
	}

	// The jail stays, and is adopted: nothing is made and nothing installed.
	h.set("log", "")
	if _, err := h.Build(t.Context(), BuildOptions{Name: "browser", From: "bastille:browser", Replace: true}); err != nil {
		t.Fatal(err)
	}
	if h.ran("bastille") || h.ran("pkg -r "+h.host) {
		t.Error("what is adopted was changed")
	}
	h.set("jails", "jid=9 name=browser path=/x nodying\n")
	_, err = h.Build(t.Context(), BuildOptions{Name: "browser", From: "bastille", Replace: true})
	wantCode(t, err, problem.Conflict)
}

func TestBastilleIsNotBelieved(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*freebsdHost)
		code  string
	}{
		"a status of 0 without a jail": {func(h *freebsdHost) { h.set("bastille-lies", "") }, problem.TemplateBuildFailed},
		"no bridge":                    {func(h *freebsdHost) { h.set("NO-ifconfig", "interface cjk3x9 does not exist") }, problem.BadTemplate},
		"no installation":              {func(h *freebsdHost) { h.place = JailPlace{} }, problem.BadTemplate},
		"no release":                   {func(h *freebsdHost) { os.Remove(filepath.Join(h.host, "usr/local/bastille/releases/15.0-RELEASE")) }, problem.BadTemplate},
		"not installed":                {func(h *freebsdHost) { os.Remove(filepath.Join(h.host, "usr/local/etc/bastille/bastille.conf")) }, problem.ToolMissing},
		"a thin jail": {func(h *freebsdHost) {
			put(t, h.host, map[string]string{"usr/local/bastille/jails/browser/root/bin": "->/.bastille/bin"})
		}, problem.BadTemplate},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFreeBSDHost(t)
			c.spoil(h)
			_, err := h.build("bastille")
			wantCode(t, err, c.code)
			h.clean()
		})
	}
}

func TestSourcesOfOtherSystemsAreRefused(t *testing.T) {
	for _, c := range []struct{ goos, from, hint string }{
		{"linux", "base.txz", "FreeBSD"}, {"linux", "bastille:browser", "FreeBSD"}, {freebsd, "debian", "base.txz"},
		{freebsd, "oci:docker.io/library/debian:bookworm", "bastille"}, {"darwin", "", "Linux or FreeBSD"}, {"darwin", "base.txz", "Linux or FreeBSD"},
	} {
		s := testStore(t)
		s.goos = c.goos
		_, err := s.Build(t.Context(), BuildOptions{Name: "browser", From: c.from})
		if p, ok := problem.As(err); !ok || p.Code != problem.Unsupported || !strings.Contains(p.Hint, c.hint) {
			t.Errorf("%s on %s: %v", c.from, c.goos, err)
		}
	}
	for _, bad := range []string{"bastille:", "bastille:-a", "bastille:a b", "base.txz:", "bastille:a/b"} {
		_, err := parseSource(bad)
		wantCode(t, err, problem.BadTemplate)
	}
}

func TestMountsOfFreeBSDAreRead(t *testing.T) {
	got := parseFstab("zroot/ROOT\t/\tzfs\trw\t0 0\ntmpfs /a/b\\040c tmpfs rw,noexec 0 0\ndevfs\t/a/dev\tdevfs\trw\t0\t0\nx /ab zfs rw 0 0\n", "/a")
	if want := []mountPoint{{"/a/b c", "tmpfs"}, {"/a/dev", "devfs"}}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	jails := parseJails("jid=3 name=bk3x900042 path=/zroot/x nodying\njid=4 name=y path=\"\" dying\n\n")
	if want := []hostJail{{"3", "bk3x900042", "/zroot/x"}, {"4", "y", ""}}; !slices.Equal(jails, want) {
		t.Errorf("got %v", jails)
	}
}
