package template

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestPlannedPackagesComeWithTheirChecksums(t *testing.T) {
	hash := strings.Repeat("0f", 32)
	good := "Reading package lists...\nThe following NEW packages will be installed:\n  a\n'http://m/pool/a_1%3a2_amd64.deb' a_1%3a2_amd64.deb 42 SHA256:" + hash + "\n"
	got, err := parsePrintURIs(good)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]aptPackage{{"a_1%3a2_amd64.deb", 42, hash}}, got, cmp.AllowUnexported(aptPackage{})); diff != "" {
		t.Error(diff)
	}
	for name, line := range map[string]string{
		"no checksum":     "'http://m/a.deb' a.deb 42",
		"weak checksum":   "'http://m/a.deb' a.deb 42 MD5Sum:0123456789abcdef0123456789abcdef",
		"short checksum":  "'http://m/a.deb' a.deb 42 SHA256:00",
		"no size":         "'http://m/a.deb' a.deb 0 SHA256:" + hash,
		"path":            "'http://m/a.deb' ../a.deb 42 SHA256:" + hash,
		"option":          "'http://m/a.deb' -a.deb 42 SHA256:" + hash,
		"another file":    "'http://m/a' a 42 SHA256:" + hash,
		"empty file name": "'http://m/a' .deb 42 SHA256:" + hash,
	} {
		if got, err := parsePrintURIs(line + "\n"); err == nil {
			t.Errorf("%s: accepted as %v", name, got)
		}
	}
}

func TestDamagedPackageIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{"a.deb": "good"})
	sum := sha256.Sum256([]byte("good"))
	want := hex.EncodeToString(sum[:])
	if err := copyChecked(filepath.Join(dir, "a.deb"), filepath.Join(dir, "b.deb"), want); err != nil {
		t.Fatal(err)
	}
	put(t, dir, map[string]string{"a.deb": "evil"})
	wantCode(t, copyChecked(filepath.Join(dir, "a.deb"), filepath.Join(dir, "c.deb"), want), problem.TemplateBuildFailed)
}

func TestHostSettingsAreOnlyAboutTheNetwork(t *testing.T) {
	dump := strings.Join([]string{
		`APT "";`, `Acquire "";`, `Acquire::http "";`, `Acquire::http::Proxy "http://Me:Secret@proxy:3128/";`,
		`Acquire::https::CaInfo "/etc/ssl/private-ca.pem";`, `Acquire::Languages:: "de";`, `Acquire::AllowInsecureRepositories "true";`,
		`Acquire::Check-Valid-Until "false";`, `DPkg::Post-Invoke:: "rm -rf /";`, `APT::Update::Post-Invoke:: "touch /x";`, `Dir::Etc "etc";`,
	}, "\n")
	got := parseAcquire(dump)
	want := []string{
		`Acquire::http "";`, `Acquire::http::Proxy "http://Me:Secret@proxy:3128/";`,
		`Acquire::https::CaInfo "/etc/ssl/private-ca.pem";`, `Acquire::Check-Valid-Until "false";`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"A=b", "http_proxy=http://Me:Secret@proxy:3128/"}, proxyEnv(got, []string{"A=b"})); diff != "" {
		t.Error(diff)
	}
	mine := []string{"HTTP_PROXY=http://mine"}
	if diff := cmp.Diff(mine, proxyEnv(got, mine)); diff != "" {
		t.Errorf("the environment's proxy does not win: %s", diff)
	}
}

func TestCacheKeepsOneVersionOfEachPackageAndWhatTheBootstrapUses(t *testing.T) {
	s := testStore(t)
	b := &build{store: s}
	put(t, s.cache, map[string]string{
		"a_1_amd64.deb": "", "a_2_amd64.deb": "", "a_1_arm64.deb": "", "b_1_all.deb": "", "old_1_all.deb": "", "base_1_all.deb": "", "base_2_all.deb": "", "base_0_all.deb": "", "notes": "",
	})
	if err := b.pruneCache([]aptPackage{{file: "a_2_amd64.deb"}, {file: "base_2_all.deb"}}, []string{"base_1_all.deb"}); err != nil {
		t.Fatal(err)
	}
	want := []string{"a_1_arm64.deb", "a_2_amd64.deb", "b_1_all.deb", "base_1_all.deb", "base_2_all.deb", "notes", "old_1_all.deb"}
	if diff := cmp.Diff(want, names(t, s.cache)); diff != "" {
		t.Error(diff)
	}
}

func TestOutputKeepsTheLastLines(t *testing.T) {
	var last Progress
	o := newOutput(func(p Progress) { last = p })
	o.stage(StageInstall, "packages", 7, func(line string, p *Progress) bool {
		if percent, ok := aptPercent(line, "pmstatus:"); ok {
			p.Done = int64(percent / 100 * 7)
		}
		return aptLine(line, p)
	})
	for i := range 3 * maxTail {
		if _, err := o.Write([]byte(strings.Repeat("x", i) + "\r")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.Write([]byte("pmstatus:dpkg:50.0:Installing\nhalf a ")); err != nil {
		t.Fatal(err)
	}
	if last.Done != 3 || last.Total != 7 || last.Stage != StageInstall {
		t.Errorf("the progress is %+v", last)
	}
	if _, err := o.Write([]byte("line " + strings.Repeat("y", 5*maxLine))); err != nil {
		t.Fatal(err)
	}
	lines := o.lines()
	if len(lines) != maxTail {
		t.Fatalf("%d lines are kept", len(lines))
	}
	end := lines[len(lines)-1]
	if !strings.HasPrefix(end, "half a line yyy") || len(end) > maxLine+len("…") {
		t.Errorf("the last line is %q", end)
	}
	if lines[0] != strings.Repeat("x", 3*maxTail-maxTail+1) {
		t.Errorf("the first line is %q", lines[0])
	}
}

func TestFullDiskIsToldFromOtherFailures(t *testing.T) {
	for line, want := range map[string]bool{
		"dpkg: error processing archive x (--unpack): cannot copy extracted data: No space left on device": true,
		"E: You don't have enough free space in /var/cache/apt/archives/.":                                 true,
		"cp: Disk quota exceeded": true,
		"E: Unable to fetch":      false,
	} {
		err := &toolError{tool: "x", err: errors.New("exit status 1"), lines: []string{"first", line}}
		b := &build{out: newOutput(nil), options: BuildOptions{Name: "x"}}
		code := problem.TemplateBuildFailed
		if want {
			code = problem.DiskFull
		}
		wantCode(t, b.explain(t.Context(), err), code)
		if !strings.Contains(err.Error(), line) {
			t.Errorf("the tool's last line is not in %q", err)
		}
	}
}

func TestInstalledPackagesAreThoseThatAreInstalled(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{"var/lib/dpkg/status": "Package: a\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:2-3\nDescription: x\n y\n\n" +
		"Package: gone\nStatus: deinstall ok config-files\nVersion: 9\n\nPackage: a\nStatus: install ok installed\nArchitecture: i386\nVersion: 4\n"})
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	got, err := installedPackages(root)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a": "1:2-3", "a:i386": "4"}, got); diff != "" {
		t.Error(diff)
	}
}
