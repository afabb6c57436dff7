package scrub

import (
	"bytes"
	"compress/zlib"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// row is a way in which an answer gives the credential away, for the table in the documentation.
type row struct {
	technique string
	note      string
	covered   bool
	// secret is token unless another one shows more.
	secret string
	// shape is the credential as it stands in the answer; serve gives it. Both have a default: as it is, in the body.
	shape   func(secret string) string
	serve   func(shape string) http.HandlerFunc
	request []string
	// refused: with redact too, the answer is refused or, when its body tells, broken off.
	refused bool
}

func (r row) name() string { return strings.ReplaceAll(r.technique, " ", "_") }

func same(s string) string { return s }

func inBody(shape string) http.HandlerFunc { return says("", "", "before "+shape+" after\n") }

func inHeader(name string) func(string) http.HandlerFunc {
	return func(shape string) http.HandlerFunc { return says(name, shape, "nothing here") }
}

func quoted(ascii bool, s string) string {
	out, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	if ascii {
		var b strings.Builder
		for _, r := range string(out) {
			if r < 0x80 {
				b.WriteRune(r)
				continue
			}
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		}
		out = []byte(b.String())
	}
	return string(out[1 : len(out)-1])
}

// each writes every byte in a format.
func each(format string) func(string) string {
	return func(s string) string {
		var b strings.Builder
		for _, c := range []byte(s) {
			fmt.Fprintf(&b, format, c)
		}
		return b.String()
	}
}

func base64After(before string, encoding *base64.Encoding) func(string) string {
	return func(s string) string { return encoding.EncodeToString([]byte(before + s)) }
}

func trailing(announced bool) func(string) http.HandlerFunc {
	return func(shape string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			name := "X-Sum"
			if announced {
				w.Header().Set("Trailer", name)
			} else {
				name = http.TrailerPrefix + name
			}
			_, _ = io.WriteString(w, "nothing here")
			w.(http.Flusher).Flush()
			w.Header().Set(name, "echo "+shape)
		}
	}
}

// raw gives bytes as they are, and closes the connection.
func raw(format string) func(string) http.HandlerFunc {
	return func(shape string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			_, _ = fmt.Fprintf(conn, format, shape)
		}
	}
}

func coded(coding string, encode func(string) string) func(string) http.HandlerFunc {
	return func(shape string) http.HandlerFunc {
		return says("Content-Encoding", coding, encode("before "+shape+" after\n"))
	}
}

func nested(s string) string { return quoted(false, `{"error":"`+quoted(false, s)+`"}`) }

func wrapped(s string) string {
	text := base64.StdEncoding.EncodeToString([]byte("credential: " + s))
	return text[:32] + "\r\n" + text[32:]
}

// mixedCase writes every second letter large.
func mixedCase(s string) string {
	text := []byte(hex.EncodeToString([]byte(s)))
	large := false
	for i, c := range text {
		if c >= 'a' && large {
			text[i] = c - 'a' + 'A'
		}
		large = large != (c >= 'a')
	}
	return string(text)
}

