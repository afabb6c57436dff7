package template

import (
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// Recipe says how a template of a given name is made. A further template that can be built from Debian packages is one
// more row of Recipes.
type Recipe struct {
	// Suite is the release of Debian.
	Suite string
	// Packages are installed with what they depend on, without what they recommend.
	Packages []string
	// FreeBSD are the packages of a base system of FreeBSD, with what they depend on.
	FreeBSD []string
	// Extras are what `--with NAME` adds.
	Extras map[string][]string
	// Programs must be in the finished template: at least one of them. Images and folders are held to it too. A name is one of
	// the constants, or the absolute path of any other program.
	Programs []string
	// Needs are absolute paths of programs that must all be there when it is built from packages.
	Needs []string
	// FreeBSDNeeds are the same for a base system of FreeBSD.
	FreeBSDNeeds []string
	// Files are written into the finished template. A file that an image or a folder has at such a place stays.
	Files []RecipeFile
	// Main is the path of what a jail of it runs by default; empty is nothing.
	Main string
	// User is the name of the jail's user, and Home the home directory. Default: those of browsers' jails.
	User, Home string
	// TaskLimit is the default limit of tasks of its jails.
	TaskLimit int
	// NeedBytes is the free disk that a build from packages needs, downloads included.
	NeedBytes int64
}

// RecipeFile is one file of a recipe, owned by root.
type RecipeFile struct {
	Path    string // absolute, inside the template
	Mode    fs.FileMode
	Content string
}

// defaultTaskLimit is for templates from images and folders that have no recipe.
const defaultTaskLimit = 64

// Recipes are the templates that clawjail knows by name.
func Recipes() map[string]Recipe {
	return map[string]Recipe{
		"browser": {
			Suite: "bookworm",
			Packages: []string{
				"chromium", "chromium-headless-shell",
				// Metric-compatible stand-ins for the fonts that most pages name, one font with wide coverage of
				// scripts, one for Chinese, Japanese and Korean, the emoji, and a font for each other script.
				"fonts-liberation", "fonts-dejavu-core", "fonts-wqy-microhei", "fonts-noto-color-emoji", "fonts-noto-core", "fontconfig",
				"ca-certificates",
				"libnss3-tools", // certutil: extra certificate authorities are added to a jail's own NSS database
			},
			// The same fonts as of Debian; nss has certutil.
			FreeBSD: []string{
				"chromium", "liberation-fonts-ttf", "dejavu", "wqy-fonts", "noto-emoji", "noto-extra", "fontconfig", "ca_root_nss", "nss",
			},
			Extras:    map[string][]string{"node": {"nodejs"}},
			Programs:  []string{ProgramShell, ProgramFull},
			TaskLimit: 512, // tasks are threads as well, and one page of Chromium has a hundred
			NeedBytes: 2 << 30,
		},
		"clawbot": {
			Suite: "bookworm",
			Packages: []string{
				"ca-certificates", "curl", "git", "jq",
				"python3", // the smaller python3-minimal has neither json nor urllib
				"procps",  // ps, and what agents look at their own processes with
			},
			FreeBSD:  []string{"ca_root_nss", "curl", "git", "jq", "python3"},
			Extras:   map[string][]string{"node": {"nodejs"}},
			Programs: []string{ProgramSh},
			Needs:    []string{"/bin/sh", "/usr/bin/curl", "/usr/bin/git", "/usr/bin/jq", "/usr/bin/python3", "/usr/bin/ps"},
			FreeBSDNeeds: []string{
				"/bin/sh", "/bin/ps", "/usr/local/bin/curl", "/usr/local/bin/git", "/usr/local/bin/jq", "/usr/local/bin/python3",
			},
			Files:     []RecipeFile{{Path: clawbotPath, Mode: 0o755, Content: clawbotScript}},
			Main:      clawbotPath,
			User:      "agent",
			Home:      "/state",
			TaskLimit: defaultTaskLimit,
			NeedBytes: 1 << 30,
		},
	}
}

// Lacks are the packages that a template from packages would be given today and has not: an earlier version has built it.
func (t Template) Lacks() (names []string) {
	recipe := Recipes()[t.Name]
	wanted := recipe.Packages
	switch kind, _, _ := strings.Cut(t.Source, ":"); kind {
	case sourceDebian:
	case sourceBase:
		wanted = recipe.FreeBSD
	default:
		return nil
	}
	for _, name := range wanted {
		if t.Packages[name] == "" {
			names = append(names, name)
		}
	}
	return names
}

// Again is the command that builds a template from packages again, with the extras that it has. It is empty for others.
func (t Template) Again() string {
	if kind, _, _ := strings.Cut(t.Source, ":"); kind != sourceDebian && kind != sourceBase {
		return ""
	}
	out := "sudo clawjail template build " + t.Name + " --replace"
	extras := Recipes()[t.Name].Extras
	for _, name := range slices.Sorted(maps.Keys(extras)) {
		if !slices.ContainsFunc(extras[name], func(p string) bool { return t.Packages[p] == "" }) {
			out += " --with " + name
		}
	}
	return out
}

// buildAgain is a hint.
func (t Template) buildAgain() string {
	if again := t.Again(); again != "" {
		return "build it again: " + again
	}
	return "build it again with --replace, and --from what `clawjail template ls` says"
}

// packages are the recipe's packages with those of the extras.
func (r Recipe) packages(with []string) ([]string, error) {
	out := slices.Clone(r.Packages)
	for _, name := range with {
		extra, ok := r.Extras[name]
		if !ok {
			known := strings.Join(slices.Sorted(maps.Keys(r.Extras)), ", ")
			if known == "" {
				known = "nothing"
			}
			return nil, problem.New(problem.BadTemplate, "this template can be built with: "+known, "there is no extra %q for this template", name)
		}
		out = append(out, extra...)
	}
	return out, nil
}
