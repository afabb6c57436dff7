package template

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// debianArch is Debian's name of an architecture that Debian builds Chromium for.
func debianArch(goarch string) (string, error) {
	names := map[string]string{"amd64": "amd64", "arm64": "arm64", "arm": "armhf", "386": "i386", "ppc64le": "ppc64el", "riscv64": "riscv64"}
	if name, ok := names[goarch]; ok {
		return name, nil
	}
	return "", problem.New(problem.Unsupported, "use an image: --from oci:REF", "there are no Debian packages for %s", goarch)
}

// dpkgForBuild holds for a build only. Syncing every file costs most of the time of an installation, and the whole tree
// is synced before it is published; documentation is dropped on the way in, but not what the licences ask to keep.
const dpkgForBuild = `force-unsafe-io
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/lintian/*
path-exclude=/usr/share/help/*
path-exclude=/usr/share/gtk-doc/*
`

// dpkgForBuildPath and policyPath are removed when the tree is finished.
const (
	dpkgForBuildPath = "etc/dpkg/dpkg.cfg.d/clawjail-build"
	policyPath       = "usr/sbin/policy-rc.d"
)

// buildDebian makes the tree from Debian packages. debootstrap makes the smallest system, the security suite is added,
// and only then is everything else installed, so that no package is ever older than the security suite's. Packages are
// downloaded by the host's tools and checked; their scripts run in the chroot, without network.
func (b *build) buildDebian(ctx context.Context) error {
	packages, err := b.recipe.packages(b.options.With)
	if err != nil {
		return err
	}
	arch, err := debianArch(b.store.arch)
	if err != nil {
		return err
	}
	m, err := b.store.findMirrors(b.recipe.Suite)
	if err != nil {
		return err
	}
	env := b.store.hostEnv()
	acquire, err := hostAcquire(ctx, b.out, env)
	if err != nil {
		return err
	}
	unlock, err := b.lockCache(ctx)
	if err != nil {
		return err
	}
	// Downloads are done one build at a time; installing is not.
	locked := true
	release := func() {
		if locked {
			unlock()
			locked = false
		}
	}
	defer release()

	bootstrapped, err := b.bootstrap(ctx, m, arch, proxyEnv(acquire, env))
	if err != nil {
		return err
	}
	a := &apt{
		dir: filepath.Join(b.work, "apt"), rootfs: b.rootfs, cache: b.store.cache,
		env: slices.Clone(env), out: b.out, acquire: acquire,
	}
	if err := a.prepare(m, b.recipe.Suite, arch); err != nil {
		return err
	}
	if err := a.update(ctx); err != nil {
		return err
	}
	wanted, err := a.plan(ctx, packages)
	if err != nil {
		return err
	}
	debs := filepath.Join(b.work, "debs")
	if err := a.download(ctx, wanted, packages, debs); err != nil {
		return err
	}
	if err := b.pruneCache(wanted, bootstrapped); err != nil {
		return err
	}
	release()
	if err := b.install(ctx, wanted, debs); err != nil {
		return err
	}
	b.template.Source = "debian:" + b.recipe.Suite
	return nil
}

// bootstrap makes the smallest Debian, in the two steps that debootstrap has: fetching and unpacking with network and
// without running anything of it, then configuring in the chroot without network. It returns the names of
// the package files that it used.
func (b *build) bootstrap(ctx context.Context, m mirrors, arch string, env []string) ([]string, error) {
	tool, err := lookTool("debootstrap", "debootstrap")
	if err != nil {
		return nil, err
	}
	count := func(line string, p *Progress) bool {
		if strings.HasPrefix(line, "I: Retrieving ") || strings.HasPrefix(line, "I: Extracting ") || strings.HasPrefix(line, "I: Configuring ") {
			p.Done++
		}
		return true
	}
	b.out.stage(StageBootstrap, "packages", 0, count)
	if err := b.out.run(ctx, command{
		argv: []string{
			tool, "--foreign", "--variant=minbase", "--arch=" + arch, "--keyring=" + m.keyring, "--force-check-gpg",
			"--merged-usr", "--cache-dir=" + b.store.cache, b.recipe.Suite, b.rootfs, m.main,
		},
		env: env,
	}); err != nil {
		return nil, err
	}
	used, err := filepath.Glob(filepath.Join(b.rootfs, "var/cache/apt/archives/*.deb"))
	if err != nil {
		return nil, fmt.Errorf("look at the bootstrap's packages: %w", err)
	}
	for i := range used {
		used[i] = filepath.Base(used[i])
	}
	root, err := os.OpenRoot(b.rootfs)
	if err != nil {
		return nil, fmt.Errorf("open the new tree: %w", err)
	}
	defer root.Close()
	if err := mountPoints(root); err != nil {
		return nil, err
	}
	for _, file := range []struct {
		path, content string
		mode          fs.FileMode
	}{
		{dpkgForBuildPath, dpkgForBuild, 0o644},
		{policyPath, "#!/bin/sh\nexit 101\n", 0o755}, // no service is started while packages are installed
	} {
		if err := writeFile(root, file.path, file.content, file.mode); err != nil {
			return nil, err
		}
	}
	return used, b.out.run(ctx, command{
		argv: []string{"/debootstrap/debootstrap", "--second-stage"}, env: chrootEnv(), chroot: b.rootfs,
	})
}

