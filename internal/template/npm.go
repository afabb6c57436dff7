package template

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/clawjail/clawjail/internal/problem"
)

// npmBase is the template to which a package and its Node are added.
const npmBase = "clawbot"

const (
	npmFolder  = "srv/npm"            // of the package in the tree
	npmNode    = "usr/local/bin/node" // the Node that it gets
	npmProgram = "npm:"               // before the names of a package's programs among those of the template
	oldestNode = 20                   // packages that would run with an older one get this or a newer one
)

// The treatments of scripts of packages that run when they are installed.
const (
	NPMScriptsRun  = "run"  // they run as the jail's user in the new tree, without a network
	NPMScriptsSkip = "skip" // they do not run
)

// NPMPackage is one version of a package of npm.
type NPMPackage struct {
	Name, Version string
	// Bins are its programs: names, and paths in the package.
	Bins map[string]string
	// node is the range of versions of Node that it wants, in npm's words; empty is any.
	node string
}

var (
	npmName = regexp.MustCompile(`^(@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*$`)
	// npmVersion is a version, a range or a tag; nothing that names another place than the registry.
	npmVersion = regexp.MustCompile(`^[0-9A-Za-z^~<>=*][0-9A-Za-z.^~<>=*|+ -]*$`)
)

// parseNPM reads PACKAGE or PACKAGE@VERSION.
func parseNPM(text string) (name, version string, err error) {
	name, version = text, ""
	if at := strings.LastIndexByte(text, '@'); at > 0 {
		name, version = text[:at], text[at+1:]
		if !npmVersion.MatchString(version) {
			return "", "", problem.New(problem.BadTemplate, "write it like some-package@1.2.3", "%q is not a version of a package", version)
		}
	}
	if !npmName.MatchString(name) || len(text) > 256 {
		return "", "", problem.New(problem.BadTemplate, "write the name that npm knows, like some-package or @scope/some-package@1.2.3",
			"%q is not the name of a package", text)
	}
	return name, version, nil
}

// FindNPM asks npm for a package, and returns the version that it would install. Which registry that is of is npm's to know.
// The codes: bad_template for a name that is none; not_found for a package or a version that there is not; tool_missing.
func (s *Store) FindNPM(ctx context.Context, text string) (NPMPackage, error) {
	return s.findNPM(ctx, newOutput(nil), text)
}

func (s *Store) findNPM(ctx context.Context, out *output, text string) (NPMPackage, error) {
	name, version, err := parseNPM(text)
	if err != nil {
		return NPMPackage{}, err
	}
	type found struct {
		Name    string          `json:"name"`
		Version string          `json:"version"`
		Bin     json.RawMessage `json:"bin"`
		Engines json.RawMessage `json:"engines"`
	}
	var all []found
	err = s.askNPM(ctx, out, &all, name+"@"+cmp.Or(version, "latest"), "name", "version", "bin", "engines")
	if errors.Is(err, errNPMUnknown) {
		return NPMPackage{}, s.unknownNPM(ctx, out, name, version)
	}
	if err != nil {
		return NPMPackage{}, err
	}
	if len(all) == 0 {
		return NPMPackage{}, s.unknownNPM(ctx, out, name, version)
	}
	newest := slices.MaxFunc(all, func(a, b found) int { return compareVersions(a.Version, b.Version) })
	if newest.Name != name || !npmVersion.MatchString(newest.Version) {
		return NPMPackage{}, fmt.Errorf("ask npm for %s: it answers with %q, version %q", text, newest.Name, newest.Version)
	}
	p := NPMPackage{Name: name, Version: newest.Version, Bins: map[string]string{}}
	var one string
	if json.Unmarshal(newest.Bin, &one) == nil && one != "" {
		p.Bins[path.Base(name)] = one
	} else if json.Unmarshal(newest.Bin, &p.Bins) != nil {
		p.Bins = map[string]string{} // in words that npm does not know either
	}
	var engines struct {
		Node string `json:"node"`
	}
	if json.Unmarshal(newest.Engines, &engines) == nil && npmVersion.MatchString(engines.Node) {
		p.node = engines.Node
	}
	return p, nil
}

// unknownNPM says what npm does not know: the package, or the version.
func (s *Store) unknownNPM(ctx context.Context, out *output, name, version string) error {
	var versions []string
	if err := s.askNPM(ctx, out, &versions, name, "versions"); err != nil && !errors.Is(err, errNPMUnknown) {
		return err
	}
	if len(versions) == 0 {
		return problem.New(problem.NotFound, "look at its name; which registry is asked says: npm config get registry", "npm knows no package %s", name)
	}
	slices.SortFunc(versions, compareVersions)
	return problem.New(problem.NotFound, "choose another one; the newest are: "+strings.Join(versions[max(0, len(versions)-5):], ", "),
		"the package %s has no version %s", name, cmp.Or(version, "latest"))
}

