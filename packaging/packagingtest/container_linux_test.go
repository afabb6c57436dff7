package packagingtest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

// installed is a package of this machine.
type installed struct {
	name, needs string
	always      bool
}

// packagesHere are the packages of this machine, by their names and by what they provide.
func packagesHere(t *testing.T) map[string]installed {
	t.Helper()
	testenv.Tool(t, "dpkg-query")
	const format = "${db:Status-Abbrev}\t${Package}\t${Essential}${Priority}\t${Pre-Depends},${Depends}\t${Provides}\n"
	out, err := exec.CommandContext(t.Context(), "dpkg-query", "-W", "-f", format).Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]installed{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 5 || !strings.HasPrefix(f[0], "ii") {
			continue
		}
		p := installed{name: f[1], needs: f[3], always: strings.HasPrefix(f[2], "yes") || strings.HasSuffix(f[2], "required")}
		all[p.name] = p
		for provided := range strings.SplitSeq(f[4], ",") {
			if name := bare(provided); name != "" && all[name].name == "" {
				all[name] = p
			}
		}
	}
	return all
}

// bare is a name out of a list of dependencies: without versions and architectures.
func bare(text string) string {
	name, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	name, _, _ = strings.Cut(name, ":")
	return name
}

// smallDebian fills a folder with the packages of this machine that a small Debian has, that the package needs and that it
// recommends, as they are installed here. There is no network in a test to bring others, and no source of packages in it.
func smallDebian(t *testing.T, root string) {
	t.Helper()
	here, chosen := packagesHere(t), map[string]bool{}
	todo := []string{"apt", "runc", "e2fsprogs", "passwd", "ca-certificates", "debootstrap", "debian-archive-keyring", "libnss3-tools"}
	for _, name := range todo {
		if here[name].name == "" {
			testenv.Missing(t, "the package "+name, "run `make setup`, on Debian or Ubuntu")
		}
	}
	for _, p := range here {
		if p.always {
			todo = append(todo, p.name)
		}
	}
	for len(todo) > 0 {
		p := here[todo[0]]
		todo = todo[1:]
		if p.name == "" || chosen[p.name] {
			continue
		}
		chosen[p.name] = true
		for list := range strings.SplitSeq(p.needs, ",") {
			for one := range strings.SplitSeq(list, "|") {
				if name := bare(one); here[name].name != "" {
					todo = append(todo, name)
					break
				}
			}
		}
	}

	files := []string{"/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/ld.so.cache", "/etc/ssl", "/var/lib/dpkg/info", "/var/lib/dpkg/diversions"}
	for _, link := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if _, err := os.Lstat(link); err == nil {
			files = append(files, link)
		}
	}
	names := make([]string, 0, len(chosen))
	for name := range chosen {
		names = append(names, name)
		of, err := exec.CommandContext(t.Context(), "dpkg-query", "-L", name).Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for path := range strings.Lines(string(of)) {
			if path = strings.TrimSpace(path); strings.HasPrefix(path, "/") && path != "/." && !strings.HasPrefix(path, "/usr/share/doc/") {
				files = append(files, path)
			}
		}
		lists, err := filepath.Glob("/var/lib/dpkg/info/" + name + "[.:]*")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, lists...)
	}
	more, err := filepath.Glob("/etc/alternatives/*")
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := filepath.Glob("/etc/ssl/certs/*")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.Concat(files, more, certificates)
	files = slices.DeleteFunc(files, func(path string) bool { _, err := os.Lstat(path); return err != nil })
	for _, dir := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} { // where those links lead
		if err := os.MkdirAll(filepath.Join(root, "usr", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	list := filepath.Join(t.TempDir(), "files")
	if err := errors.Join(os.WriteFile(list, []byte(strings.Join(files, "\x00")), 0o600), os.MkdirAll(root, 0o755)); err != nil {
		t.Fatal(err)
	}
	copying := exec.CommandContext(t.Context(), "sh", "-c", `tar -C / --no-recursion --null -T "$1" -cf - | tar -C "$2" --keep-directory-symlink -xf -`, "sh", list, root)
	if out, err := copying.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	status, err := os.ReadFile("/var/lib/dpkg/status")
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for block := range strings.SplitSeq(string(status), "\n\n") {
		first, _, _ := strings.Cut(block, "\n")
		if slices.Contains(names, strings.TrimPrefix(first, "Package: ")) {
			kept = append(kept, block)
		}
	}
	for _, dir := range []string{"tmp", "proc", "sys", "dev", "run", "root", "var/tmp", "var/log", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), []byte(strings.Join(kept, "\n\n")+"\n"), 0o644),
		os.RemoveAll(filepath.Join(root, "etc/apt/sources.list")), os.RemoveAll(filepath.Join(root, "etc/apt/sources.list.d")),
		os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
}

// TestTheContainersImageIsBuiltAndRuns builds the image of packaging/container with an engine, as its first lines say, with
// the package manager of its base and the package, and runs the program that is in it.
func TestTheContainersImageIsBuiltAndRuns(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Time)
	client, dir := testenv.Tool(t, "docker"), packages(t)
	file, err := os.ReadFile("../container/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	base := regexp.MustCompile(`(?m)^ARG BASE=(\S+)$`).FindSubmatch(file)
	if base == nil {
		t.Fatal("the Dockerfile names no base")
	}
	deb, err := os.ReadFile(one(t, filepath.Join(dir, "first", "*.deb")))
	if err != nil {
		t.Fatal(err)
	}
	// The build gets the files that it copies, and nothing else of the checkout.
	work, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
	if err := errors.Join(os.MkdirAll(filepath.Join(work, "out", "packages"), 0o755), os.MkdirAll(filepath.Join(work, "packaging", "container"), 0o755),
		os.WriteFile(filepath.Join(work, "out", "packages", "clawjail_1.0.0_"+runtime.GOARCH+".deb"), deb, 0o644),
		os.CopyFS(filepath.Join(work, "packaging", "container"), os.DirFS("../container"))); err != nil {
		t.Fatal(err)
	}
	smallDebian(t, root)
	engine := testenv.StartDocker(t)
	t.Cleanup(func() {
		if err := engine.Stop(); err != nil {
			t.Errorf("stop the engine: %v", err)
		}
	})
	if err := engine.Import(string(base[1]), root); err != nil {
		t.Fatal(err)
	}
	docker := func(args ...string) (string, error) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), client, append([]string{"-H", "unix://" + engine.Socket}, args...)...)
		cmd.Dir, cmd.Env = work, append(os.Environ(), "DOCKER_BUILDKIT=0", "HOME="+t.TempDir())
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			err = errors.Join(err, errors.New(errs.String()))
		}
		return string(out), err
	}
	out, err := docker("build", "--network", "none", "-f", "packaging/container/Dockerfile", "-t", "clawjail", "--build-arg", "ARCH="+runtime.GOARCH, ".")
	if err != nil {
		t.Fatalf("build the image: %v\n%s", err, out)
	}
	if out, err := docker("run", "--rm", "--network", "none", "clawjail", "version"); err != nil || !strings.HasPrefix(out, "clawjail ") {
		t.Errorf("its program: %q, %v", out, err)
	}
	// The base has none: the package is what brought it.
	if out, err := docker("run", "--rm", "--network", "none", string(base[1]), "/usr/bin/clawjail", "version"); err == nil {
		t.Errorf("the base has the program already: %s", out)
	}
}
