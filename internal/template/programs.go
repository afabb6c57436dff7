package template

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// knownProgram is where a program is found in the trees of this world. A path may have * in it.
type knownProgram struct {
	name    string
	paths   []string
	version bool // whether it answers --version
}

// knownPrograms has the programs themselves, not the scripts around them: those read configuration, add flags and start
// further programs.
func knownPrograms() []knownProgram {
	return []knownProgram{
		{ProgramShell, []string{
			"/usr/lib/chromium/chromium-headless-shell", "/usr/lib/chromium/headless_shell", "/headless-shell/headless-shell",
			"/opt/chrome-headless-shell-linux64/chrome-headless-shell", "/ms-playwright/chromium_headless_shell-*/chrome-*/headless_shell",
			"/ms-playwright/chromium_headless_shell-*/chrome-*/chrome-headless-shell",
		}, true},
		{ProgramFull, []string{
			"/usr/lib/chromium/chromium", "/usr/lib/chromium/chrome", "/usr/lib64/chromium-browser/chromium-browser",
			"/usr/lib/chromium-browser/chromium-browser", "/opt/google/chrome/chrome", "/opt/chrome-linux64/chrome",
			"/ms-playwright/chromium-*/chrome-linux*/chrome",
			"/usr/local/share/chromium/chrome", // FreeBSD's www/chromium
		}, true},
		{ProgramNode, []string{"/usr/bin/node", "/usr/local/bin/node", "/usr/bin/nodejs"}, true},
		{ProgramSh, shells(), false},
	}
}

// shells are where the shell of a tree is.
func shells() []string { return []string{"/bin/sh", "/usr/bin/sh", "/bin/busybox"} }

// Expected is what is known of a template before its tree is read: what it has when it is built from packages of Debian. A template without
// a recipe has a shell.
func Expected(templateName string) Template {
	recipe, known := Recipes()[templateName]
	t := Template{Name: templateName, TaskLimit: defaultTaskLimit, Programs: map[string]Program{ProgramSh: {Path: shells()[0]}}}
	if !known {
		return t
	}
	t.TaskLimit = recipe.TaskLimit
	for _, one := range knownPrograms() {
		if slices.Contains(recipe.Programs, one.name) {
			t.Programs[one.name] = Program{Path: one.paths[0]}
		}
	}
	if recipe.Main != "" {
		t.Programs[ProgramMain] = Program{Path: recipe.Main}
	}
	return t
}

// versionTime is how long a program may take to say its version.
const versionTime = 20 * time.Second

// findPrograms finds what can be started in the tree, and asks the programs for their versions. The program that the image names as
// its entrypoint has been found before.
func (b *build) findPrograms(ctx context.Context, root *os.Root) error {
	if b.template.Programs == nil {
		b.template.Programs = map[string]Program{}
	}
	for _, known := range knownPrograms() {
		file, err := firstProgram(root, known.paths)
		if err != nil {
			return err
		}
		if file == "" {
			continue
		}
		p := Program{Path: file}
		if known.version {
			if p.Version, err = b.askVersion(ctx, file); err != nil {
				return err
			}
		}
		b.template.Programs[known.name] = p
	}
	if !b.known {
		return nil
	}
	return b.recipePrograms(root)
}

// recipePrograms holds a template to what its recipe promises.
func (b *build) recipePrograms(root *os.Root) error {
	if main := b.recipe.Main; main != "" && isProgram(root, main) {
		if _, ok := b.template.Programs[ProgramMain]; !ok {
			b.template.Programs[ProgramMain] = Program{Path: main}
		}
	}
	needs := b.recipe.Needs
	if b.source.kind == sourceBase {
		needs = b.recipe.FreeBSDNeeds
	}
	if b.source.kind == sourceDebian || b.source.kind == sourceBase {
		for _, file := range needs {
			if !isProgram(root, file) {
				return fmt.Errorf("the packages of template %s have no program %s", b.options.Name, file)
			}
		}
	}
	if len(b.recipe.Programs) == 0 {
		return nil
	}
	for _, name := range b.recipe.Programs {
		if _, ok := b.template.Programs[name]; ok || path.IsAbs(name) && isProgram(root, name) {
			return nil
		}
	}
	return problem.New(problem.BadTemplate, "use a source that has one, or another name for the template",
		"a template %s needs one of these programs, and the source has none: %s", b.options.Name, strings.Join(b.recipe.Programs, ", "))
}

// askVersion runs a program of the tree as the jail's user. A browser or a node that cannot even say its version cannot
// be used, so that is an error: a library is missing, or it is built for another processor.
func (b *build) askVersion(ctx context.Context, file string) (string, error) {
	b.out.stage(StageFinish, "", 0, nil)
	printed, err := b.inTree(ctx, versionTime, file, "--version")
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", file, err)
	}
	for _, line := range slices.Backward(strings.Split(printed, "\n")) {
		line = strings.TrimSpace(line)
		if strings.ContainsAny(line, "0123456789") && strings.Contains(line, ".") {
			return line, nil
		}
	}
	return "", fmt.Errorf("%s did not say its version", file)
}

// firstProgram returns the first of the paths that is an executable file of the tree. Of several that match a pattern
// it is the last one in the order of names: the newest.
func firstProgram(root *os.Root, paths []string) (string, error) {
	for _, pattern := range paths {
		candidates := []string{pattern}
		if strings.Contains(pattern, "*") {
			found, err := fs.Glob(root.FS(), strings.TrimPrefix(pattern, "/"))
			if err != nil {
				return "", fmt.Errorf("look for programs: %w", err)
			}
			candidates = candidates[:0]
			for _, name := range slices.Backward(found) {
				candidates = append(candidates, "/"+name)
			}
		}
		for _, candidate := range candidates {
			if isProgram(root, candidate) {
				return candidate, nil
			}
		}
	}
	return "", nil
}

func isProgram(root *os.Root, file string) bool {
	resolved, err := resolve(root, file)
	if err != nil {
		return false
	}
	info, err := root.Lstat(resolved)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// maxLinks is how many symbolic links one path may lead through, as in the kernel.
const maxLinks = 40

// resolve follows symbolic links the way a process in the jail would: the tree is its /. The result is relative to the
// tree and has no links in it.
func resolve(root *os.Root, name string) (string, error) {
	rest := strings.Split(strings.Trim(path.Clean("/"+name), "/"), "/")
	current := "."
	links := 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			current = path.Dir(current)
			continue
		}
		next := path.Join(current, part)
		info, err := root.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			current = next
			continue
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "resolve", Path: name, Err: errors.New("too many links")}
		}
		target, err := root.Readlink(next)
		if err != nil {
			return "", err
		}
		if path.IsAbs(target) {
			current = "."
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return current, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