// Program is what starts a program of the package. Of several, one has to be named.
func (p NPMPackage) Program(bin string) (string, error) {
	names := slices.Sorted(maps.Keys(p.Bins))
	of := p.Name + "@" + p.Version
	switch {
	case len(names) == 0:
		return "", problem.New(problem.BadTemplate, "it is a library: name a package that is an MCP server", "the package %s has no program", of)
	case bin == "" && len(names) > 1:
		return "", problem.New(problem.BadTemplate, "choose one with --bin: "+strings.Join(names, ", "), "the package %s has %d programs", of, len(names))
	case bin == "":
		return names[0], nil
	case p.Bins[bin] == "":
		return "", problem.New(problem.BadTemplate, "it has: "+strings.Join(names, ", "), "the package %s has no program %s", of, bin)
	}
	return bin, nil
}

// npmSource is what a template says of where it is from. The version is one and not a range, and the scripts have their part.
func npmSource(p NPMPackage, scripts string) string {
	out := sourceNPM + ":" + p.Name + "@" + p.Version
	if scripts == NPMScriptsRun {
		out += " with install scripts"
	}
	return out
}

// NPMTemplate is the name of the template with a package. It is another one for another version, and where what it is built on
// has changed since.
func (s *Store) NPMTemplate(ctx context.Context, p NPMPackage, scripts string) (name, source string, err error) {
	base, err := s.Get(ctx, npmBase)
	if err != nil {
		return "", "", err
	}
	source = npmSource(p, scripts)
	sum := sha256.Sum256([]byte(base.Digest + " " + source))
	letters := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, path.Base(p.Name))
	return letters[:min(len(letters), 10)] + hex.EncodeToString(sum[:5]), source, nil
}

// NPMCommand is how a program of a template with a package is started.
func (t Template) NPMCommand(bin string) ([]string, bool) {
	p, ok := t.Programs[npmProgram+bin]
	return append([]string{p.Path}, p.Args...), ok
}

// buildNPM makes the tree from the template clawbot, a package of npm with all that it needs, and a Node that it wants.
func (b *build) buildNPM(ctx context.Context) error {
	b.out.stage(StageFetch, "", 0, nil)
	p, err := b.store.findNPM(ctx, b.out, b.source.value)
	if err != nil {
		return err
	}
	if _, err := b.store.Verify(ctx, npmBase, VerifyOptions{Quick: true}); err != nil {
		return err
	}
	base, err := b.store.Get(ctx, npmBase)
	if err != nil {
		return err
	}
	if err := b.copyTree(ctx, base.RootFS()); err != nil {
		return err
	}
	root, err := os.OpenRoot(b.rootfs)
	if err != nil {
		return fmt.Errorf("open the new tree: %w", err)
	}
	defer root.Close()
	scripted, err := b.addPackage(ctx, root, p)
	if err != nil {
		return err
	}
	if err := b.addNode(ctx, root, p); err != nil {
		return err
	}
	if scripted && b.options.NPMScripts == NPMScriptsRun {
		if err := b.runScripts(ctx, root); err != nil {
			return err
		}
	}
	// It names the registry's addresses.
	if err := root.Remove(npmLock); err != nil {
		return err
	}
	b.template.Source = npmSource(p, b.options.NPMScripts)
	return b.npmPrograms(root, p)
}

// addNode adds the newest Node that a package wants: of those that are maintained for long, where there is one.
func (b *build) addNode(ctx context.Context, root *os.Root, p NPMPackage) error {
	arch, ok := map[string]string{"amd64": "x64", "arm64": "arm64", "arm": "armv7l", "ppc64le": "ppc64le"}[b.store.arch]
	if !ok {
		return problem.New(problem.Unsupported, "use an image: --from oci:REF", "npm has no Node for %s", b.store.arch)
	}
	name := "node-linux-" + arch
	wanted := p.node
	if wanted == "" || wanted == "*" { // of which npm names the newest alone
		wanted = fmt.Sprintf(">=%d", oldestNode)
	}
	var versions []string
	err := b.store.askNPM(ctx, b.out, &versions, name+"@"+wanted, "version")
	if err != nil && !errors.Is(err, errNPMUnknown) {
		return err
	}
	usable := usableNodes(versions)
	if len(usable) == 0 {
		return problem.New(problem.BadTemplate, "take another version of the package", "the package %s@%s wants Node %s, and npm has none from %d on (%s)",
			p.Name, p.Version, wanted, oldestNode, name)
	}
	// The newest may want libraries that the tree does not have.
	var tool *toolError
	for _, version := range usable {
		if err = b.tryNode(ctx, root, name, version); !errors.As(err, &tool) {
			return err
		}
	}
	return err
}

