package template

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// The code in this file and in bastille.go runs on FreeBSD hosts. It was checked on Linux with stand-ins of the host's commands,
// written from their manual pages, and has not run on a FreeBSD host.

const freebsd = "freebsd"

// freebsdMirror is where releases are; CLAWJAIL_FREEBSD_MIRROR names another place with the same folders below it.
const freebsdMirror = "https://download.freebsd.org/releases"

// Bounds of the long steps: a mirror can be slow, and Chromium with its libraries is a gigabyte.
const (
	fetchTime   = 30 * time.Minute
	installTime = time.Hour
)

// releaseName is what a release is called in paths and by Bastille.
var releaseName = regexp.MustCompile(`^(\d+)\.(\d+)-(RELEASE|STABLE|CURRENT|BETA\d+|RC\d+)$`)

// supported says whether this system can build from a source. Listing, verifying and removing work everywhere.
func (s *Store) supported(src source) error {
	own := src.kind == sourceBase || src.kind == sourceBastille
	switch {
	case s.goos == freebsd && (own || src.kind == sourceDir):
		return nil
	case s.goos == freebsd:
		return problem.New(problem.Unsupported, "build it from --from base.txz, --from bastille or --from dir:PATH",
			"%s has programs for Linux, which jails of this host do not run", src.kind)
	case s.goos == "linux" && own:
		return problem.New(problem.Unsupported, "build it on FreeBSD, or here from Debian packages: --from debian",
			"%s has programs for FreeBSD, which jails of this host do not run", src.kind)
	case s.goos == "linux":
		return nil
	}
	return problem.New(problem.Unsupported, "build it on Linux or FreeBSD", "templates cannot be built on this system")
}

// hostRun runs a command of the host. Its output is progress, and the last lines are in the error; the text on
// standard output is returned as well.
func (b *build) hostRun(ctx context.Context, limit time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd, err := b.store.run.Command(ctx, name, args...)
	if errors.Is(err, exec.ErrNotFound) {
		return "", problem.Wrap(err, problem.ToolMissing, "it belongs to FreeBSD, or to the package of its name", "the program %s is not there", name)
	}
	if err != nil {
		return "", err
	}
	for _, v := range []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CA_CERT_FILE", "SSL_CA_CERT_PATH"} {
		if value := b.store.getenv(v); value != "" {
			cmd.Env = append(cmd.Env, v+"="+value)
		}
	}
	cmd.Env = append(cmd.Env, "ASSUME_ALWAYS_YES=yes") // pkg(8) installs itself first where it is not there yet (pkg(7))
	var answer strings.Builder
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&answer, b.out), b.out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("run %s: %w", name, context.Cause(ctx))
		}
		return answer.String(), &toolError{tool: name, err: err, lines: b.out.lines()}
	}
	return answer.String(), nil
}

// machine is FreeBSD's name of an architecture, as its mirrors have it: hw.machine and hw.machine_arch.
func machine(goarch string) (hw, arch string, err error) {
	switch goarch {
	case "amd64":
		return "amd64", "amd64", nil
	case "arm64":
		return "arm64", "aarch64", nil
	}
	return "", "", problem.New(problem.Unsupported, "use a host with amd64 or arm64", "there is no Chromium of FreeBSD for %s", goarch)
}

// release is the release of this host without its patch level: what a new tree is made of, and as new as one may be.
func (b *build) release(ctx context.Context) (string, error) {
	out, err := b.hostRun(ctx, time.Minute, "freebsd-version", "-k")
	if err != nil {
		return "", err
	}
	release, _, _ := strings.Cut(strings.TrimSpace(out), "-p")
	if !releaseName.MatchString(release) {
		return "", fmt.Errorf("freebsd-version says %q, which is no release", strings.TrimSpace(out))
	}
	return release, nil
}

// buildBase makes the tree from the archive of FreeBSD's base system, and packages.
func (b *build) buildBase(ctx context.Context) error {
	packages, err := b.recipe.freebsdPackages(b.options.With)
	if err != nil {
		return err
	}
	release, err := b.release(ctx)
	if err != nil {
		return err
	}
	archive, sum, err := b.baseArchive(ctx, release)
	if err != nil {
		return err
	}
	b.out.stage(StageUnpack, "", 0, nil)
	// Without file flags: the system's immutable ones would keep every clone from being removed (tar(1), chflags(1)).
	if _, err := b.hostRun(ctx, fetchTime, "tar", "-x", "-p", "--no-fflags", "-f", archive, "-C", b.rootfs); err != nil {
		return err
	}
	if err := b.checkUserland(release); err != nil {
		return err
	}
	if err := b.installPackages(ctx, b.rootfs, packages); err != nil {
		return err
	}
	b.template.Source = fmt.Sprintf("%s:%s sha256:%s", sourceBase, release, sum)
	return nil
}

