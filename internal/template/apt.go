package template

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// apt is the host's apt-get, working for a root filesystem that is not the host's. All its state is in a folder of the
// build; of the host's configuration it gets only how to reach the network.
type apt struct {
	dir     string // state and configuration
	rootfs  string
	cache   string // shared folder of downloaded packages
	env     []string
	out     *output
	acquire []string // the host's settings under Acquire::
}

// aptPackage is one file that has to be installed.
type aptPackage struct {
	file   string // name in the cache
	size   int64
	sha256 string // lower-case hexadecimal
}

// prepare writes the configuration. It is read first and moves the folders, so that nothing in the host's /etc/apt
// applies: no hooks, no pins, no foreign sources.
func (a *apt) prepare(m mirrors, suite, arch string) error {
	for _, dir := range []string{"etc/apt.conf.d", "etc/preferences.d", "state/lists/partial", "cache", "none/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, dir), 0o755); err != nil {
			return fmt.Errorf("prepare apt: %w", err)
		}
	}
	var conf strings.Builder
	set := func(name, value string) { fmt.Fprintf(&conf, "%s %q;\n", name, value) }
	set("Dir", a.dir+"/")
	set("Dir::Etc", filepath.Join(a.dir, "etc"))
	set("Dir::Etc::SourceList", filepath.Join(a.dir, "sources.list"))
	set("Dir::Etc::SourceParts", "-")
	set("Dir::Etc::Netrc", "/etc/apt/auth.conf") // logins of private mirrors stay where they are
	set("Dir::Etc::NetrcParts", "/etc/apt/auth.conf.d")
	set("Dir::State", filepath.Join(a.dir, "state"))
	set("Dir::State::Status", filepath.Join(a.rootfs, "var/lib/dpkg/status"))
	set("Dir::Cache", filepath.Join(a.dir, "cache"))
	set("APT::Architecture", arch)
	conf.WriteString("#clear APT::Architectures;\n")
	set("APT::Architectures::", arch)
	set("APT::Install-Recommends", "false")
	set("APT::Install-Suggests", "false")
	set("APT::Sandbox::User", "root") // the folders of a build are closed to everyone else
	set("Acquire::Languages", "none")
	set("Acquire::ForceHash", "sha256")
	set("Acquire::Retries", "3")
	for _, line := range a.acquire {
		conf.WriteString(line + "\n")
	}
	if err := os.WriteFile(filepath.Join(a.dir, "apt.conf"), []byte(conf.String()), 0o600); err != nil {
		return fmt.Errorf("prepare apt: %w", err)
	}
	list := m.list(suite, "[signed-by="+m.keyring+"] ")
	if err := os.WriteFile(filepath.Join(a.dir, "sources.list"), []byte(list), 0o600); err != nil {
		return fmt.Errorf("prepare apt: %w", err)
	}
	a.env = append(a.env, "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"))
	return nil
}

func (a *apt) run(ctx context.Context, args ...string) error {
	tool, err := lookTool("apt-get", "apt")
	if err != nil {
		return err
	}
	return a.out.run(ctx, command{argv: append([]string{tool, "-y", "-q", "-o", "APT::Status-Fd=3"}, args...), env: a.env})
}

// update fetches the package lists. A suite that cannot be fetched is an error: without the security suite the browser
// would be an old one, without any error.
func (a *apt) update(ctx context.Context) error {
	a.out.stage(StageIndex, "", 0, aptLine)
	return a.run(ctx, "-o", "APT::Update::Error-Mode=any", "update")
}

// plan asks which packages have to be installed for the newest version of what is there and of the given names.
func (a *apt) plan(ctx context.Context, names []string) ([]aptPackage, error) {
	tool, err := lookTool("apt-get", "apt")
	if err != nil {
		return nil, err
	}
	// With an empty cache every package is printed, also those that have been downloaded before.
	args := append([]string{"-y", "-q", "-o", "Dir::Cache::Archives=" + filepath.Join(a.dir, "none"), "--print-uris", "dist-upgrade"}, names...)
	var stdout bytes.Buffer
	if err := a.out.run(ctx, command{argv: append([]string{tool}, args...), env: a.env, stdout: &stdout}); err != nil {
		return nil, fmt.Errorf("plan the installation: %w", err)
	}
	return parsePrintURIs(stdout.String())
}

// parsePrintURIs reads the lines of apt-get --print-uris: 'URI' file size SHA256:hash. Other lines are talk.
func parsePrintURIs(text string) ([]aptPackage, error) {
	var out []aptPackage
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "'") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 4 {
			return nil, fmt.Errorf("apt-get named a package without its checksum: %s", strings.TrimSpace(line))
		}
		size, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil || size <= 0 {
			return nil, fmt.Errorf("apt-get named a package without its size: %s", strings.TrimSpace(line))
		}
		hash, ok := strings.CutPrefix(fields[3], "SHA256:")
		if _, err := hex.DecodeString(hash); !ok || err != nil || len(hash) != 2*sha256.Size {
			return nil, fmt.Errorf("apt-get named a package without its SHA-256: %s", strings.TrimSpace(line))
		}
		if !isDebName(fields[1]) {
			return nil, fmt.Errorf("apt-get named a package with a strange file name: %q", fields[1])
		}
		out = append(out, aptPackage{file: fields[1], size: size, sha256: hash})
	}
	return out, nil
}

