// Package inject puts a credential into a request, and only where the operator, or the request's tool, says.
//
// A value that the client sent in the same place is removed, in every spelling that a server may take for it, and so is every
// Authorization of its own: a request leaves with the injected credential or with none. A value that cannot be sent as
// it is, or that is too short to be found again in the answer, is refused; nothing is sent then.
package inject

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

// storeAgain is the hint for values that cannot be used as they are.
const storeAgain = "Do not retry: the operator has to store the secret again, exactly as the service gave it, without line ends or blanks around it."

// Into puts a credential into r. It returns what the answer must not have in it: the value, and every other text that
// was made of it. The header and the URL of r are replaced by copies, so that code that shares them sees no credential.
//
// The codes of its errors are bad_secret, for a value that cannot be sent or scrubbed, and bad_request, for an
// injection that makes no sense. r has no credential then, neither ours nor the client's.
func Into(r *http.Request, i egress.Injection, v secret.Value) (scrub [][]byte, err error) {
	if err := Clear(r, i); err != nil || i.Type == egress.InjectNone {
		return nil, err
	}
	err = v.Use(func(value []byte) error {
		if err := vault.Sendable(value); err != nil {
			return problem.New(problem.BadSecret, storeAgain, "%v", err)
		}
		scrub = append(scrub, bytes.Clone(value))
		switch i.Type {
		case egress.InjectBearer:
			r.Header.Set("Authorization", "Bearer "+string(value))
		case egress.InjectBasic:
			pair, more, err := basic(i.User, value)
			if err != nil {
				return err
			}
			scrub = append(scrub, more...)
			r.Header.Set("Authorization", "Basic "+pair)
		case egress.InjectHeader:
			r.Header.Set(i.Name, string(value))
		case egress.InjectQuery:
			r.URL.RawQuery = withParameter(r.URL.RawQuery, i.Name, value)
		case egress.InjectPath:
			return intoPath(r.URL, value)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return scrub, nil
}

// Clear removes what the client sent in the place of an injection, and every Authorization, as [Into] does before it puts
// the credential in.
func Clear(r *http.Request, i egress.Injection) error {
	r.Header = r.Header.Clone()
	if r.Header == nil {
		r.Header = http.Header{}
	}
	drop(r.Header, "Authorization")
	drop(r.Header, "Proxy-Authorization")
	if err := Check(i); err != nil {
		return err
	}
	switch i.Type {
	case egress.InjectHeader:
		drop(r.Header, i.Name)
	case egress.InjectQuery:
		u := *r.URL
		u.RawQuery = WithoutParameter(u.RawQuery, i.Name)
		r.URL = &u
	case egress.InjectPath:
		u := *r.URL
		r.URL = &u
	}
	return nil
}

// Check says what is wrong with an injection; the code is bad_request.
func Check(i egress.Injection) error {
	wrong := func(format string, args ...any) error {
		return problem.New(problem.BadRequest, "The types are bearer, basic, header, query, path and none; header and query need a name.", format, args...)
	}
	switch i.Type {
	case egress.InjectNone, egress.InjectBearer, egress.InjectPath:
	case egress.InjectBasic:
		if strings.ContainsFunc(i.User, func(c rune) bool { return c == ':' || c < ' ' || c == 0x7f }) || len(i.User) > longestName {
			return wrong("the user name of the injection has a colon or a control character, or is too long")
		}
	case egress.InjectHeader:
		if !headerName(i.Name) {
			return wrong("the injection names no header that may hold a credential")
		}
	case egress.InjectQuery:
		if !parameterName(i.Name) {
			return wrong("the injection names no query parameter")
		}
	default:
		return wrong("the injection has no type that is known")
	}
	return nil
}

// longestName bounds the names of headers, parameters and users.
const longestName = 128

// headerName accepts names of headers that say nothing about how the message is framed or routed.
func headerName(name string) bool {
	if len(name) > longestName || !httpguts.ValidHeaderFieldName(name) {
		return false
	}
	plain := spelling(name)
	for _, reserved := range []string{
		"host", "content-length", "content-type", "content-encoding", "content-range", "transfer-encoding", "te", "trailer", "connection",
		"keep-alive", "upgrade", "expect", "via", "forwarded", "accept-encoding", "range", "if-range", "location", "referer", "user-agent",
	} {
		if plain == reserved {
			return false
		}
	}
	return !strings.HasPrefix(plain, "proxy-") && !strings.HasPrefix(plain, "x-forwarded-") && !strings.HasPrefix(plain, "clawjail-")
}

// parameterName accepts what reads the same to every server.
func parameterName(name string) bool {
	const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~"
	return name != "" && len(name) <= longestName && strings.Trim(name, plain) == ""
}

// basic encodes a user name and a password. Without a user the value is both, and each half of it is a secret.
func basic(user string, value []byte) (pair string, scrub [][]byte, err error) {
	whole := value
	if user != "" {
		whole = append([]byte(user+":"), value...)
	} else {
		name, password, found := bytes.Cut(value, []byte(":"))
		// Services ask for one character at most in the place that they do not use ("KEY:", "KEY:X"). A longer text may be a
		// password, and one that cannot be found in answers.
		if !found || len(password) > 1 && len(password) < redact.Shortest || len(password) <= 1 && len(name) < redact.Shortest {
			return "", nil, problem.New(problem.BadSecret, "Do not retry: the operator has to store the secret as user:password, or give the injection a user.",
				"the secret is not a user name and a password of %d bytes or more", redact.Shortest)
		}
		for _, half := range [][]byte{name, password} {
			if len(half) >= redact.Shortest {
				scrub = append(scrub, bytes.Clone(half))
			}
		}
	}
	pair = base64.StdEncoding.EncodeToString(whole)
	return pair, append(scrub, []byte(pair)), nil
}