// tryNode puts a Node into the tree, and lets it say its version there.
func (b *build) tryNode(ctx context.Context, root *os.Root, name, version string) error {
	dir := filepath.Join(b.work, "node", version)
	if err := b.npmInstall(ctx, dir, name+"@"+version); err != nil {
		return err
	}
	in, err := os.Open(filepath.Join(dir, "node_modules", name, "bin/node"))
	if err != nil {
		return fmt.Errorf("look for Node in its package: %w", err)
	}
	defer in.Close()
	if err := realFolder(root, path.Dir(npmNode)); err != nil {
		return err
	}
	if err := root.RemoveAll(npmNode); err != nil {
		return err
	}
	out, err := root.OpenFile(npmNode, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Chmod(0o755), out.Close()); err != nil {
		return err
	}
	_, err = b.inTree(ctx, versionTime, "/"+npmNode, "--version")
	return err
}

// usableNodes are the newest of each line of Node, the best first. Even lines are maintained for years, and odd ones for months.
func usableNodes(versions []string) []string {
	lines := map[int]string{}
	for _, v := range versions {
		if line := lineOf(v); !strings.Contains(v, "-") && line >= oldestNode && (lines[line] == "" || compareVersions(v, lines[line]) > 0) {
			lines[line] = v
		}
	}
	return slices.SortedFunc(maps.Values(lines), func(a, b string) int {
		odd := func(v string) int { return lineOf(v) % 2 }
		return cmp.Or(cmp.Compare(odd(a), odd(b)), compareVersions(b, a))
	})
}

// npmLock is npm's list of what it has installed.
const npmLock = npmFolder + "/node_modules/.package-lock.json"