// covered are the rows of what is found.
func covered() []row {
	rows := []row{
		{technique: "as it is in the body"},
		{technique: "sent byte by byte", serve: func(s string) http.HandlerFunc { return says("", "", strings.Split("a "+s+" b", "")...) }},
		{technique: "sent in two chunks", serve: func(s string) http.HandlerFunc { return says("", "", "a "+s[:11], s[11:]+" b") }},
		{technique: "after a megabyte", serve: func(s string) http.HandlerFunc { return says("", "", strings.Repeat("0123456789", 1e5), s) }},
		{technique: "over the border of a buffer", serve: func(s string) http.HandlerFunc { return says("", "", strings.Repeat(".", 32<<10-9)+s+"\n") }},
		{technique: "many times", serve: func(s string) http.HandlerFunc { return says("", "", strings.Repeat(s, 3000)) }},
		{technique: "in server-sent events", serve: func(s string) http.HandlerFunc {
			return says("Content-Type", "text/event-stream", "data: 1\n\n", "data: "+s+"\n\n", "data: 3\n\n")
		}},
		{technique: "in a header", serve: inHeader("X-Echo")},
		{technique: "in the name of a header", shape: http.CanonicalHeaderKey, serve: func(s string) http.HandlerFunc { return says("X-"+s, "1", "nothing here") }},
		{technique: "in Location", shape: url.QueryEscape, secret: special, serve: func(s string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "https://example.com/?access_token="+s)
				w.WriteHeader(http.StatusFound)
			}
		}},
		{technique: "in Set-Cookie", serve: func(s string) http.HandlerFunc { return says("Set-Cookie", "t="+s+"; HttpOnly", "nothing here") }},
		{technique: "in a header of an answer without a body", serve: func(s string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Echo", s)
				w.WriteHeader(http.StatusNoContent)
			}
		}},
		{technique: "in an announced trailer", serve: trailing(true)},
		{technique: "in a trailer that comes unannounced", serve: trailing(false)},
		{technique: "in the name of an announced trailer", shape: http.CanonicalHeaderKey, serve: func(s string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", s)
				_, _ = io.WriteString(w, "nothing here")
			}
		}},
		{technique: "in the name of a trailer", shape: http.CanonicalHeaderKey, serve: func(s string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "nothing here")
				w.(http.Flusher).Flush()
				w.Header().Set(http.TrailerPrefix+s, "1")
			}
		}},
		{technique: "percent-encoded as in queries", secret: special, shape: url.QueryEscape},
		{technique: "percent-encoded as in paths", secret: special, shape: url.PathEscape},
		{technique: "percent-encoded in small digits", secret: special, shape: func(s string) string {
			return strings.NewReplacer("%2F", "%2f", "%5C", "%5c", "%3C", "%3c", "%3E", "%3e", "%2B", "%2b", "%3D", "%3d", "%C3", "%c3", "%BC", "%bc").Replace(url.QueryEscape(s))
		}},
		{technique: "in capitals", shape: strings.ToUpper},
		{technique: "in small letters", shape: strings.ToLower},
		{technique: "in capitals in a header", shape: strings.ToUpper, serve: inHeader("X-Echo")},
		{technique: "percent-encoded in mixed case", secret: special, shape: func(s string) string {
			return strings.NewReplacer("%2F", "%2f", "%C3", "%c3", "%BC", "%bC").Replace(strings.ToUpper(url.QueryEscape(s)))
		}},
		{technique: "percent-encoded, HTML-escaped and as it is by turns", secret: special, shape: func(s string) string {
			return strings.NewReplacer("%2F", "/", "%3C", "&lt;", "%22", `\"`, "%3D", "=").Replace(url.QueryEscape(s))
		}},
		{technique: "base64 in capitals", shape: func(s string) string { return strings.ToUpper(base64After("user:", base64.StdEncoding)(s)) }},
		{technique: "hexadecimal in mixed case", secret: special, shape: mixedCase},
		{technique: "hexadecimal", shape: each("%02x")},
		{technique: "hexadecimal in capitals", shape: each("%02X")},
		{technique: "in a JSON text", secret: special, shape: func(s string) string { return quoted(false, s) }},
		{technique: "in a JSON text with ASCII only", secret: special, shape: func(s string) string { return quoted(true, s) }},
		{technique: "in a JSON text within a JSON text", secret: special, shape: nested},
		{technique: "HTML-escaped", secret: special, shape: html.EscapeString},
		{technique: "reversed", shape: func(s string) string {
			var b strings.Builder
			for i := len(s) - 1; i >= 0; i-- {
				b.WriteByte(s[i])
			}
			return b.String()
		}},
		{technique: "compressed with gzip", note: "decoded", serve: coded("gzip", gzipped)},
		{technique: "compressed with zlib", note: "decoded", serve: coded("deflate", zlibbed)},
		{technique: "compressed with bare deflate", note: "decoded", serve: coded("deflate", deflated)},
		{technique: "compressed twice", note: "decoded", serve: coded("gzip, x-gzip", func(s string) string { return gzipped(gzipped(s)) })},
		{technique: "compressed with an unknown coding", note: "refused: br, zstd, compress and all others", refused: true, serve: coded("br", same)},
		{technique: "compressed with GZIP after identity and nothing", note: "decoded", serve: coded("identity, , GZIP", gzipped)},
		{technique: "compressed as two lines of the header say", note: "decoded", serve: func(s string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Encoding"] = []string{"deflate", "gzip"}
				_, _ = io.WriteString(w, gzipped(zlibbed("before "+s+" after")))
			}
		}},
		{technique: "compressed with a coding that has parameters", note: "refused", refused: true, serve: coded("gzip;q=1", gzipped)},
		{technique: "encrypted with a content coding", note: "refused: aes128gcm", refused: true, serve: coded("aes128gcm", same)},
		{technique: "chunked by a content coding", note: "refused", refused: true, serve: coded("chunked", same)},
		{technique: "compressed once more than the header says", note: "broken off", refused: true,
			serve: coded("gzip", func(s string) string { return gzipped(gzipped(s)) })},
		{technique: "compressed and called identity", note: "broken off", refused: true, serve: coded("identity", gzipped)},
		{technique: "compressed by zlib at level 2 and called identity", note: "broken off", refused: true, serve: coded("identity", func(s string) string {
			var b bytes.Buffer
			z, err := zlib.NewWriterLevel(&b, 2)
			if err == nil {
				_, err = io.WriteString(z, s)
			}
			if err := errors.Join(err, z.Close()); err != nil {
				panic(err) // a buffer takes everything
			}
			return b.String()
		})},
		{technique: "compressed four times", note: "refused", refused: true, serve: coded("gzip, gzip, gzip, gzip", func(s string) string { return gzipped(gzipped(gzipped(gzipped(s)))) })},
		{technique: "cut by a range that was asked for", note: "asked for without the range", request: []string{"Range", "bytes=20-", "If-Range", `"x"`},
			serve: func(s string) http.HandlerFunc {
				return func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Range")+r.Header.Get("If-Range") != "" {
						_, _ = io.WriteString(w, "a range was asked for: ")
					}
					_, _ = io.WriteString(w, s)
				}
			}},
		{technique: "cut by a range that the server chose", note: "refused", refused: true, shape: func(s string) string { return s[9:] },
			serve: raw("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 9-/40\r\nConnection: close\r\n\r\n%s")},
		{technique: "in multipart ranges", note: "refused", refused: true, shape: func(s string) string { return s[9:] },
			serve: raw("HTTP/1.1 200 OK\r\nContent-Type: multipart/byteranges; boundary=b\r\nConnection: close\r\n\r\n--b\r\n\r\n%s\r\n--b--")},
		{technique: "after a change of protocol", note: "refused: WebSockets and other upgrades", refused: true, request: []string{"Connection", "Upgrade", "Upgrade", "echo"},
			serve: raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n%s")},
		{technique: "a credential shorter than 8 bytes", note: "every answer is refused", refused: true, secret: "hunter2"},
	}
	for before := range 3 {
		user := "user1234"[:5+before] + ":"
		rows = append(rows,
			row{technique: fmt.Sprintf("base64 after %d bytes, as in Basic", len(user)), secret: special, shape: base64After(user, base64.StdEncoding)},
			row{technique: fmt.Sprintf("base64url after %d bytes", len(user)), secret: special, shape: base64After(user, base64.RawURLEncoding)},
		)
	}
	for i := range rows {
		rows[i].covered = true
	}
	return rows
}

