package inject

import (
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/problem"
)

// intoPath puts a value where the placeholder is, the first one: a path begins with that of the base URL, which has exactly
// one, and what a client writes comes behind it.
func intoPath(u *url.URL, value []byte) error {
	before, after, found := strings.Cut(u.EscapedPath(), egress.EscapedPlaceholder)
	if !found {
		return problem.New(problem.BadRequest, "Do not retry: the operator has to correct the service.",
			"the path has no %s for the credential", egress.Placeholder)
	}
	// A path that every server reads in the same way has the value as it is. It is in one segment then, which is no dot segment.
	const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:@!$&'()*+,="
	if text := string(value); strings.Trim(text, plain) != "" || strings.Trim(text, ".") == "" {
		return problem.New(problem.BadSecret, storeAgain,
			"the secret cannot be a part of a path: it has a slash, a percent sign or another character that is written with an escape there, or is dots alone")
	}
	path := before + string(value) + after
	decoded, err := url.PathUnescape(path)
	if err != nil {
		return problem.Wrap(err, problem.BadRequest, "Write every % as %25.", "the path of the URL can be read in two ways")
	}
	u.Path, u.RawPath = decoded, path
	return nil
}
