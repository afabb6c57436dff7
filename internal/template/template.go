// Package template builds, verifies and lists templates.
//
// A template is a read-only root filesystem without any credential, together with how to start what is in it. Jails
// are clones of it. On disk it is one folder:
//
//	<templates>/<name>/rootfs/…        the root filesystem
//	<templates>/<name>/template.json   what is known about it
//	<templates>/<name>/manifest.gz     every file of it, as it was when it was built
//	<templates>/<name>/verified        what the filesystem said of all files when they were last found unchanged
//
// It promises:
//
//   - A template appears whole or not at all. It is built in a folder of another name and published by one rename,
//     after its data has reached the disk. A build that is interrupted, even by SIGKILL or a full disk, leaves at most
//     such a folder, and the next Build, List or Sweep removes it once the process that made it has gone.
//   - No program in a template has a setuid or setgid bit or file capabilities, no device node exists in it, and no user
//     has a password.
//   - A template with a credential in it (a cookie jar, a browser profile, a private key, a cloud login) is not
//     published, and Verify fails when one appears later.
//   - Nothing of the host that built it stays in it: no proxy, no certificate authority, no package source.
//   - Verify finds every change of content, owner, mode, link or extended attribute and names the files.
//
// Scripts of packages run as root, in a chroot with private mount, process and network namespaces: building belongs to
// root's command line and is never offered over a socket. Sources are trusted accordingly: packages by the archive's
// signature, images by digest. Nothing that comes from an image is ever run as root.
package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/problem"
)

// formatVersion is the version of template.json. A template of another version has to be built again.
const formatVersion = 1

const (
	rootfsName   = "rootfs"
	metadataName = "template.json"
	manifestName = "manifest.gz"
	verifiedName = "verified"
)

// Names of the programs that a template may have. A template has only those that were found in it.
const (
	ProgramShell = "shell" // chromium-headless-shell: small and fast, for agents
	ProgramFull  = "full"  // the full Chromium, for operators who log in
	ProgramNode  = "node"
	ProgramSh    = "sh"
	ProgramMain  = "main" // what the image's entrypoint and command start
)

// Template is what is known about one template; template.json is this struct.
type Template struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	// Source says what it was made from: "debian:bookworm", "oci:REF@sha256:…", "oci-archive:FILE sha256:…", "dir:PATH",
	// "base.txz:15.0-RELEASE sha256:…", "bastille:JAIL".
	Source    string    `json:"source"`
	CreatedAt time.Time `json:"created_at"`
	// Digest is the digest of the tree: "sha256:" and 64 hexadecimal digits.
	Digest string `json:"digest"`
	// Architecture is a GOARCH.
	Architecture string `json:"architecture"`
	// Programs are what can be started in it, by the names of the constants above.
	Programs map[string]Program `json:"programs"`
	// TaskLimit is how many tasks a jail of this template gets unless it is told otherwise. Threads count.
	TaskLimit int `json:"task_limit"`
	// Size is the sum of the sizes of its regular files in bytes, each hard-linked file once.
	Size int64 `json:"size"`
	// Files is the number of entries of its tree: files, folders and links.
	Files int `json:"files"`
	// Packages are its packages with their versions, where it has a database of dpkg or, on FreeBSD, of pkg(8).
	Packages map[string]string `json:"packages,omitempty"`

	// Dir is the folder of the template.
	Dir string `json:"-"`
}

// Program is one program of a template.
type Program struct {
	Path string   `json:"path"` // absolute, inside the template
	Args []string `json:"args,omitempty"`
	// Version is what the program says of itself, or empty.
	Version string `json:"version,omitempty"`
}

// RootFS is the folder of the template's root filesystem.
func (t Template) RootFS() string { return filepath.Join(t.Dir, rootfsName) }

