package packagingtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

// stand writes a program that stands for another.
func stand(t *testing.T, path, script string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("#!/bin/sh\nset -eu\n"+script), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// TestThePackageOfANewerCommitIsNewerAndAlone packs two commits with programs that stand for the compiler and the packer: what is
// tried is the script. The second commit has the smaller name.
func TestThePackageOfANewerCommitIsNewerAndAlone(t *testing.T) {
	dpkg, dir := testenv.Tool(t, "dpkg"), t.TempDir()
	out := filepath.Join(dir, "out")
	stand(t, filepath.Join(dir, "bin", "go"), `
while [ $# -gt 0 ]; do
	[ "$1" != -out ] || manual=$2
	shift
done
mkdir -p "$manual/man1" "$manual/completions"
: >"$manual/man1/clawjail.1"
for file in clawjail _clawjail clawjail.fish; do : >"$manual/completions/$file"; done
`)
	stand(t, filepath.Join(dir, "nfpm"), `
config=$3 kind=$5 target=$7
version=$(sed -n 's/^version: "\(.*\)"/\1/p' "$config")
case $kind in
deb) echo "$version" >"${target}clawjail_${version}_amd64.deb" ;;
rpm) echo "$version" >"${target}clawjail-$version-1.x86_64.rpm" ;;
esac
`)
	for _, name := range []string{"clawjail", "clawjail-spawn", "clawjail-shim"} {
		stand(t, filepath.Join(dir, "programs", name), "")
	}
	stand(t, filepath.Join(dir, "bin", "mv"), `[ -z "${FULL:-}" ] || exit 1
PATH=${PATH#*:}
exec mv "$@"
`)
	const other = "clawjail_1.0.0_arm64.deb"
	if err := errors.Join(os.Mkdir(out, 0o755), os.WriteFile(filepath.Join(out, other), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	write := func(name, time string, more ...string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "../packages.sh", name, out, "amd64")
		cmd.Env = append(append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "SOURCE_DATE_EPOCH="+time,
			"NFPM="+filepath.Join(dir, "nfpm"), "CLAWJAIL_PROGRAMS="+filepath.Join(dir, "programs")), more...)
		return cmd.CombinedOutput()
	}
	var versions []string
	for _, commit := range []struct{ name, time string }{{"f5ffe710", "1700000000"}, {"0f5ffe71", "1700000001"}, {"0f5ffe71-dirty", "1700000001"}, {"v0.0.1", "1600000000"}} {
		if said, err := write(commit.name, commit.time); err != nil {
			t.Fatalf("%s: %v\n%s", commit.name, err, said)
		}
		version, err := os.ReadFile(one(t, filepath.Join(out, "clawjail_*_amd64.deb")))
		if err != nil {
			t.Fatal(err)
		}
		one(t, filepath.Join(out, "*.rpm"))
		versions = append(versions, strings.TrimSpace(string(version)))
	}
	if said, err := write("v0.0.2", "1600000000", "FULL=yes"); err == nil {
		t.Errorf("packages that could not be put there: %s", said)
	}
	one(t, filepath.Join(out, "clawjail_0.0.1_amd64.deb")) // the last that are whole
	one(t, filepath.Join(out, "*.rpm"))
	one(t, filepath.Join(out, other)) // another architecture's stays
	for i, version := range versions[1:] {
		if err := exec.CommandContext(t.Context(), dpkg, "--compare-versions", versions[i], "lt", version).Run(); err != nil {
			t.Errorf("%s is not older than %s: %v", versions[i], version, err)
		}
	}
	// Those of before had the commit alone.
	if err := exec.CommandContext(t.Context(), dpkg, "--compare-versions", "0.0.0~git.f5ffe710", "lt", versions[0]).Run(); err != nil {
		t.Errorf("%s is not newer than an earlier package: %v", versions[0], err)
	}
}