// uncovered are the rows of what passes.
func uncovered() []row {
	return []row{
		{technique: "cut in two with something between", shape: func(s string) string { return s[:20] + " " + s[20:] }},
		{technique: "half in each of two answers", shape: func(s string) string { return s[:20] }},
		{technique: "all but one character", shape: func(s string) string { return s[1:] }},
		{technique: "in UTF-16", note: "and other charsets that are not like ASCII", shape: each("%c\x00")},
		{technique: "base64 of base64", shape: func(s string) string {
			return base64After("", base64.StdEncoding)(base64After("x", base64.StdEncoding)(s))
		}},
		{technique: "base64 over several lines", note: "as in mail", shape: wrapped},
		{technique: "base32", shape: func(s string) string { return base32.StdEncoding.EncodeToString([]byte(s)) }},
		{technique: "hexadecimal with separators", shape: each("%02x:")},
		{technique: "decimal numbers", shape: each("%d, ")},
		{technique: "percent-encoded byte by byte", note: "also what no encoder needs to escape", shape: each("%%%02X")},
		{technique: "percent-encoded twice", secret: special, shape: func(s string) string { return url.QueryEscape(url.QueryEscape(s)) }},
		{technique: "JSON escapes for every character", shape: each(`\u%04x`)},
		{technique: "in JSON within JSON within JSON", secret: special, shape: func(s string) string { return quoted(false, nested(s)) }},
		{technique: "HTML escapes for every character", shape: each("&#%d;")},
		{technique: "escapes of programming languages", note: `\x67, $'\147'`, shape: each(`\x%02x`)},
		{technique: "quoted-printable", note: "with a soft line break in it", shape: func(s string) string { return s[:30] + "=\r\n" + s[30:] }},
		{technique: "in a file that is compressed", note: "archives, packs, pictures; nothing says so in the header", shape: gzipped},
		{technique: "turned by any cipher", shape: func(s string) string {
			out := []byte(s)
			for i := range out {
				out[i] ^= 1
			}
			return string(out)
		}},
		{technique: "in the lengths of lines", note: "and in anything else that is no text", shape: func(s string) string {
			var b strings.Builder
			for _, c := range []byte(s) {
				b.WriteString(strings.Repeat(".", int(c)) + "\n")
			}
			return b.String()
		}},
	}
}

