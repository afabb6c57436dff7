package cookiefile

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
)

// httpOnly is in front of the domain of a cookie that scripts cannot read; to older programs it is a comment.
const httpOnly = "#HttpOnly_"

// parseNetscape reads cookies.txt, the format of Netscape, curl, wget and yt-dlp: one cookie in a line, with tabs
// between domain, whether sub-domains get it, path, whether it is secure, expiry in seconds (0: session), name and
// value.
func parseNetscape(text []byte) (*found, error) {
	out := &found{format: Netscape}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		line = bytes.TrimRight(line, "\r\n")
		if comment(line) {
			continue
		}
		if len(out.cookies)+len(out.broken) == cookies.MaxCookies {
			return nil, bad("export the cookies of one site only", "the file has more than %d cookies", cookies.MaxCookies)
		}
		c, wrong := parseLine(line)
		if wrong != "" {
			out.broken = append(out.broken, broken(fmt.Sprintf("line %d", number), "%s", wrong))
			continue
		}
		out.cookies = append(out.cookies, c)
	}
	if len(out.cookies) == 0 && !bytes.Contains(firstLine(text), []byte("HTTP Cookie File")) {
		return nil, bad(formats, "the file is not one that clawjail knows")
	}
	return out, nil
}

func comment(line []byte) bool {
	return len(bytes.TrimSpace(line)) == 0 || line[0] == '#' && !bytes.HasPrefix(line, []byte(httpOnly))
}

func firstLine(text []byte) []byte {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return line
}

func parseLine(line []byte) (c cookies.Cookie, wrong string) {
	line, c.HTTPOnly = cutPrefix(line, httpOnly)
	fields := bytes.SplitN(line, []byte("\t"), 7)
	switch len(fields) {
	case 7:
	case 6:
		// curl leaves the tab out when the value is empty.
		fields = append(fields, nil)
	default:
		return c, fmt.Sprintf("it has %d fields between tabs instead of 7", len(fields))
	}
	sub, ok1 := boolean(fields[1])
	secure, ok2 := boolean(fields[3])
	if !ok1 || !ok2 {
		return c, "the second and the fourth field must be TRUE or FALSE"
	}
	// Some exports have a fraction.
	expires, err := strconv.ParseFloat(string(fields[4]), 64)
	if err != nil || expires < 0 && expires != cookies.Session {
		return c, "the expiry is not a number of seconds"
	}
	if expires == 0 {
		expires = cookies.Session
	}
	// The flag decides; the dot is there in some files only.
	host, _ := cutPrefix(fields[0], ".")
	c.Domain = string(bytes.ToLower(host))
	if sub {
		c.Domain = "." + c.Domain
	}
	c.Path, c.Secure, c.Expires, c.Session = string(fields[2]), secure, expires, expires == cookies.Session
	c.Name, c.Value = string(fields[5]), secret.New(fields[6])
	c.Size = int64(len(fields[5]) + len(fields[6]))
	return c, ""
}

func cutPrefix(b []byte, prefix string) (rest []byte, found bool) {
	return bytes.CutPrefix(b, []byte(prefix))
}

func boolean(b []byte) (value, ok bool) {
	value = bytes.EqualFold(b, []byte("TRUE"))
	return value, value || bytes.EqualFold(b, []byte("FALSE"))
}
