package browser

import (
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// blank is the one address that is not on the web.
const blank = "about:blank"

const urlHint = "give a full address such as https://example.com/page"

// CheckURL returns the address to open, or a problem with the code bad_url. Only http and https are let through, and
// about:blank: file:, view-source:, chrome: and the like reach what is not the web. A user name or password in the
// address is refused, because addresses are logged.
func CheckURL(raw string) (string, error) {
	trimmed := strings.TrimSpace(raw)
	if trimmed == "" {
		return "", problem.New(problem.BadURL, urlHint, "url is required")
	}
	if trimmed == blank {
		return blank, nil
	}
	if len(trimmed) > maxURL {
		return "", problem.New(problem.BadURL, urlHint, "the address has %d bytes; %d are allowed", len(trimmed), maxURL)
	}
	// A browser reads a backslash as a slash and Go does not: what was checked must be what is opened.
	if strings.ContainsRune(trimmed, '\\') {
		return "", problem.New(problem.BadURL, "write / or %5C", "the address has a backslash")
	}
	u, err := url.Parse(trimmed)
	if err != nil {
		// The parser's error repeats the address, which may hold a password.
		return "", problem.New(problem.BadURL, urlHint, "the address is not a valid URL")
	}
	switch {
	case u.Scheme == "":
		return "", problem.New(problem.BadURL, urlHint, "the address has no scheme")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", problem.New(problem.BadURL, "only http, https and about:blank can be opened",
			"addresses that begin with %q cannot be opened", bounded(u.Scheme, 40)+":")
	case u.Host == "" || u.Hostname() == "" || u.Opaque != "":
		return "", problem.New(problem.BadURL, urlHint, "the address has no host")
	case u.User != nil:
		return "", problem.New(problem.BadURL, "leave the user name and password out of the address",
			"the address has a user name or password in it")
	}
	return u.String(), nil
}
