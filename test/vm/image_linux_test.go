//go:build vm

package vm

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/template"
	"github.com/clawjail/clawjail/internal/testenv"
)

// cache is where images are kept.
const cache = "/var/cache/clawjail-test"

//go:embed image.sh
var recipe []byte

// guest is what a machine is started from.
type guest struct {
	suite  string // the release of Debian
	kernel string // the suite that its kernel is from, such as its backports
	arch   string // as Debian and Go name it
	dir    string // root.img, vmlinuz, debs, when it is made
}

// foreign guests run programs that this host cannot run.
func (g guest) foreign() bool { return g.arch != runtime.GOARCH }

// templateNames are those that every guest has.
var templateNames = []string{"browser", "clawbot"}

// wanted are the packages that clawjail's own asks for or recommends, and those of others that it has to live beside; image.sh adds
// what those ask for.
var wanted = []string{
	"ca-certificates", "debian-archive-keyring", "debootstrap", "e2fsprogs", "libnss3-tools", "passwd", "runc",
	"busybox-static", "containernetworking-plugins", "docker-compose", "docker.io", "firewalld", "iproute2", "ipset", "iptables", "nftables", "procps", "sqlite3", "ufw",
}

// made makes the image of a guest, unless it is there.
func made(t *testing.T, g guest) guest {
	t.Helper()
	testenv.Need(t, testenv.Root)
	for _, tool := range []string{platforms[g.arch].qemu, "qemu-img", "debootstrap", "depmod", "mke2fs", "debugfs"} {
		testenv.Tool(t, tool)
	}
	key := digest([]byte(g.suite), []byte(g.kernel), []byte(g.arch), recipe, []byte(strings.Join(wanted, " ")))
	g.dir = kept(t, strings.Join([]string{"guest", g.suite, g.kernel, g.arch}, "-"), key, func(dir string) error {
		args := []string{filepath.Join(testenv.Repository(t), "test/vm/image.sh"), g.suite, g.kernel, g.arch, dir}
		if err := run("sh", append(args, wanted...)...); err != nil || !g.foreign() {
			return err
		}
		g.dir = dir
		return secondStage(g)
	})
	return g
}

// templates makes a disk of the templates of this host, so that the guest need not build them. A guest of another
// architecture has built its own.
func templates(t *testing.T, g guest) string {
	t.Helper()
	if g.foreign() {
		return builtInside(t, g)
	}
	var parts [][]byte
	var from string
	for _, name := range templateNames {
		path := testenv.TemplateNamed(t, name)
		from = filepath.Dir(path)
		b, err := os.ReadFile(filepath.Join(path, "template.json"))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, b)
	}
	dir := kept(t, "templates", digest(parts...), func(dir string) error {
		tree := filepath.Join(dir, "tree")
		if err := os.Mkdir(tree, 0o700); err != nil {
			return err
		}
		for _, name := range templateNames {
			if err := run("cp", "--archive", "--reflink=auto", filepath.Join(from, name), tree); err != nil {
				return err
			}
		}
		image := filepath.Join(dir, "templates.img")
		if err := disk(image, "templates", tree, "4G"); err != nil {
			return err
		}
		// In the folder of templates there is nothing but templates.
		return errors.Join(run("debugfs", "-w", "-R", "rmdir lost+found", image), os.RemoveAll(tree))
	})
	return filepath.Join(dir, "templates.img")
}

// mirrored is where a guest reaches the part of Debian's archive that its test has brought.
const mirrored = "127.0.0.1:8000"