func (r row) defaults() row {
	if r.secret == "" {
		r.secret = token
	}
	if r.shape == nil {
		r.shape = same
	}
	if r.serve == nil {
		r.serve = inBody
	}
	return r
}

// TestScrubbing is the table of the documentation: every row shows itself with scrubbing on, and that the same answer
// passes with scrubbing off.
func TestScrubbing(t *testing.T) {
	for _, r := range append(covered(), uncovered()...) {
		t.Run(r.name(), func(t *testing.T) {
			r = r.defaults()
			shape := r.shape(r.secret)
			ask := func(o Options) answer { return between(t, o, r.secret, r.serve(shape)).get(r.request...) }
			// gone is what of the shape must not be there: base64 keeps what others have a part in.
			gone := shape
			if strings.HasPrefix(r.technique, "base64") && r.covered {
				gone = shape[len(shape)-20 : len(shape)-8]
			}
			if a := ask(off()); !strings.Contains(a.text(), gone) {
				t.Fatalf("does not even pass with scrubbing off: %d %.300q %v", a.status, a.text(), a.broken)
			}
			a, b := ask(redacting()), ask(blocking())
			if !r.covered {
				for _, a := range []answer{a, b} {
					if !strings.Contains(a.text(), shape) || a.broken != nil {
						t.Errorf("is covered, and the table says it is not: %d %.300q %v", a.status, a.text(), a.broken)
					}
				}
				return
			}
			for _, a := range []answer{a, b} {
				if strings.Contains(a.text(), gone) || strings.Contains(a.text(), r.secret) {
					t.Errorf("passes: %d %.300q", a.status, a.text())
				}
			}
			name := strings.Contains(r.technique, "in the name")
			switch {
			case r.refused && a.refusal != problem.ResponseBlocked && (r.note != "broken off" || a.broken == nil):
				t.Errorf("is not refused: %d %.300q %v", a.status, a.text(), a.broken)
			case !r.refused && (a.broken != nil || !name && !strings.Contains(a.text(), redact.Mark)):
				t.Errorf("is not redacted: %d %.300q %v", a.status, a.text(), a.broken)
			}
			if b.refusal != problem.ResponseBlocked && b.broken == nil {
				t.Errorf("is not blocked: %d %.300q", b.status, b.text())
			}
		})
	}
}

func TestTheTableInTheDocumentationIsTheOneOfTheTests(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# What does scrubbing find, and what not?

The gateway puts a credential into a request and takes it out of the answer: out of headers, body and trailers, as they stream. It
looks for the value itself and for the listed encodings, for each value of at least 8 bytes. That is for accidents, such as an
error page that repeats the request. A server that wants to give the credential away can do it, in ways that are listed below too.

A service says what happens (` + "`scrub`" + `): with ` + "`redact`" + ` the value is replaced by ` + "`" + redact.Mark + "`" + `; with ` + "`block`" + ` an answer that has it in its header
is refused, and one that has it in its body breaks off before it; with ` + "`off`" + ` nothing is looked at, where the
service has no credential: what has one is redacted all the same, so that nobody who may add a service is shown the secret that it uses
(` + "`TestNoServiceShowsItsCredential`" + `). Redacted answers have no length, no
` + "`ETag`" + ` and no digests, because those are of what the server sent. The gateway asks for the whole answer, not compressed; an answer that is compressed all
the same is decoded or, with ` + "`compressed: refuse`" + `, refused.

While an answer streams, the end of what came is held back until more comes: what stands behind the last control character, such as the end of a
line, and at most as much as the longest encoding has, rounded up to a power of two. Lines and events arrive at once; text without an end
of a line arrives later. The length that is held back does not depend on the credential: else a client that chooses the text would learn from
the pieces in which it arrives whether it begins like one (` + "`TestWhatIsHeldBackDoesNotTellTheValue`" + `). A client that sees a whole credential replaced had it already.

This page is written by the tests of ` + "`internal/gateway/scrub`" + ` (` + "`go test ./internal/gateway/scrub -update`" + `). Each row is a test, also
where the credential passes.

| the credential is in an answer | covered | test |
|---|---|---|
`)
	seen := make(map[string]bool)
	for _, r := range append(covered(), uncovered()...) {
		if seen[r.name()] {
			t.Errorf("%s is there twice", r.technique)
		}
		seen[r.name()] = true
		verdict := "yes"
		if !r.covered {
			verdict = "**no**"
		}
		if r.note != "" {
			verdict += "; " + r.note
		}
		fmt.Fprintf(&b, "| %s | %s | `TestScrubbing/%s` |\n", r.technique, verdict, r.name())
	}
	testenv.Golden(t, filepath.Join(testenv.Repository(t), "docs", "scrubbing.md"), b.String())
}
