package access

import (
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/clawjail/clawjail/internal/gateway/inject"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// longestURL bounds a URL, in bytes.
const longestURL = 8 << 10

// Target reads the absolute URL of a request that is to leave. The result has a canonical host, a path that nobody can
// read in two ways, a query that may stand in a request line, and no fragment: what is decided about is what is sent.
func Target(text string) (*url.URL, *problem.Error) { return TargetOf(text, false) }

// TargetOf is Target for a server that may take encoded slashes; see [PlainPath].
func TargetOf(text string, slashes bool) (*url.URL, *problem.Error) {
	bad := func(what string) (*url.URL, *problem.Error) {
		return nil, problem.New(problem.BadURL, "Write an absolute URL, such as https://api.example.com/v1/items?limit=5.", "the URL %s", what)
	}
	if len(text) > longestURL {
		return bad("is too long")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return bad("is not valid")
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("is not an http or https URL")
	case u.User != nil:
		return bad("has a user name or a password in it; the gateway puts the credential in")
	case u.Opaque != "":
		return bad("is not absolute")
	}
	to, err := hostport.FromURL(u)
	if err != nil {
		return nil, problem.Wrap(err, problem.BadHost,
			"Write the host as a plain name, or an address as 1.2.3.4 or [2001:db8::1], with a port from 1 to 65535 and without user name.",
			"the URL has no valid host")
	}
	u.Host = to.HostHeader(u.Scheme)
	u.Fragment, u.RawFragment = "", ""
	u.ForceQuery = false
	if u.Path == "" {
		u.Path, u.RawPath = "/", ""
	}
	path, refusal := PlainPath(u.EscapedPath(), slashes)
	if refusal != nil {
		return nil, refusal
	}
	if slashes {
		u.RawPath = path
	}
	u.RawQuery = inject.PlainQuery(u.RawQuery)
	return u, nil
}

// PlainPath refuses a path that can be read in two ways, and returns it as it is to be sent. For a server that takes an encoded
// slash for a part of its segment that is the canonical form, as rules read it: no two servers agree about others.
func PlainPath(path string, slashes bool) (string, *problem.Error) {
	canonical, ok := policy.Canonical(path, slashes)
	if !ok {
		return "", problem.New(problem.PathDenied,
			"Write the path without \"..\", \"//\", backslashes and encoded slashes (%2F): programs read those in different ways.",
			"the path of the URL can be read in two ways")
	}
	if slashes {
		return canonical, nil
	}
	return path, nil
}

// SameOrigin says whether two targets have the same scheme, host and port.
func SameOrigin(a, b *url.URL) bool { return a.Scheme == b.Scheme && a.Host == b.Host }

// Method reads a method. Those are refused that would show the credential to the caller, or are no requests.
func Method(text string) (string, *problem.Error) {
	method := strings.ToUpper(text)
	if len(method) > 32 || !httpguts.ValidHeaderFieldName(method) {
		return "", problem.New(problem.BadRequest, "Write a method such as GET or POST.", "the method is not valid")
	}
	switch method {
	case "CONNECT", "TRACE", "TRACK":
		return "", problem.New(problem.MethodDenied, "Do not retry: use the gateway as a proxy for tunnels; TRACE is never sent.",
			"the method %s is not sent with a credential", method)
	}
	return method, nil
}
