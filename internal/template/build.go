package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/clawjail/clawjail/internal/base/keyfile"
	"github.com/clawjail/clawjail/internal/problem"
)

// BuildOptions say what to build.
type BuildOptions struct {
	// Name is the name of the template. Built from Debian packages, it also names the recipe.
	Name string
	// From is "debian" (also when empty), "oci:REF", "oci-archive:FILE", "npm:PACKAGE[@VERSION]" or "dir:PATH"; on FreeBSD "base.txz" (also when empty),
	// "base.txz:FILE", "bastille", "bastille:JAIL" or "dir:PATH".
	From string
	// With names extras of the recipe. Only for sources that packages are installed into.
	With []string
	// NPMScripts says what is done with scripts that packages of npm want to run: [NPMScriptsRun] or [NPMScriptsSkip]. When it is
	// empty, a package that has some is refused.
	NPMScripts string
	// Replace allows to replace a template of this name. The old one stays until the new one is complete, and its tree until no
	// jail runs from that.
	Replace bool
	// Progress is called for every step, or is nil. It is called by one goroutine at a time, and must not call the Store.
	Progress func(Progress)
}

// build is one build at work.
type build struct {
	store   *Store
	system  system // of the programs in the tree
	options BuildOptions
	source  source
	recipe  Recipe
	known   bool // whether the recipe is one of the store's, and not made up for an image or a folder
	out     *output

	dir      string // the folder under construction
	work     string // inside it: downloads, lists; gone before publishing
	rootfs   string // inside it: the tree
	template Template
}

// Build builds a template and publishes it. On any error, and when the context is cancelled, nothing stays. The codes:
// bad_template for a bad name, source or extra, and for a source with credentials in it; conflict when the name is taken
// and Replace is not set; no_root; tool_missing; disk_full; template_build_failed for what a tool or a
// package could not do, with the tool's last lines.
func (s *Store) Build(ctx context.Context, options BuildOptions) (Template, error) {
	b, err := s.newBuild(options)
	if err != nil {
		return Template{}, err
	}
	if err := s.supported(b.source); err != nil {
		return Template{}, err
	}
	if s.euid() != 0 {
		return Template{}, problem.New(problem.NoRoot, "run it with sudo", "building a template needs root: scripts of packages run as root")
	}
	if err := s.refuseTaken(options); err != nil {
		return Template{}, err
	}
	if _, err := s.Sweep(ctx); err != nil {
		return Template{}, err
	}
	t, err := b.run(ctx)
	if err != nil {
		return Template{}, b.explain(ctx, err)
	}
	return t, nil
}

func (s *Store) newBuild(options BuildOptions) (*build, error) {
	if err := CheckName(options.Name); err != nil {
		return nil, err
	}
	from := options.From
	if from == "" && s.goos == freebsd {
		from = sourceBase
	}
	src, err := parseSource(from)
	if err != nil {
		return nil, err
	}
	if isScripts := options.NPMScripts != ""; isScripts && (src.kind != sourceNPM || options.NPMScripts != NPMScriptsRun && options.NPMScripts != NPMScriptsSkip) {
		return nil, problem.New(problem.BadTemplate, "write "+NPMScriptsRun+" or "+NPMScriptsSkip+", for a package of npm", "%q is not a way to treat the scripts of packages", options.NPMScripts)
	}
	if src.kind == sourceNPM && options.Name == npmBase {
		return nil, problem.New(problem.BadTemplate, "choose another name", "packages of npm are added to the template %s, which stays as it is", npmBase)
	}
	recipe, known := s.recipes[options.Name]
	if src.kind == sourceDebian || src.kind == sourceBase || src.kind == sourceBastille && len(options.With) > 0 {
		if !known {
			return nil, problem.New(problem.BadTemplate, "give an image or a folder: --from oci:REF, or --from dir:PATH",
				"there is no recipe for a template %s", options.Name)
		}
		if _, err := recipe.packages(options.With); err != nil {
			return nil, err
		}
	} else if len(options.With) > 0 {
		return nil, problem.New(problem.BadTemplate, "put it into the image, or build from Debian packages",
			"extras (%s) can only be added to Debian packages", strings.Join(options.With, ", "))
	}
	if !known {
		recipe = Recipe{TaskLimit: defaultTaskLimit}
	}
	return &build{store: s, system: systemOf(s.goos), options: options, source: src, recipe: recipe, known: known, out: newOutput(options.Progress)}, nil
}

