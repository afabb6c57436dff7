package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/clawjail/clawjail/internal/base/texts"
)

// Path says which paths a rule is about. The zero Path is about all of them.
//
//	/repos/clawjail     that path and nothing else
//	/repos/*/issues     * stands for exactly one segment
//	/repos/**           ** at the end stands for any number of segments, also none
//
// Paths are compared segment by segment, decoded once. A slash at the end makes no difference, neither in the pattern nor
// in a request: most servers serve the same with and without it, and so a rule that denies must not be escaped by adding one.
//
// Upper and lower case are two paths to some servers and one to others, and what follows a semicolon is a parameter to some
// and part of the name to others. A rule that denies meets a path that it denies in one of the readings: in any case, with
// the parameters or without. A rule that allows needs the path as it is written.
//
// Any other reading of a path by a server is its own affair (rewriting). Rules that allow paths are therefore sound, and rules
// that deny some paths of an allowed host are a convenience.
type Path struct{ text string }

// Limits of a pattern: its text in bytes, and its segments.
const (
	maxPathText     = 2048
	maxPathSegments = 64
)

// notInPatterns are characters that a path may have and that people only write into a pattern when they mean a regular
// expression. In the rare path that has one, it is written with its escape.
const notInPatterns = `()[]{}|^$+?`

// ParsePath reads a pattern. Literal segments may have escapes (%20); a pattern that could be read in two ways is
// refused, as [Ambiguous] says. The empty text is no pattern: "all paths" is a Path that is not set.
func ParsePath(s string) (Path, error) { return parsed(s, false) }

// ParsePathWithSlashes is ParsePath of a pattern for a server that takes an encoded slash for a part of a segment: a literal
// segment may have some, as in /projects/group%2Fname. It is no pattern that ParsePath reads back.
func ParsePathWithSlashes(s string) (Path, error) { return parsed(s, true) }

func parsed(s string, slashes bool) (Path, error) {
	p, err := parsePath(s, slashes)
	if err != nil {
		return Path{}, fmt.Errorf("path pattern %q: %w", clip(s), err)
	}
	return p, nil
}

// MustParsePath is ParsePath for constants; it panics on an error.
func MustParsePath(s string) Path {
	p, err := ParsePath(s)
	if err != nil {
		panic(err)
	}
	return p
}

func parsePath(s string, slashes bool) (Path, error) {
	switch {
	case s == "":
		return Path{}, errors.New("it is empty; leave it out for all paths")
	case len(s) > maxPathText:
		return Path{}, fmt.Errorf("it is longer than %d bytes", maxPathText)
	case s[0] != '/':
		return Path{}, errors.New("it does not start with /")
	}
	text := strings.TrimSuffix(s[1:], "/")
	if text == "" {
		if s != "/" {
			return Path{}, errors.New("it has an empty segment")
		}
		return Path{text: "/"}, nil
	}
	segments := strings.Split(text, "/")
	if len(segments) > maxPathSegments {
		return Path{}, fmt.Errorf("it has more than %d segments", maxPathSegments)
	}
	for i, raw := range segments {
		switch {
		case raw == one:
		case raw == rest && i == len(segments)-1:
		case raw == rest:
			return Path{}, errors.New("** stands only at the end")
		case strings.Contains(raw, "*"):
			return Path{}, errors.New("* stands for a whole segment, not for a part of one; write %2A for the character")
		case strings.ContainsAny(raw, notInPatterns):
			return Path{}, fmt.Errorf("it is not a regular expression; write the characters %s with their escapes", notInPatterns)
		default:
			plain, why := readSegment(raw, slashes)
			if why != "" {
				return Path{}, errors.New(why)
			}
			segments[i] = plain
		}
	}
	text = "/" + strings.Join(segments, "/")
	if len(text) > maxPathText {
		// It could not be read back.
		return Path{}, fmt.Errorf("it is longer than %d bytes with its escapes", maxPathText)
	}
	return Path{text: text}, nil
}

// The wildcards. As characters of a path they are escaped in the canonical form, and so cannot be mistaken.
const (
	one  = "*"
	rest = "**"
)

// IsZero reports whether the path is not set, which is about all paths.
func (p Path) IsZero() bool { return p.text == "" }

// String returns the form that ParsePath reads back; "" for the zero Path.
func (p Path) String() string { return p.text }

// MarshalText implements encoding.TextMarshaler.
func (p Path) MarshalText() ([]byte, error) { return []byte(p.text), nil }

