package template

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// smallRecipe is a template with a package or two on top of the smallest Debian.
func smallRecipe() map[string]Recipe {
	return map[string]Recipe{"small": {
		Suite: "bookworm", Packages: []string{"libnss3-tools"}, Extras: map[string][]string{"more": {"dash"}}, Programs: []string{ProgramSh}, TaskLimit: 7,
		NeedBytes: 1 << 20,
	}}
}

// TestDebianPackagesBecomeATemplate builds a small template from the real archive. The package cache of this machine
// is used where there is one, so that only the first run downloads much.
func TestDebianPackagesBecomeATemplate(t *testing.T) {
	testenv.Need(t, testenv.Long, testenv.Root)
	for _, tool := range []string{"debootstrap", "apt-get", "setpriv"} {
		testenv.Tool(t, tool)
	}
	s := testStore(t, func(c *Config) { c.Recipes, c.Getenv = smallRecipe(), os.Getenv })
	if shared := "/var/lib/clawjail/cache/debs"; isFolder(shared) {
		s.cache = shared
	}
	ctx := context.Background()
	var stages []string
	counted := map[string]int64{}
	built, err := s.Build(ctx, BuildOptions{Name: "small", With: []string{"more"}, Progress: func(p Progress) {
		if len(stages) == 0 || stages[len(stages)-1] != p.Stage {
			stages = append(stages, p.Stage)
		}
		counted[p.Stage] = max(counted[p.Stage], p.Done)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{StageBootstrap, StageIndex, StageDownload, StageInstall, StageFinish, StageManifest, StagePublish}, stages); diff != "" {
		t.Error(diff)
	}
	for _, stage := range []string{StageBootstrap, StageDownload, StageInstall, StageManifest} {
		if counted[stage] == 0 {
			t.Errorf("nothing was counted in the stage %s", stage)
		}
	}
	if built.Source != "debian:bookworm" || built.TaskLimit != 7 || built.Packages["libnss3-tools"] == "" || built.Packages["dash"] == "" {
		t.Errorf("it is described as %+v", built)
	}
	rootfs := built.RootFS()
	wantFinished(t, rootfs)
	if _, err := s.Verify(ctx, "small", VerifyOptions{}); err != nil {
		t.Error(err)
	}
	if lines, err := runIn(ctx, rootfs, "/usr/bin/certutil", "-H"); len(lines) == 0 {
		t.Errorf("what was installed does not run: %v", err)
	}
	// The host stays outside.
	for name, want := range map[string]string{"etc/apt/sources.list": (mirrors{main: publicMirror, security: publicSecurityMirror}).list("bookworm", ""), "etc/hostname": "jail\n"} {
		if data, err := os.ReadFile(filepath.Join(rootfs, name)); err != nil || string(data) != want {
			t.Errorf("%s is %q, %v", name, data, err)
		}
	}
	for _, name := range []string{dpkgForBuildPath, policyPath, "debootstrap", "usr/share/doc/dash/changelog.gz"} {
		if _, err := os.Lstat(filepath.Join(rootfs, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	if _, err := os.Stat(filepath.Join(rootfs, "usr/share/doc/dash/copyright")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"etc/apt/apt.conf.d", "etc/apt/sources.list.d", "etc/ssl"} {
		if dir := filepath.Join(rootfs, name); isFolder(dir) && len(names(t, dir)) > 0 {
			t.Errorf("in %s is %v", name, names(t, dir))
		}
	}

	// The packages of the security suite are installed where they are newer: without the suite the plan is another one.
	b, err := s.newBuild(BuildOptions{Name: "small"})
	must(t, err)
	m, err := s.findMirrors("bookworm")
	must(t, err)
	acquire, err := hostAcquire(ctx, b.out, s.hostEnv())
	must(t, err)
	planned := func(m mirrors) ([]aptPackage, error) {
		a := &apt{dir: t.TempDir(), rootfs: rootfs, cache: t.TempDir(), env: s.hostEnv(), out: newOutput(nil), acquire: acquire}
		arch, err := debianArch(s.arch)
		must(t, err, a.prepare(m, "bookworm", arch))
		if err := a.update(ctx); err != nil {
			return nil, err
		}
		return a.plan(ctx, []string{"chromium"})
	}
	version := func(packages []aptPackage) string {
		for _, p := range packages {
			if name, rest, _ := strings.Cut(p.file, "_"); name == "chromium" {
				return rest
			}
		}
		return ""
	}
	withSuite, err := planned(m)
	must(t, err)
	dead := m
	dead.security = "http://127.0.0.1:1/debian-security"
	if packages, err := planned(dead); err == nil {
		t.Errorf("without the security suite, chromium %s would be installed instead of %s, and nobody would notice", version(packages), version(withSuite))
	}
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func TestFailedBootstrapIsExplainedAndLeavesNothing(t *testing.T) {
	testenv.Need(t, testenv.Root)
	testenv.Tool(t, "debootstrap")
	env := map[string]string{EnvDebianMirror: "http://127.0.0.1:1/debian"}
	s := testStore(t, func(c *Config) {
		c.Recipes, c.Getenv = smallRecipe(), func(name string) string { return env[name] }
	})
	_, err := s.Build(context.Background(), BuildOptions{Name: "small"})
	wantCode(t, err, problem.TemplateBuildFailed)
	p, _ := problem.As(err)
	if p.Details["stage"] != StageBootstrap || !strings.Contains(err.Error(), "debootstrap: exit status") || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("it is not explained: %v, %v", err, p.Details)
	}
	if !strings.Contains(p.Hint, "template image small --output small.tar") || !strings.Contains(p.Hint, "template import small.tar") {
		t.Errorf("who has no mirror is not told what to do: %s", p.Hint)
	}
	if diff := cmp.Diff([]string{storeLockName}, names(t, s.dir)); diff != "" {
		t.Error(diff)
	}
}

func TestCancelledBootstrapLeavesNothing(t *testing.T) {
	testenv.Need(t, testenv.Root)
	testenv.Tool(t, "debootstrap")
	s := testStore(t, func(c *Config) { c.Recipes, c.Getenv = smallRecipe(), os.Getenv })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, err := s.Build(ctx, BuildOptions{Name: "small", Progress: func(p Progress) {
		if p.Stage == StageBootstrap && p.Done == 2 {
			cancel()
		}
	}})
	wantCode(t, err, problem.Canceled)
	if diff := cmp.Diff([]string{storeLockName}, names(t, s.dir)); diff != "" {
		t.Error(diff)
	}
}