// addPackage adds the package with all that it needs, and says whether there are scripts that were to run.
func (b *build) addPackage(ctx context.Context, root *os.Root, p NPMPackage) (scripted bool, err error) {
	if err := realFolder(root, npmFolder); err != nil {
		return false, err
	}
	if err := emptyFolder(root, npmFolder); err != nil {
		return false, err
	}
	dir := filepath.Join(b.rootfs, npmFolder)
	if err := b.npmInstall(ctx, dir, p.Name+"@"+p.Version); err != nil {
		return false, err
	}
	text, err := root.ReadFile(npmLock)
	if err != nil {
		return false, fmt.Errorf("read what npm has installed: %w", err)
	}
	var installed struct {
		Packages map[string]struct {
			Version          string `json:"version"`
			HasInstallScript bool   `json:"hasInstallScript"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(text, &installed); err != nil {
		return false, fmt.Errorf("read what npm has installed: %w", err)
	}
	if got := installed.Packages["node_modules/"+p.Name].Version; got != p.Version {
		return false, fmt.Errorf("npm has installed version %q of %s, and not %s", got, p.Name, p.Version)
	}
	var wanting []string
	for at, one := range installed.Packages {
		if one.HasInstallScript {
			wanting = append(wanting, at[strings.LastIndex(at, "node_modules/")+len("node_modules/"):])
		}
	}
	slices.Sort(wanting)
	wanting = slices.Compact(wanting)
	if len(wanting) > 0 && b.options.NPMScripts == "" {
		return false, problem.New(problem.BadTemplate, "say what to do with them: --install-scripts "+NPMScriptsSkip+", or --install-scripts "+NPMScriptsRun+
			", as the jail's user and without a network", "packages want to run scripts when they are installed: %s", strings.Join(wanting[:min(len(wanting), 10)], ", "))
	}
	return len(wanting) > 0, nil
}

// runScripts lets npm run the scripts of what is installed, in the tree and as the jail's user, who owns it for so long.
func (b *build) runScripts(ctx context.Context, root *os.Root) error {
	dir := filepath.Join(b.work, "npm")
	if err := b.npmInstall(ctx, dir, "npm@10"); err != nil {
		return err
	}
	if err := ownAll(root, npmFolder, jailUser); err != nil {
		return err
	}
	err := b.out.run(ctx, command{
		argv: []string{"/" + npmNode, buildMount + "/npm/node_modules/npm/bin/npm-cli.js", "rebuild", "--prefix", "/" + npmFolder, "--foreground-scripts",
			"--offline", "--cache", "/tmp/npm", "--loglevel=error", "--no-update-notifier", "--ignore-scripts=false"},
		env: append(chrootEnv(), "HOME=/tmp"), chroot: b.rootfs, unprivileged: true, binds: map[string]string{dir: buildMount + "/npm"},
	})
	return errors.Join(err, ownAll(root, npmFolder, 0))
}

// ownAll gives a folder and what is in it to a user.
func ownAll(root *os.Root, dir string, uid int) error {
	return fs.WalkDir(root.FS(), dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(name, uid, uid)
	})
}

// npmPrograms writes down how the programs of the package are started.
func (b *build) npmPrograms(root *os.Root, p NPMPackage) error {
	b.template.Programs = map[string]Program{}
	for bin, file := range p.Bins {
		at := path.Join("/", npmFolder, "node_modules", p.Name, path.Clean("/"+file))
		resolved, err := resolve(root, at)
		var begin []byte
		if err == nil {
			begin, err = beginning(root, resolved)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // a package may name what it does not have
		}
		if err != nil {
			return fmt.Errorf("look at the program %s: %w", bin, err)
		}
		first, _, _ := bytes.Cut(begin, []byte("\n"))
		if bytes.HasPrefix(first, []byte("#!")) && !bytes.Contains(first, []byte("node")) || bytes.HasPrefix(begin, []byte("\x7fELF")) {
			if err := root.Chmod(resolved, 0o755); err != nil { // npm does so too
				return err
			}
			b.template.Programs[npmProgram+bin] = Program{Path: at}
			continue
		}
		b.template.Programs[npmProgram+bin] = Program{Path: "/" + npmNode, Args: []string{at}}
	}
	if len(p.Bins) > 0 && len(b.template.Programs) == 0 {
		return problem.New(problem.BadTemplate, "take another version of it", "the package %s@%s does not have the programs that it names", p.Name, p.Version)
	}
	return nil
}

// beginning is the first line of a file, or what of it fits.
func beginning(root *os.Root, name string) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	begin := make([]byte, 256)
	n, err := io.ReadFull(f, begin)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return begin[:n], err
}

// errNPMUnknown is that npm knows no such package, or no such version of it.
var errNPMUnknown = errors.New("npm does not know it")

// npmEnv is what npm gets of the environment: what says where the registry is, and what this host needs to reach it.
func (s *Store) npmEnv() []string {
	env := slices.DeleteFunc(s.hostEnv(), func(v string) bool { return strings.HasPrefix(v, "HOME=") })
	env = append(env, "HOME="+cmp.Or(s.getenv("HOME"), "/root"))
	for _, name := range []string{"NODE_EXTRA_CA_CERTS", "npm_config_registry", "NPM_CONFIG_REGISTRY", "npm_config_userconfig", "NPM_CONFIG_USERCONFIG",
		"npm_config_globalconfig", "NPM_CONFIG_GLOBALCONFIG", "npm_config_cafile", "NPM_CONFIG_CAFILE"} {
		if value := s.getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// npm runs npm of this host. Nothing is kept of what it downloads.
func (s *Store) npm(ctx context.Context, out *output, stdout io.Writer, args ...string) (err error) {
	file, err := lookTool("npm", "npm")
	if err != nil {
		return err
	}
	cache, err := os.MkdirTemp("", "clawjail-npm-")
	if err != nil {
		return fmt.Errorf("make a folder for npm: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cache)) }()
	argv := append([]string{file}, args[0], "--cache", cache, "--loglevel=error", "--no-update-notifier", "--no-audit", "--no-fund")
	return out.run(ctx, command{argv: append(argv, args[1:]...), env: s.npmEnv(), stdout: stdout})
}

// npmInstall installs packages into a folder, which is made. None of their scripts runs.
func (b *build) npmInstall(ctx context.Context, dir, what string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b.out.stage(StageFetch, "", 0, nil)
	return b.store.npm(ctx, b.out, nil, "install", "--prefix", dir, "--ignore-scripts", "--no-save", "--no-package-lock", "--omit=dev", "--global=false", "--", what)
}

// askNPM asks for members of what npm knows of a package. A single answer is a list of one.
func (s *Store) askNPM(ctx context.Context, out *output, into any, what string, members ...string) error {
	var said bytes.Buffer
	err := s.npm(ctx, out, &said, append([]string{"view", "--json", "--", what}, members...)...)
	text := bytes.TrimSpace(said.Bytes())
	if err != nil {
		var failed struct {
			Error struct{ Code, Summary string } `json:"error"`
		}
		if json.Unmarshal(text, &failed) == nil && slices.Contains([]string{"E404", "ETARGET"}, failed.Error.Code) {
			return errNPMUnknown
		}
		var tool *toolError
		if !errors.As(err, &tool) {
			return err
		}
		return problem.Wrap(err, problem.TemplateBuildFailed, "try it: npm view '"+what+"'", "npm could not say what it knows of %s", what).With("output", tool.lines)
	}
	if len(text) == 0 {
		return errNPMUnknown
	}
	if text[0] != '[' {
		text = slices.Concat([]byte("["), text, []byte("]"))
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read what npm says of %s: %w", what, err)
	}
	return nil
}

// compareVersions orders versions as npm does: by their numbers, and what comes before a release before it.
func compareVersions(a, b string) int { return semver.Compare("v"+a, "v"+b) }

// lineOf is the first number of a version; 0 of what is none.
func lineOf(version string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(semver.Major("v"+version), "v"))
	return n
}
