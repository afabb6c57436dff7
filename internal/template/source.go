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
)

// source is what a template is made from.
type source struct {
	kind  string
	value string // the image's reference, or the absolute path of a file or a folder; empty for Debian packages
}

// parseSource reads a --from option.
func parseSource(text string) (source, error) {
	if text == "" || text == sourceDebian {
		return source{kind: sourceDebian}, nil
	}
	const hint = "write --from debian, --from oci:REF, --from oci-archive:FILE or --from dir:PATH"
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
	case sourceArchive, sourceDir:
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