func isDebName(name string) bool {
	return strings.HasSuffix(name, ".deb") && name == filepath.Base(name) && !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "-")
}

// download gets what is not in the cache, checks every file against the checksum of the signed list, and copies the
// files into the folder `to`. The cache must be locked.
func (a *apt) download(ctx context.Context, packages []aptPackage, names []string, to string) error {
	var total, missing int64
	for _, p := range packages {
		total += p.size
		info, err := os.Stat(filepath.Join(a.cache, p.file))
		if err == nil && info.Size() == p.size && checkFile(filepath.Join(a.cache, p.file), p.sha256) == nil {
			continue
		}
		missing += p.size
		// apt takes a file of the right size for the right file.
		if err := os.Remove(filepath.Join(a.cache, p.file)); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("drop a damaged package: %w", err)
		}
	}
	a.out.stage(StageDownload, "bytes", total, func(line string, p *Progress) bool {
		if percent, ok := aptPercent(line, "dlstatus:"); ok {
			p.Done = total - missing + int64(percent/100*float64(missing))
		}
		return aptLine(line, p)
	})
	if missing > 0 {
		if err := os.MkdirAll(filepath.Join(a.cache, "partial"), 0o755); err != nil {
			return fmt.Errorf("prepare the package cache: %w", err)
		}
		args := append([]string{"-o", "Dir::Cache::Archives=" + a.cache, "--download-only", "dist-upgrade"}, names...)
		if err := a.run(ctx, args...); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("collect packages: %w", err)
	}
	for _, p := range packages {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("collect packages: %w", context.Cause(ctx))
		}
		if err := copyChecked(filepath.Join(a.cache, p.file), filepath.Join(to, p.file), p.sha256); err != nil {
			return fmt.Errorf("collect packages: %w", err)
		}
	}
	a.out.advance(total)
	return nil
}

func checkFile(path, want string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkReader(f, path, want)
}

func checkReader(r io.Reader, path, want string) error {
	hash := sha256.New()
	if _, err := io.Copy(hash, r); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != want {
		return problem.New(problem.TemplateBuildFailed, "try again; the damaged file is downloaded anew",
			"the package %s has the checksum %s instead of %s", filepath.Base(path), got, want)
	}
	return nil
}

// copyChecked copies a file, and fails when what was copied has not the checksum.
func copyChecked(from, to, want string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := out.Close(); err == nil {
			err = closeErr
		}
	}()
	return checkReader(io.TeeReader(in, out), from, want)
}

// aptLine drops the status lines that apt prints for programs.
func aptLine(line string, _ *Progress) bool {
	return !strings.HasPrefix(line, "dlstatus:") && !strings.HasPrefix(line, "pmstatus:")
}

// aptPercent reads a status line of apt: kind:item:percent:description.
func aptPercent(line, kind string) (float64, bool) {
	rest, ok := strings.CutPrefix(line, kind)
	if !ok {
		return 0, false
	}
	fields := strings.SplitN(rest, ":", 3)
	if len(fields) < 3 {
		return 0, false
	}
	percent, err := strconv.ParseFloat(fields[1], 64)
	return percent, err == nil && percent >= 0 && percent <= 100
}

// hostAcquire are the host's own settings of how apt reaches the network (proxies, certificates, timeouts), as lines of
// a configuration file. They serve the build only.
func hostAcquire(ctx context.Context, out *output, env []string) ([]string, error) {
	tool, err := lookTool("apt-config", "apt")
	if err != nil {
		return nil, err
	}
	var dump bytes.Buffer
	if err := out.run(ctx, command{argv: []string{tool, "dump"}, env: env, stdout: &dump}); err != nil {
		return nil, fmt.Errorf("read the host's apt configuration: %w", err)
	}
	return parseAcquire(dump.String()), nil
}

// parseAcquire keeps of apt-config dump what decides how servers are reached and believed.
func parseAcquire(dump string) []string {
	var out []string
	for line := range strings.Lines(dump) {
		line = strings.TrimSpace(line)
		lower := strings.ToLower(line)
		for _, prefix := range []string{
			"acquire::http::", "acquire::https::", "acquire::http ", "acquire::https ", "acquire::retries",
			"acquire::check-date", "acquire::check-valid-until", "acquire::max-validtime", "acquire::forceipv",
		} {
			if strings.HasPrefix(lower, prefix) && strings.HasSuffix(line, ";") {
				out = append(out, line)
				break
			}
		}
	}
	return out
}

// proxyEnv is the host's apt proxy for tools that only know the environment.
func proxyEnv(acquire, env []string) []string {
	for _, scheme := range []string{"http", "https"} {
		for _, line := range acquire {
			value, ok := strings.CutPrefix(strings.ToLower(line), "acquire::"+scheme+"::proxy \"")
			if !ok {
				continue
			}
			// Cut from the line itself: a user name in it may have capitals.
			value = strings.TrimSuffix(line[len(line)-len(value):], "\";")
			if value == "" || strings.EqualFold(value, "DIRECT") {
				continue
			}
			name := scheme + "_proxy="
			if !hasPrefix(env, name) && !hasPrefix(env, strings.ToUpper(name)) {
				env = append(env, name+value)
			}
		}
	}
	return env
}

func hasPrefix(list []string, prefix string) bool {
	for _, item := range list {
		if strings.HasPrefix(item, prefix) {
			return true
		}
	}
	return false
}