// TreeMaker makes and removes the folder that holds a root filesystem. On a filesystem with snapshots the folder has to
// be a volume of its own (a btrfs subvolume), so that clones cost nothing.
//
// Make is called for a path that does not exist, in a folder that does; the new folder is empty. Remove removes the
// folder with everything below it, and returns nil when there is none. Folders above it are renamed between the two
// calls.
//
// Settle is called before the folder is read: one that is a dataset is mounted then, where it is now. A folder that is none, or
// that is not there, is fine; so is a caller who may not mount.
type TreeMaker interface {
	Make(path string) error
	Remove(path string) error
	Settle(path string) error
}

// PlainTrees is the TreeMaker for ordinary folders.
type PlainTrees struct{}

// Make implements TreeMaker.
func (PlainTrees) Make(path string) error { return os.Mkdir(path, 0o755) }

// Remove implements TreeMaker.
func (PlainTrees) Remove(path string) error { return os.RemoveAll(path) }

// Settle implements TreeMaker.
func (PlainTrees) Settle(string) error { return nil }

// Config is what a Store needs. Dir and Clock are mandatory.
type Config struct {
	// Dir is the folder of the templates. It is made with mode 0700: only root walks into a template by this path.
	Dir string
	// Cache is the folder of downloaded packages, shared by all builds. Empty means ../cache/debs, seen from Dir.
	Cache string
	// Clock tells the time that is written into template.json.
	Clock func() time.Time
	// Trees makes the folders of root filesystems. Nil means PlainTrees.
	Trees TreeMaker
	// Jails are the names of the jails that run from a template, those that are just being made included. Nil means that none
	// do. Remove refuses while there are some; the tree of a template that was replaced stays until the jails that ran
	// from it have ended, and while that is not known.
	Jails func(ctx context.Context, name string) ([]string, error)
	// Owner tells the installation whose jails those are from others that share the folder. A template that an owner has replaced is
	// left to it: the others do not know its jails.
	Owner string
	// Recipes are the templates that can be built from Debian packages, by name. Nil means Recipes().
	Recipes map[string]Recipe
	// Getenv reads the environment: the overrides of the Debian mirrors, proxies and certificates. Nil means os.Getenv.
	Getenv func(string) string
	// Run runs the commands of a FreeBSD host: pkg(8), jail(8) and their like. The zero value finds them where they are.
	Run hostcmd.Runner
	// Place is where a jail of Bastille's is attached that is made for a template, on FreeBSD.
	Place JailPlace
}

// Store is the folder of templates. Its methods may be called at the same time, also by several processes.
type Store struct {
	dir     string
	cache   string
	clock   func() time.Time
	trees   TreeMaker
	jails   func(ctx context.Context, name string) ([]string, error)
	owner   string
	recipes map[string]Recipe
	getenv  func(string) string
	// hostRoot is where the host's own apt configuration and os-release are read: "/", except in tests.
	hostRoot string
	arch     string
	goos     string
	run      hostcmd.Runner
	place    JailPlace
	euid     func() int
}

// New checks the configuration and makes a Store. It touches no disk.
func New(c Config) (*Store, error) {
	flaws := problem.ValidationError{Code: problem.BadConfig, Source: "templates"}
	if !filepath.IsAbs(c.Dir) {
		flaws.Add("dir", "the folder of templates must be an absolute path, not %q", c.Dir)
	}
	if c.Cache != "" && !filepath.IsAbs(c.Cache) {
		flaws.Add("cache", "the folder of packages must be an absolute path, not %q", c.Cache)
	}
	if c.Clock == nil {
		flaws.Add("clock", "a clock is needed")
	}
	if err := flaws.Err(); err != nil {
		return nil, err
	}
	s := &Store{
		dir: filepath.Clean(c.Dir), cache: c.Cache, clock: c.Clock, trees: c.Trees, jails: c.Jails, owner: c.Owner,
		recipes: c.Recipes, getenv: c.Getenv, hostRoot: "/", arch: runtime.GOARCH, goos: runtime.GOOS, run: c.Run, place: c.Place, euid: os.Geteuid,
	}
	if s.cache == "" {
		s.cache = filepath.Join(filepath.Dir(s.dir), "cache", "debs")
	}
	if s.jails == nil {
		s.jails = func(context.Context, string) ([]string, error) { return nil, nil }
	}
	if s.trees == nil {
		s.trees = PlainTrees{}
	}
	if s.recipes == nil {
		s.recipes = Recipes()
	}
	if s.getenv == nil {
		s.getenv = os.Getenv
	}
	return s, nil
}

