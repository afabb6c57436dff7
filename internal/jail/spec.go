package jail

import (
	"errors"
	"path"
	"strings"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of a Spec.
const (
	MaxHomeFiles = 1 << 20 // bytes of all staged home files together
	// MaxHomeFileCount bounds how many they are: also an empty one takes memory of the host.
	MaxHomeFileCount = 256
	maxArguments     = 1024
	maxArgBytes      = 64 << 10 // of all arguments and the environment together
)

// Validate reports everything that is wrong with a Spec at once. It looks at the Spec alone: whether the
// template exists is the driver's to say.
func (s Spec) Validate() error {
	var errs []error
	bad := func(hint, format string, a ...any) {
		errs = append(errs, problem.New(problem.BadRequest, hint, format, a...))
	}
	if _, err := s.Kind.prefix(); err != nil {
		errs = append(errs, err)
	}
	if s.Lifetime != LifetimeOwner && s.Lifetime != LifetimeKeep {
		bad("the lifetimes are owner and keep", "%q is not a lifetime", texts.Clip(string(s.Lifetime), 40))
	}
	errs = append(errs, s.validateSource()...)
	errs = append(errs, s.validateAgent()...)
	errs = append(errs, s.Program.validate(s.Image != "")...)
	errs = append(errs, validateStaged(s.HomeFiles)...)
	if err := s.Limits.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// validateStaged accepts a list of files that can all be made: each path once, and none below another that is a file.
func validateStaged(files []File) (errs []error) {
	bad := func(hint, format string, a ...any) {
		errs = append(errs, problem.New(problem.BadRequest, hint, format, a...))
	}
	if len(files) > MaxHomeFileCount {
		bad("stage fewer", "there are %d staged files, more than %d", len(files), MaxHomeFileCount)
		return errs
	}
	total := 0
	isFolder := make(map[string]bool) // by path; false for a file
	for _, f := range files {
		total += len(f.Data)
		if !validStagePath(f.Path) {
			bad("use a relative path of letters, digits, spaces, dots, dashes and slashes, without dot elements",
				"%q is not a path that can be staged", texts.Clip(f.Path, 80))
			continue
		}
		_, taken := isFolder[f.Path]
		for dir := path.Dir(f.Path); dir != "." && !taken; dir = path.Dir(dir) {
			folder, known := isFolder[dir]
			taken = known && !folder
			isFolder[dir] = true
		}
		if taken {
			bad("give each file a path of its own, and stage nothing below a file", "%q is staged twice, or lies below a staged file",
				texts.Clip(f.Path, 80))
		}
		isFolder[f.Path] = false
	}
	if total > MaxHomeFiles {
		bad("stage less", "the staged files have %d bytes, more than %d", total, MaxHomeFiles)
	}
	return errs
}

// ValidTemplateName accepts [a-z0-9]{1,20}: the name becomes part of paths.
func ValidTemplateName(s string) error {
	ok := s != "" && len(s) <= 20
	for i := 0; ok && i < len(s); i++ {
		ok = isLowerOrDigit(s[i])
	}
	if !ok {
		return problem.New(problem.BadTemplate, "template names have 1 to 20 characters of a-z and 0-9; `clawjail template ls` shows them",
			"%q is not the name of a template", texts.Clip(s, 40))
	}
	return nil
}

func (p Program) validate(image bool) (errs []error) {
	bad := func(hint, format string, a ...any) {
		errs = append(errs, problem.New(problem.BadRequest, hint, format, a...))
	}
	if len(p.Argv) == 0 && image {
		// The image says what runs.
	} else if len(p.Argv) == 0 || len(p.Argv) > maxArguments {
		bad("name a program", "a program needs 1 to %d arguments, not %d", maxArguments, len(p.Argv))
	} else if !path.IsAbs(p.Argv[0]) && !image {
		bad("give the absolute path of the program inside the jail", "%q is not an absolute path", texts.Clip(p.Argv[0], 80))
	}
	if p.Dir != "" && !path.IsAbs(p.Dir) {
		bad("give an absolute path inside the jail", "the working directory %q is not an absolute path", texts.Clip(p.Dir, 80))
	}
	if p.Wire != WireStdio && p.Wire != WirePipe34 {
		bad("the wires are stdio and pipe34", "%q is not a wire", texts.Clip(string(p.Wire), 40))
	}
	total := len(p.Dir)
	for _, a := range p.Argv {
		total += len(a)
		if strings.ContainsRune(a, 0) {
			bad("remove it", "an argument contains a NUL byte")
		}
	}
	for k, v := range p.Env {
		total += len(k) + len(v)
		if !validEnvName(k) {
			bad("use letters, digits and underscores, not starting with a digit", "%q is not the name of a variable", texts.Clip(k, 40))
		}
		if strings.ContainsRune(v, 0) {
			bad("remove it", "the variable %s contains a NUL byte", texts.Clip(k, 40))
		}
	}
	for _, name := range p.Without {
		total += len(name)
		if !validEnvName(name) || name == "HOME" {
			bad("name another variable", "the variable %q cannot be left out", texts.Clip(name, 40))
		}
	}
	if total > maxArgBytes {
		bad("shorten them", "arguments and environment have %d bytes, more than %d", total, maxArgBytes)
	}
	return errs
}

// Program.Validate is what Spec.Validate says of a program in a jail that is not a container.
func (p Program) Validate() error { return errors.Join(p.validate(false)...) }

// searcher finds a program that is named without a path, in a jail as everywhere.
const searcher = "/usr/bin/env"

// Searched is a command line whose program is searched in PATH, when it is a plain name. It leaves a name with an equals sign,
// which env(1) would take for a variable.
func Searched(argv []string) []string {
	if len(argv) == 0 || argv[0] == "" || strings.ContainsAny(argv[0], "/=") || argv[0][0] == '-' {
		return argv
	}
	return append([]string{searcher}, argv...)
}

func validEnvName(s string) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 256
}

func validStagePath(s string) bool {
	if s == "" || len(s) > 200 || strings.HasPrefix(s, "/") {
		return false
	}
	for _, e := range strings.Split(s, "/") {
		if e == "" || e == "." || e == ".." {
			return false
		}
		for _, c := range []byte(e) {
			if !isLowerOrDigit(c) && !(c >= 'A' && c <= 'Z') && c != '.' && c != '-' && c != '_' && c != ' ' {
				return false
			}
		}
	}
	return true
}