// baseArchive is the archive, fetched if it was not given, after its digest was compared with the release's MANIFEST: that
// which the package freebsd-release-manifests has installed, else the one beside the archive.
func (b *build) baseArchive(ctx context.Context, release string) (file, sum string, err error) {
	hw, arch, err := machine(b.store.arch)
	if err != nil {
		return "", "", err
	}
	b.out.stage(StageFetch, "", 0, nil)
	file = b.source.value
	manifest := filepath.Join(b.store.hostRoot, "usr/local/share/freebsd/MANIFESTS", hw+"-"+arch+"-"+release)
	known := isFile(manifest)
	if file == "" {
		from := strings.TrimSuffix(cmp.Or(b.store.getenv("CLAWJAIL_FREEBSD_MIRROR"), freebsdMirror), "/")
		if !isMirror(from) {
			return "", "", problem.New(problem.BadTemplate, "write it like "+freebsdMirror, "CLAWJAIL_FREEBSD_MIRROR is not the address of a mirror")
		}
		from = strings.Join([]string{from, hw, arch, release}, "/")
		file = filepath.Join(b.work, sourceBase)
		if !known {
			if !strings.HasPrefix(from, "https://") {
				return "", "", problem.New(problem.BadTemplate, "pkg install freebsd-release-manifests, or use an https mirror",
					"there is no checksum for the archive of a mirror without TLS")
			}
			if _, err := b.hostRun(ctx, fetchTime, "fetch", "-o", filepath.Join(b.work, "MANIFEST"), from+"/MANIFEST"); err != nil {
				return "", "", err
			}
		}
		if _, err := b.hostRun(ctx, fetchTime, "fetch", "-o", file, from+"/"+sourceBase); err != nil {
			return "", "", err
		}
	}
	if !known {
		manifest = filepath.Join(filepath.Dir(file), "MANIFEST")
	}
	want, err := manifestSum(manifest)
	if err != nil {
		return "", "", err
	}
	if sum, err = fileSum(file); err != nil {
		return "", "", err
	}
	if sum != want {
		return "", "", problem.New(problem.BadTemplate, "fetch it again, and the MANIFEST of the same release",
			"%s is not what its MANIFEST says: sha256 %s instead of %s", file, sum, want)
	}
	return file, sum, nil
}

// manifestSum reads the MANIFEST of a release: a line per archive, fields separated by tabs, the second is the SHA-256.
func manifestSum(file string) (string, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", problem.New(problem.BadTemplate, "put the MANIFEST of its release beside it, or: pkg install freebsd-release-manifests",
			"there is no %s to check the archive with", file)
	}
	if err != nil {
		return "", fmt.Errorf("read the MANIFEST: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) < 2 || fields[0] != sourceBase {
			continue
		}
		if sum, err := hex.DecodeString(fields[1]); err == nil && len(sum) == sha256.Size {
			return strings.ToLower(fields[1]), nil
		}
	}
	return "", problem.New(problem.BadTemplate, "fetch the MANIFEST again", "%s has no digest of %s", file, sourceBase)
}

func fileSum(file string) (string, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", problem.New(problem.BadTemplate, "give the path of a base.txz", "there is no file %s", file)
	}
	if err != nil {
		return "", err
	}
	defer f.Close() // only read from
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

var userland = regexp.MustCompile(`(?m)^USERLAND_VERSION="([^"]+)"$`)

// checkUserland refuses a tree that is no FreeBSD, and one that is newer than the kernel, which would lack its system calls.
func (b *build) checkUserland(host string) error {
	root, err := os.OpenRoot(b.rootfs)
	if err != nil {
		return fmt.Errorf("open the new tree: %w", err)
	}
	defer root.Close() // only read from
	text, err := readText(root, "bin/freebsd-version")
	if err != nil {
		return err
	}
	found := userland.FindStringSubmatch(text)
	if found == nil || !isProgram(root, "/bin/sh") {
		return problem.New(problem.BadTemplate, "use the base.txz of a release, or a thick jail", "the source has no base system of FreeBSD")
	}
	have, _, _ := strings.Cut(found[1], "-p")
	if versionNumber(have) > versionNumber(host) {
		return problem.New(problem.BadTemplate, "use a source of "+host+", or update the host first",
			"the source is of %s, and the kernel of this host is older: %s", have, host)
	}
	return nil
}

// versionNumber orders releases: 1500 is 15.0.
func versionNumber(release string) int {
	var major, minor int
	// A release that is no number counts as 0, the oldest: then the kernel is new enough.
	_, _ = fmt.Sscanf(release, "%d.%d", &major, &minor)
	return major*100 + minor
}

// installPackages installs packages into a tree with the host's pkg(8), which checks their signatures with the tree's keys.
// Names are resolved by the host; the tree has its resolver only while scripts of packages may run.
func (b *build) installPackages(ctx context.Context, tree string, packages []string) (err error) {
	if len(packages) == 0 {
		return nil
	}
	b.out.stage(StageInstall, "", 0, nil)
	root, err := os.OpenRoot(tree)
	if err != nil {
		return fmt.Errorf("open the new tree: %w", err)
	}
	defer root.Close() // files that are written are closed, with their errors, by their writers
	resolver, err := os.ReadFile(filepath.Join(b.store.hostRoot, "etc/resolv.conf"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the resolver's configuration: %w", err)
	}
	old, err := readText(root, "etc/resolv.conf")
	if err != nil {
		return err
	}
	if err := writeFile(root, "etc/resolv.conf", string(resolver), 0o644); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, writeFile(root, "etc/resolv.conf", old, 0o644)) }()
	_, err = b.hostRun(ctx, installTime, "pkg", append([]string{"-r", tree, "install", "-y"}, packages...)...)
	return err
}

// freebsdPackages are the recipe's packages of FreeBSD with those of the extras.
func (r Recipe) freebsdPackages(with []string) ([]string, error) {
	// The names of extras are checked in one place.
	if _, err := r.packages(with); err != nil {
		return nil, err
	}
	out := append([]string(nil), r.FreeBSD...)
	return append(out, with...), nil // an extra's name is that of its package
}