var validName = regexp.MustCompile(`^[a-z0-9]{1,20}$`)

// CheckName refuses what cannot be the name of a template: 1 to 20 of a to z and 0 to 9.
func CheckName(name string) error {
	if validName.MatchString(name) {
		return nil
	}
	return problem.New(problem.BadTemplate, "use 1 to 20 lower-case letters and digits, for example: browser",
		"%q is not a valid name for a template", name)
}

// Get returns one template. The code is template_missing when it has not been built.
func (s *Store) Get(ctx context.Context, name string) (Template, error) {
	if err := CheckName(name); err != nil {
		return Template{}, err
	}
	if err := ctx.Err(); err != nil {
		return Template{}, err
	}
	return s.load(name)
}

func (s *Store) load(name string) (Template, error) {
	dir := filepath.Join(s.dir, name)
	data, err := os.ReadFile(filepath.Join(dir, metadataName))
	if errors.Is(err, fs.ErrNotExist) {
		return Template{}, problem.New(problem.TemplateMissing, "build it: clawjail template build "+name,
			"there is no template %s", name)
	}
	if err != nil {
		return Template{}, fmt.Errorf("read template %s: %w", name, err)
	}
	var t Template
	if err := json.Unmarshal(data, &t); err != nil {
		return Template{}, problem.Wrap(err, problem.TemplateChanged,
			"build it again: clawjail template build --replace "+name, "the description of template %s is damaged", name)
	}
	if t.Version != formatVersion || t.Name != name {
		return Template{}, problem.New(problem.TemplateChanged, "build it again: clawjail template build --replace "+name,
			"the description of template %s is of version %d and names %q", name, t.Version, t.Name)
	}
	t.Dir = dir
	return t, nil
}

// List returns all templates, ordered by name, after sweeping what interrupted builds have left. A template whose
// description cannot be read does not hide the others: they are returned together with the error.
func (s *Store) List(ctx context.Context) ([]Template, error) {
	var problems []error
	if _, err := s.Sweep(ctx); err != nil {
		problems = append(problems, err)
	}
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(problems...)
	}
	if err != nil {
		return nil, errors.Join(append(problems, fmt.Errorf("list templates: %w", err))...)
	}
	var out []Template
	for _, entry := range entries {
		if !entry.IsDir() || !validName.MatchString(entry.Name()) {
			continue
		}
		t, err := s.load(entry.Name())
		if err != nil {
			problems = append(problems, err)
			continue
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b Template) int { return strings.Compare(a.Name, b.Name) })
	return out, errors.Join(problems...)
}

// Remove removes a template. The code is template_in_use while jails run from it. The template has gone from the list
// at once, and from the disk when Remove returns, unless a jail was made of it meanwhile; what is left of it is swept later.
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	dir := filepath.Join(s.dir, name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return problem.New(problem.TemplateMissing, "see what there is: clawjail template ls", "there is no template %s", name)
	}
	jails, err := s.jails(ctx, name)
	if err != nil {
		return fmt.Errorf("look for jails of template %s: %w", name, err)
	}
	if len(jails) > 0 {
		return problem.New(problem.TemplateInUse, "end them first: sessions (clawjail session ls), agents (clawjail agent ls), and warm browsers, which "+
			"end with the control plane (sudo systemctl stop clawjail)", "jails still run from the template %s: %s", name, texts.Clip(strings.Join(jails, ", "), 200))
	}
	old, err := s.freeName(oldPrefix, name)
	if err != nil {
		return err
	}
	if err := os.Rename(dir, old); err != nil {
		return fmt.Errorf("remove template %s: %w", name, err)
	}
	if _, err := s.retire(ctx, old); err != nil {
		return fmt.Errorf("remove template %s: %w", name, err)
	}
	return nil
}