// builtInside has a guest build its templates, from packages with the archive's own signatures that are on a disk.
func builtInside(t *testing.T, g guest) string {
	t.Helper()
	repository := testenv.Repository(t)
	var packages []string
	for _, name := range templateNames {
		packages = append(packages, template.Recipes()[name].Packages...)
	}
	sources, err := filepath.Glob(filepath.Join(repository, "internal/template/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	inputs := [][]byte{[]byte(g.dir)}
	for _, source := range append(sources, filepath.Join(repository, "test/vm/mirror.sh")) {
		b, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(source, "_test.go") {
			inputs = append(inputs, b)
		}
	}
	suite := template.Recipes()["browser"].Suite
	dir := kept(t, "built-templates-"+g.arch, digest(inputs...), func(dir string) error {
		tree, empty := filepath.Join(dir, "mirror"), filepath.Join(dir, "empty")
		args := append([]string{filepath.Join(repository, "test/vm/mirror.sh"), suite, g.arch, tree}, packages...)
		if err := errors.Join(os.Mkdir(tree, 0o755), os.Mkdir(empty, 0o700), run("sh", args...)); err != nil {
			return err
		}
		server := `cd "$1" && CGO_ENABLED=0 GOARCH=$2 go build -trimpath -o "$3/server" ./test/vm/mirror`
		if err := run("sh", "-euc", server, "sh", repository, g.arch, tree); err != nil {
			return err
		}
		archive, image := filepath.Join(dir, "mirror.img"), filepath.Join(dir, "templates.img")
		if err := errors.Join(disk(archive, "mirror", tree, "2G"), disk(image, "templates", empty, "4G")); err != nil {
			return err
		}
		if err := run("debugfs", "-w", "-R", "rmdir lost+found", image); err != nil {
			return err
		}
		m := newMachine(t, g, payload(t, g), archive)
		m.keeps = image
		m.boot()
		installs(m)
		m.sh("mkdir /mirror && mount -o ro LABEL=mirror /mirror && systemd-run --unit mirror /mirror/server /mirror " + mirrored)
		for _, name := range templateNames {
			r := m.within(stageLimit, "CLAWJAIL_DEBIAN_MIRROR=http://"+mirrored+"/debian CLAWJAIL_DEBIAN_SECURITY_MIRROR=http://"+mirrored+
				"/debian-security clawjail template build "+name)
			if r.Status != 0 {
				return fmt.Errorf("build %s: %s%s", name, tail(r.Stdout), tail(r.Stderr))
			}
		}
		m.off()
		return errors.Join(os.RemoveAll(tree), os.Remove(empty), os.Remove(archive))
	})
	return filepath.Join(dir, "templates.img")
}

// before is what an upgrade begins with.
var before = flag.String("before", "", "a `revision` of which the package that is upgraded is built; without one it is of these files, as the newer one")

// payload makes the disk with what the test brings: the agent, packages of clawjail and those that they ask for.
func payload(t *testing.T, g guest) string {
	t.Helper()
	repository, dir := testenv.Repository(t), t.TempDir()
	tree := filepath.Join(dir, "tree")
	script := `
cd "$1"
mkdir -p "$2"
CGO_ENABLED=0 GOARCH=$5 go build -trimpath -o "$2/agent" ./test/vm/agent
OUT=$3
export SOURCE_DATE_EPOCH=1700000000 CGO_ENABLED=0
(cd packaging/nfpm && go build -trimpath -o "$OUT/nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm)
export NFPM=$OUT/nfpm
before=.
if [ -n "$6" ]; then
	before=$3/before
	mkdir "$before"
	git archive "$6" | tar -x -C "$before"
fi
"$before/packaging/packages.sh" v1.0.0 "$2/old" "$5"
packaging/packages.sh v1.1.0 "$2/new" "$5"
rm "$2"/*/*.rpm
cp -r "$4" "$2/debs"`
	if err := run("sh", "-euc", script, "sh", repository, tree, dir, filepath.Join(g.dir, "debs"), g.arch, *before); err != nil {
		t.Fatal(err)
	}
	if err := index(filepath.Join(tree, "debs")); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(dir, "payload.img")
	if err := disk(image, "payload", tree, "1G"); err != nil {
		t.Fatal(err)
	}
	return image
}

// index writes the list of packages that apt reads.
func index(dir string) error {
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	var list bytes.Buffer
	for _, deb := range debs {
		fields, err := exec.Command("dpkg-deb", "--field", deb).Output()
		if err != nil {
			return fmt.Errorf("read %s: %w", deb, err)
		}
		content, err := os.ReadFile(deb)
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s\nFilename: ./%s\nSize: %d\nSHA256: %x\n\n", bytes.TrimSpace(fields), filepath.Base(deb), len(content), sha256.Sum256(content))
	}
	return os.WriteFile(filepath.Join(dir, "Packages"), list.Bytes(), 0o644)
}

// disk makes an ext4 image of a folder.
func disk(image, label, tree, size string) error {
	return errors.Join(run("truncate", "-s", size, image), run("mke2fs", "-q", "-t", "ext4", "-L", label, "-d", tree, image))
}

// kept is a folder of the cache that make fills once for a digest. Others of the same name are of older inputs, and go.
func kept(t *testing.T, name, digest string, fill func(dir string) error) string {
	t.Helper()
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close() // nothing is written to it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, name+"-"+digest)
	if _, err := os.Stat(dir); err == nil {
		return dir
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	began := time.Now()
	older, err := filepath.Glob(filepath.Join(cache, name+"-*"))
	for _, path := range older {
		err = errors.Join(err, os.RemoveAll(path))
	}
	partial, errMake := os.MkdirTemp(cache, "partial-")
	if err := errors.Join(err, errMake); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(partial) // also when fill ends the test; afterwards it is not there
	if err := fill(partial); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(partial, dir); err != nil {
		t.Fatal(err)
	}
	t.Logf("made %s in %s", dir, time.Since(began).Round(time.Second))
	return dir
}

func digest(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d ", len(p))
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// run runs a program of this host; what it prints is in the error.
func run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin", "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}