// install installs downloaded packages in the chroot. All of them are named as files, so apt there needs no lists, no
// configuration and no network, and finds the right order by itself.
func (b *build) install(ctx context.Context, packages []aptPackage, debs string) error {
	total := int64(len(packages))
	b.out.stage(StageInstall, "packages", total, func(line string, p *Progress) bool {
		if percent, ok := aptPercent(line, "pmstatus:"); ok {
			p.Done = int64(percent / 100 * float64(total))
		}
		return aptLine(line, p)
	})
	if total == 0 {
		return nil
	}
	argv := []string{
		"/usr/bin/apt-get", "-y", "-q", "-o", "APT::Status-Fd=3", "-o", "Dpkg::Use-Pty=0", "-o", "APT::Sandbox::User=root",
		// debootstrap has left lists. With them, apt would try to fetch again what it was given.
		"-o", "Dir::Etc::SourceList=/dev/null", "-o", "Dir::Etc::SourceParts=/dev/null", "-o", "Dir::State::Lists=/run/lists",
		"-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",
		"--no-install-recommends", "install",
	}
	for _, p := range packages {
		argv = append(argv, filepath.Join(buildMount, "debs", p.file))
	}
	if err := b.out.run(ctx, command{
		argv: argv, env: chrootEnv(), chroot: b.rootfs, binds: map[string]string{debs: filepath.Join(buildMount, "debs")},
	}); err != nil {
		return err
	}
	b.out.advance(total)
	return nil
}

// pruneCache removes other versions of what this build uses, so that the cache grows with the number of packages and
// not with the number of builds. The bootstrap's own files stay: it takes older versions, which are then upgraded.
func (b *build) pruneCache(used []aptPackage, bootstrapped []string) error {
	keep := map[string]bool{}
	known := map[string]bool{}
	for _, p := range used {
		bootstrapped = append(bootstrapped, p.file)
	}
	for _, file := range bootstrapped {
		keep[file] = true
		if key, ok := debKey(file); ok {
			known[key] = true
		}
	}
	entries, err := os.ReadDir(b.store.cache)
	if err != nil {
		return fmt.Errorf("tidy the package cache: %w", err)
	}
	for _, entry := range entries {
		if key, ok := debKey(entry.Name()); !ok || !known[key] || keep[entry.Name()] {
			continue
		}
		if err := os.Remove(filepath.Join(b.store.cache, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("tidy the package cache: %w", err)
		}
	}
	return nil
}

// debKey is the package and the architecture of a file name_version_arch.deb.
func debKey(file string) (string, bool) {
	parts := strings.Split(strings.TrimSuffix(file, ".deb"), "_")
	if len(parts) != 3 || !strings.HasSuffix(file, ".deb") {
		return "", false
	}
	return parts[0] + "_" + parts[2], true
}

// installedPackages reads the dpkg database of a tree: names and versions of what is installed. Without a database the
// map is nil.
func installedPackages(root *os.Root) (map[string]string, error) {
	f, err := root.Open("var/lib/dpkg/status")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the package database: %w", err)
	}
	defer f.Close()
	out := map[string]string{}
	var name, version, arch string
	installed := false
	flush := func() {
		if installed && name != "" {
			if _, twice := out[name]; twice {
				name += ":" + arch
			}
			out[name] = version
		}
		name, version, arch, installed = "", "", "", false
	}
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		line := scanner.Text()
		key, value, _ := strings.Cut(line, ": ")
		switch {
		case line == "":
			flush()
		case key == "Package":
			name = value
		case key == "Version":
			version = value
		case key == "Architecture":
			arch = value
		case key == "Status":
			installed = strings.HasSuffix(value, " installed")
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read the package database: %w", err)
	}
	flush()
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}
