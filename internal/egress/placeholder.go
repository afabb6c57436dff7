package egress

import (
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// Placeholder stands for the credential in the path of a base URL whose injection is [InjectPath], and in every record,
// message and address that has such a path.
const Placeholder = "{secret}"

// EscapedPlaceholder is Placeholder as it stands in a path with its escapes.
const EscapedPlaceholder = "%7Bsecret%7D"

// validPlaceholder says whether a base URL has the placeholder where its injection needs it, and nowhere else. The agent's part of
// a URL comes after the base URL, so that the first placeholder of a request is the operator's.
func validPlaceholder(f *flaws, base endpoint, i Injection) {
	const hint = "such as https://api.telegram.org/bot{secret}"
	n := strings.Count(base.path, EscapedPlaceholder)
	switch {
	case i.Type != InjectPath:
		if n > 0 {
			f.add(problem.BadURL, "base_url", "choose path for how the credential goes in", "%s in a path is for credentials that go into it", Placeholder)
		}
	case n != 1:
		f.add(problem.BadURL, "base_url", hint, "has %s %d times in its path, and not once", Placeholder, n)
	default:
		before, after, _ := strings.Cut(base.path, EscapedPlaceholder)
		if !strings.HasSuffix(before, "/") && after != "" && !strings.HasPrefix(after, "/") {
			f.add(problem.BadURL, "base_url", hint, "has %s in the middle of a segment, and not as one, its beginning or its end", Placeholder)
		}
	}
}
