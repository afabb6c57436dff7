package doctor

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// runtimeRuns has the parts find an OCI runtime the way they do for a jail: one that really runs a container.
func runtimeRuns(ctx context.Context, e *exam) Result {
	file, err := e.Runtime(ctx)
	if err != nil {
		r := failed(err)
		if problem.CodeOf(err) == problem.RuntimeMissing {
			r = r.hint("sudo apt install crun runc")
		}
		return r
	}
	return fine("%s runs a container", file).fact("path", file)
}

// runtimeFile is the runtime that jails get. Without root it cannot be tried, and the first that is there is meant.
func (e *exam) runtimeFile(ctx context.Context) (string, error) {
	if e.UID == 0 && e.Runtime != nil {
		return e.Runtime(ctx)
	}
	candidates := []string{e.Config.Runtime}
	if e.Config.Runtime == "auto" {
		candidates = []string{"crun", "runc"}
	}
	for _, c := range candidates {
		if path.IsAbs(c) {
			return c, nil
		}
		if file, ok := e.program(c); ok {
			return file, nil
		}
	}
	return "", problem.New(problem.RuntimeMissing, "sudo apt install crun runc", "there is no OCI runtime")
}

// program finds a program of the host where administrators' programs are.
func (e *exam) program(name string) (string, bool) {
	for _, dir := range []string{"usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"} {
		if rel := filepath.Join(dir, name); e.exists(rel) {
			return "/" + rel, true
		}
	}
	return "", false
}

// runtimeVersion compares the runtime's version with those that have known holes.
func runtimeVersion(ctx context.Context, e *exam) Result {
	file, err := e.runtimeFile(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return failed(ctx.Err())
		}
		return skipped("there is no runtime to ask; see the check runtime")
	}
	printed, err := e.Command(ctx, file, "--version")
	if err != nil {
		return failed(err).fact("path", file)
	}
	name, text := versionLine(printed)
	facts := Facts{"path": file, "runtime": name, "version": text}
	v, ok := parseVersion(text)
	if !ok {
		return warning("%s does not say a version that is understood: %q", file, firstLine(printed)).facts(facts)
	}
	open := holes(name, v)
	if len(open) == 0 {
		return fine("%s %s has no hole that is known here", name, text).facts(facts)
	}
	pkg, revision := e.packageOf(ctx, file)
	if ctx.Err() != nil {
		return failed(ctx.Err()).facts(facts) // nothing is known of its package
	}
	if pkg == "" {
		return fails("%s %s has known holes through which a jail can be left: %s", name, text, strings.Join(open, ", ")).
			facts(facts).fact("holes", open).
			hint("install a version of %s with the fixes: %s", name, fixedIn(name))
	}
	facts["package"], facts["package_version"] = pkg, revision
	// Distributions fix holes without a new version. Their changelog says which.
	var left, fixed []string
	changelog := e.changelog(pkg)
	for _, cve := range open {
		if strings.Contains(changelog, cve) {
			fixed = append(fixed, cve)
		} else {
			left = append(left, cve)
		}
	}
	if len(left) == 0 {
		return fine("%s %s: its distribution has fixed %s in %s %s", name, text, strings.Join(fixed, ", "), pkg, revision).
			facts(facts).fact("fixed", fixed)
	}
	return warning("%s %s is of a version with %s; the distribution package %s %s does not name them as fixed", name, text,
		strings.Join(left, ", "), pkg, revision).facts(facts).fact("holes", left).
		hint("distribution package; check its changelog: apt changelog %s, then sudo apt install --only-upgrade %s", pkg, pkg)
}

// versionLine splits "runc version 1.1.5+ds1". Everything after the first line is about builds and libraries.
func versionLine(printed string) (name, version string) {
	if name, version, ok := strings.Cut(firstLine(printed), " version "); ok {
		return strings.TrimSpace(name), strings.TrimSpace(version)
	}
	return "", ""
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(line)
}

// packageOf asks the package manager whose file it is. Both names are empty when it is of no package.
func (e *exam) packageOf(ctx context.Context, file string) (pkg, version string) {
	// On systems where /bin is a link to /usr/bin, a package may know its file by either name.
	for _, f := range []string{file, strings.TrimPrefix(file, "/usr")} {
		out, err := e.Command(ctx, "dpkg-query", "-S", f)
		if err != nil {
			continue
		}
		pkg, _, _ = strings.Cut(firstLine(out), ":")
		if version, err = e.Command(ctx, "dpkg-query", "-W", "-f", "${Version}", pkg); err == nil {
			return pkg, strings.TrimSpace(version)
		}
	}
	out, err := e.Command(ctx, "rpm", "-q", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\n", "-f", file)
	if err != nil {
		return "", ""
	}
	pkg, version, _ = strings.Cut(firstLine(out), " ")
	return pkg, version
}

// changelog is what a Debian package says about its history; some systems leave it out.
func (e *exam) changelog(pkg string) string {
	f, err := os.Open(filepath.Join(e.Root, "usr/share/doc", filepath.Base(pkg), "changelog.Debian.gz"))
	if err != nil {
		return ""
	}
	defer f.Close() // only read from
	z, err := gzip.NewReader(f)
	if err != nil {
		return ""
	}
	const limit = 4 << 20
	data, err := io.ReadAll(io.LimitReader(z, limit))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return ""
	}
	return string(data)
}