// UnmarshalText implements encoding.TextUnmarshaler with the rules of ParsePath.
func (p *Path) UnmarshalText(text []byte) error {
	parsed, err := ParsePath(string(text))
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}

// matches compares with a path in its canonical form.
func (p Path) matches(canonical string) bool {
	pattern, path := strings.TrimPrefix(p.text, "/"), strings.TrimPrefix(canonical, "/")
	for pattern != "" {
		var want, have string
		want, pattern, _ = strings.Cut(pattern, "/")
		if want == rest {
			return true
		}
		if path == "" {
			return false
		}
		have, path, _ = strings.Cut(path, "/")
		if want != one && want != have {
			return false
		}
	}
	return path == ""
}

// Ambiguous reports whether the path of a request, with its escapes as it was sent, can be read in two ways: it has an
// encoded slash or a backslash, a dot segment (also an encoded one, or one with parameters), an empty segment, an
// escape that is not valid, encodes another or is not UTF-8, a control character, a character that becomes one of these
// in another form of Unicode, or does not start with a slash.
// Such a path meets no rule that allows a path and every rule that denies one; a caller that sees paths refuses it at once.
//
// The empty path is ambiguous too: where an absolute URL has none, it is "/", and the caller writes that first.
func Ambiguous(path string) bool {
	_, why := readPath(path, false)
	return why != ""
}

// Canonical is a path of a request in the one form in which rules compare it and in which it is to be sent. With slashes an
// encoded slash is a part of its segment, where what stands between slashes is no dot segment and not empty. There is none,
// and ok is false, where the path is [Ambiguous] beside that.
func Canonical(path string, slashes bool) (canonical string, ok bool) {
	canonical, why := readPath(path, slashes)
	if why == "" && canonical != "/" && strings.HasSuffix(path, "/") {
		canonical += "/"
	}
	return canonical, why == ""
}

// readPath returns the canonical form of a path: decoded once, encoded in one way, without a slash at the end. Why is
// not empty when there is none.
func readPath(path string, slashes bool) (canonical, why string) {
	if path == "" || path[0] != '/' {
		return "", "it does not start with a slash"
	}
	left := strings.TrimSuffix(path[1:], "/")
	if left == "" {
		if path != "/" {
			return "", whyEmpty
		}
		return "/", ""
	}
	if plainPath(left) {
		return path[:1+len(left)], ""
	}
	var out strings.Builder
	out.Grow(len(path) + 16)
	for more := true; more; {
		var raw string
		raw, left, more = strings.Cut(left, "/")
		segment, why := readSegment(raw, slashes)
		if why != "" {
			return "", why
		}
		out.WriteByte('/')
		out.WriteString(segment)
	}
	return out.String(), ""
}

const whyEmpty = "it has an empty segment"

// readings returns what servers may read in a canonical path: the path in one case and, where it has a semicolon, that with
// each segment without what follows it, and up to the first one; and all of these with encoded slashes as slashes.
func readings(canonical string) []string {
	canonical = inOneCase(canonical)
	out := withoutParameters(canonical)
	if strings.Contains(canonical, encodedSlash) {
		// The server is said to take it for a part of a segment. A rule that denies does not rely on that.
		out = append(out, withoutParameters(strings.ReplaceAll(canonical, encodedSlash, "/"))...)
	}
	return out
}

// encodedSlash is a slash that is a part of a segment, in the canonical form.
const encodedSlash = "%2F"

func withoutParameters(canonical string) []string {
	before, _, found := strings.Cut(canonical, ";")
	if !found {
		return []string{canonical}
	}
	segments := strings.Split(canonical, "/")
	for i, segment := range segments {
		segments[i], _, _ = strings.Cut(segment, ";")
	}
	return []string{canonical, strings.Join(segments, "/"), before}
}

// inOneCase returns a canonical path, or a pattern, that is the same for all that differ in the case of their letters.
func inOneCase(text string) string {
	if !strings.Contains(text, "%") {
		return strings.ToLower(text) // it is ASCII
	}
	segments := strings.Split(text, "/")
	for i, segment := range segments {
		if plain, ok := decodeOnce(segment); ok && segment != one && segment != rest {
			segments[i] = encode(strings.Map(fold, plain))
		}
	}
	return strings.Join(segments, "/")
}

