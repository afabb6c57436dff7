package template

import (
	"path/filepath"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// The kinds of sources.
const (
	sourceDebian  = "debian"
	sourceImage   = "oci"
	sourceArchive = "oci-archive"
	sourceDir     = "dir"
	sourceNPM     = "npm" // on Linux only
	// On FreeBSD only.
	sourceBase     = "base.txz"
	sourceBastille = "bastille"
)

// source is what a template is made from.
type source struct {
	kind string
	// value is the image's reference, the package of npm, the absolute path of a file or a folder, or the name of Bastille's jail; empty for Debian
	// packages, for a base system that is fetched, and for the jail of the template's own name.
	value string
}

// parseSource reads a --from option.
func parseSource(text string) (source, error) {
	if text == "" || text == sourceDebian {
		return source{kind: sourceDebian}, nil
	}
	if text == sourceBase || text == sourceBastille {
		return source{kind: text}, nil
	}
	const hint = "write --from debian, --from oci:REF, --from oci-archive:FILE --from npm:PACKAGE or --from dir:PATH; on FreeBSD --from base.txz or --from bastille"
	kind, value, found := strings.Cut(text, ":")
	if !found || value == "" || strings.ContainsRune(value, 0) {
		return source{}, problem.New(problem.BadTemplate, hint, "%q is not a source of templates", text)
	}
	switch kind {
	case sourceImage:
		if _, err := parseReference(value); err != nil {
			return source{}, problem.Wrap(err, problem.BadTemplate, "write it like --from oci:docker.io/library/debian:bookworm",
				"%q is not the reference of an image", value)
		}
	case sourceNPM:
		if _, _, err := parseNPM(value); err != nil {
			return source{}, err
		}
	case sourceBastille:
		if !bastilleName.MatchString(value) {
			return source{}, problem.New(problem.BadTemplate, "write the whole name, like --from bastille:browser", "%q is not the name of a jail", value)
		}
	case sourceArchive, sourceDir, sourceBase:
		path, err := filepath.Abs(value)
		if err != nil {
			return source{}, problem.Wrap(err, problem.BadTemplate, "give an absolute path", "%q is not a path", value)
		}
		value = path
	default:
		return source{}, problem.New(problem.BadTemplate, hint, "%q is not a source of templates", text)
	}
	return source{kind: kind, value: value}, nil
}