// refuseTaken refuses to build over a template that may not be replaced.
func (s *Store) refuseTaken(options BuildOptions) error {
	_, err := os.Lstat(filepath.Join(s.dir, options.Name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look for template %s: %w", options.Name, err)
	case !options.Replace:
		return problem.New(problem.Conflict, "say --replace, which keeps the old one until the new one is complete", "there is a template %s already", options.Name)
	}
	return nil
}

func (b *build) run(ctx context.Context) (t Template, err error) {
	closeDir, err := b.begin(ctx)
	if err != nil {
		return Template{}, err
	}
	defer func() {
		// After publishing, what is left under this name is the template that was replaced, or nothing.
		_, cleanup := b.store.retire(ctx, b.dir)
		if cleanup != nil {
			cleanup = fmt.Errorf("remove the folder of the build: %w", cleanup)
		}
		err = errors.Join(err, cleanup, closeDir())
	}()
	if err := b.make(ctx); err != nil {
		return Template{}, err
	}
	if err := b.complete(ctx); err != nil {
		return Template{}, err
	}
	if err := b.publish(ctx); err != nil {
		return Template{}, err
	}
	return b.template, nil
}

// begin makes the folder under construction.
func (b *build) begin(ctx context.Context) (closeDir func() error, err error) {
	b.dir, closeDir, err = b.store.beginBuilding(ctx, b.options.Name)
	if err != nil {
		return nil, err
	}
	b.rootfs = filepath.Join(b.dir, rootfsName)
	b.work = filepath.Join(b.dir, workName)
	if err := b.prepare(); err != nil {
		return nil, errors.Join(err, b.store.discard(b.dir), closeDir())
	}
	return closeDir, nil
}

func (b *build) prepare() error {
	if k := b.source.kind; k == sourceDebian || k == sourceBase || k == sourceBastille {
		if err := needSpace(b.dir, b.recipe.NeedBytes); err != nil {
			return err
		}
	}
	if err := b.store.trees.Make(b.rootfs); err != nil {
		return fmt.Errorf("make the folder of the tree: %w", err)
	}
	if err := os.Chmod(b.rootfs, 0o755); err != nil {
		return fmt.Errorf("make the folder of the tree: %w", err)
	}
	if err := os.Mkdir(b.work, 0o700); err != nil {
		return fmt.Errorf("make the folder for downloads: %w", err)
	}
	b.template = Template{
		Version: formatVersion, Name: b.options.Name, CreatedAt: b.store.clock().UTC(),
		Architecture: b.store.arch, TaskLimit: b.recipe.TaskLimit,
	}
	return nil
}

// make fills the tree from the source.
func (b *build) make(ctx context.Context) error {
	switch b.source.kind {
	case sourceImage:
		return b.buildImage(ctx)
	case sourceArchive:
		return b.buildArchive(ctx)
	case sourceDir:
		return b.buildDir(ctx)
	case sourceNPM:
		return b.buildNPM(ctx)
	case sourceBase:
		return b.buildBase(ctx)
	case sourceBastille:
		return b.buildBastille(ctx)
	default:
		return b.buildDebian(ctx)
	}
}

// complete makes of any tree one that keeps the package's promises, and writes down what it is.
func (b *build) complete(ctx context.Context) error {
	if err := os.RemoveAll(b.work); err != nil {
		return fmt.Errorf("remove downloads: %w", err)
	}
	b.out.stage(StageFinish, "", 0, nil)
	if err := b.finish(ctx); err != nil {
		return err
	}
	entries, err := statTree(ctx, b.rootfs)
	if err != nil {
		return fmt.Errorf("read the tree: %w", err)
	}
	if err := refuseCredentials(b.rootfs, entries); err != nil {
		return err
	}
	b.out.stage(StageManifest, "files", int64(len(entries)), nil)
	if err := readContents(ctx, b.rootfs, entries, every(len(entries)), b.out.advance); err != nil {
		return fmt.Errorf("read the tree: %w", err)
	}
	b.template.Digest = digestOf(entries)
	b.template.Files = len(entries)
	b.template.Size = sizeOf(entries)
	if err := writeManifest(filepath.Join(b.dir, manifestName), entries); err != nil {
		return err
	}
	data, err := json.MarshalIndent(b.template, "", "  ")
	if err != nil {
		return fmt.Errorf("describe the template: %w", err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, metadataName), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("describe the template: %w", err)
	}
	return nil
}

// publish gives the template its name, once everything is on the disk: a crash of the machine must not leave a
// template with empty files in it.
func (b *build) publish(ctx context.Context) error {
	b.out.stage(StagePublish, "", 0, nil)
	if err := syncFilesystem(b.dir); err != nil {
		return fmt.Errorf("write the template to the disk: %w", err)
	}
	unlock, err := b.store.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := b.store.refuseTaken(b.options); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("publish template %s: %w", b.options.Name, context.Cause(ctx))
	}
	final := filepath.Join(b.store.dir, b.options.Name)
	if err := b.store.own(final); err != nil {
		return fmt.Errorf("publish template %s: %w", b.options.Name, err)
	}
	if err := os.Remove(filepath.Join(b.dir, livenessName)); err != nil {
		return fmt.Errorf("publish template %s: %w", b.options.Name, err)
	}
	if err := exchange(b.dir, final); err != nil {
		return fmt.Errorf("publish template %s: %w", b.options.Name, err)
	}
	b.template.Dir = final
	return keyfile.SyncFolder(b.store.dir)
}

// explain gives an error of a build the code that callers act on.
func (b *build) explain(ctx context.Context, err error) error {
	var tool *toolError
	full := errors.As(err, &tool) && tool.diskFull()
	switch {
	case full || isDiskFull(err):
		return problem.Wrap(err, problem.DiskFull, "free some space and build again; nothing of this build was left on the disk",
			"the disk was full while template %s was built", b.options.Name)
	case ctx.Err() != nil:
		return fmt.Errorf("build template %s: %w", b.options.Name, err)
	case problem.CodeOf(err) != problem.Internal:
		return err
	}
	stage := b.out.stageName()
	hint := "look at the last lines above; nothing of this build was left on the disk"
	if b.source.kind == sourceDebian && slices.Contains([]string{StageBootstrap, StageIndex, StageDownload}, stage) {
		name := b.options.Name
		hint = fmt.Sprintf("where this machine reaches no mirror of Debian, build it on one that does; write it there with "+
			"`sudo clawjail template image %s --output %s.tar`, and here run `sudo clawjail template import %s.tar`", name, name, name)
	}
	e := problem.Wrap(err, problem.TemplateBuildFailed, hint,
		"template %s could not be built: stage %s", b.options.Name, stage).With("stage", stage)
	if tool != nil {
		e = e.With("output", slices.Clone(tool.lines))
	}
	return e
}

func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isHostError reports that an error is the host's or the caller's, and not the source's.
func isHostError(err error) bool {
	return isDiskFull(err) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EPERM) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