// fold is the first of the letters that differ from a letter in their case alone.
func fold(r rune) rune {
	minimum := r
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		minimum = min(minimum, other)
	}
	return unicode.ToLower(minimum) // as the letters of a path that is ASCII
}

// inOneCase is what a rule that denies compares with [readings].
func (p Path) inOneCase() Path { return Path{text: inOneCase(p.text)} }

// plainPath says quickly that a path is already canonical. It may be wrong about such paths, never about others.
func plainPath(s string) bool {
	start := true
	for i := range len(s) {
		c := s[i]
		if (c == '.' || c == ';') && start || c == '/' && start || c != '/' && !keeps(c) {
			return false
		}
		start = c == '/'
	}
	return !start
}

// readSegment returns a segment in its canonical form, or why it has none.
func readSegment(raw string, slashes bool) (canonical, why string) {
	if raw == "" {
		return "", whyEmpty
	}
	if strings.ContainsAny(raw, " ?#") {
		return "", "it has a character that must be escaped"
	}
	plain, ok := decodeOnce(raw)
	if !ok {
		return "", "it has an escape that is not valid"
	}
	if slashes && strings.Contains(plain, "/") {
		for part := range strings.SplitSeq(plain, "/") {
			if why := ambiguity(part); why != "" {
				return "", why
			}
		}
		return encode(plain), ""
	}
	if why := ambiguity(plain); why != "" {
		return "", why
	}
	return encode(plain), ""
}

// ambiguity says why a decoded segment can be read in two ways, if it can.
func ambiguity(plain string) string {
	switch {
	case strings.ContainsAny(plain, `/\`):
		return "it has an encoded slash or a backslash"
	case !utf8.ValidString(plain):
		return "it is not UTF-8"
	case strings.ContainsFunc(plain, unicode.IsControl):
		return "it has a control character"
	case hasEscape(plain):
		return "it is encoded twice"
	case isNamed(plain, ".", ".."):
		return "it has a dot segment"
	case isNamed(plain, ""):
		return whyEmpty
	case strings.ContainsFunc(plain, func(r rune) bool { return r >= 0x80 }) && becomesAnother(plain):
		return "it has a character that some servers take for a slash, a dot or a percent sign"
	}
	return ""
}

// isNamed says whether a segment has one of the names. Some servers take what follows a semicolon for parameters, and
// what is before it for the segment.
func isNamed(plain string, names ...string) bool {
	name, _, _ := strings.Cut(plain, ";")
	return slices.Contains(names, name)
}

// becomesAnother says whether a segment means something else to servers that write it in Unicode's form NFKC, such as
// one with a fullwidth solidus, or that take the slashes of mathematics for the one of ASCII.
func becomesAnother(plain string) bool {
	normal := norm.NFKC.String(plain)
	return strings.ContainsAny(plain, "\u2044\u2215\u29f5\u29f8") || strings.ContainsAny(normal, `/\`) ||
		hasEscape(normal) || isNamed(normal, ".", "..", "") || strings.Count(normal, "?")+strings.Count(normal, "#") !=
		strings.Count(plain, "?")+strings.Count(plain, "#")
}

func decodeOnce(s string) (string, bool) {
	if !strings.Contains(s, "%") {
		return s, true
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			out = append(out, s[i])
			continue
		}
		if !escapeAt(s, i) {
			return "", false
		}
		out = append(out, unhex(s[i+1])<<4|unhex(s[i+2]))
		i += 2
	}
	return string(out), true
}

func escapeAt(s string, i int) bool {
	return i+2 < len(s) && s[i] == '%' && isHex(s[i+1]) && isHex(s[i+2])
}

func hasEscape(s string) bool {
	for i := range len(s) {
		if escapeAt(s, i) {
			return true
		}
	}
	return false
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= (c|0x20) && (c|0x20) <= 'f' }

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return (c | 0x20) - 'a' + 10
}

// keeps says which bytes stand for themselves in the canonical form. The wildcard is not among them.
func keeps(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~!&',;=:@", c) >= 0
}

func encode(s string) string {
	const digits = "0123456789ABCDEF"
	var out strings.Builder
	for i := range len(s) {
		if c := s[i]; keeps(c) {
			out.WriteByte(c)
		} else {
			out.WriteString(string([]byte{'%', digits[c>>4], digits[c&15]}))
		}
	}
	return out.String()
}

// clip keeps an error message short, whatever the text.
func clip(s string) string { return texts.Clip(s, 100) }
