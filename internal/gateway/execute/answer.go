package execute

import (
	"bufio"
	"encoding/base64"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/gateway/inject"
	"github.com/clawjail/clawjail/internal/problem"
)

// result is what an agent gets, but for the body, which is written behind it: JSON when the upstream says that it is and it is, else
// text.
type result struct {
	Status int `json:"status"`
	// StatusCode is Status, by its older name.
	StatusCode int               `json:"statusCode"`
	Headers    map[string]string `json:"headers"`
	// Base64 says that the body is not text, and encoded.
	Base64 bool `json:"body_base64,omitzero"`
	// URL is that of the last hop.
	URL       string `json:"url"`
	Redirects int    `json:"redirects"`
}

// answer writes a result. Nothing of the upstream's is in the header of the gateway's own answer. The body is encoded as it is
// written: what becomes of it may be six times as large. late says when a client has had time enough to read all of it.
func answer(w http.ResponseWriter, e *outbound, resp *http.Response, body []byte, held *share, late func() bool) *problem.Error {
	head := result{
		Status: resp.StatusCode, StatusCode: resp.StatusCode, Headers: headers(resp), URL: e.url.String(), Redirects: e.redirects,
		Base64: !utf8.Valid(body),
	}
	write := writeText
	switch said := isJSON(resp.Header.Get("Content-Type")); {
	case head.Base64:
		write = writeBase64
	case said && !held.takeNames(body):
		return noRoom()
	case said && jsontext.Value(body).IsValid():
		write = writeJSON
	}
	raw, err := json.Marshal(head, json.Deterministic(true))
	if err != nil {
		return problem.Wrap(err, problem.Internal, "Tell the operator.", "the answer could not be written")
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	out := bufio.NewWriterSize(timely{w, late}, 32<<10) // it keeps its first error
	_, _ = out.Write(raw[:len(raw)-1])
	_, _ = out.WriteString(`,"body":`)
	write(out, body)
	_ = out.WriteByte('}')
	if err := out.Flush(); err != nil {
		// The client left, or reads too slowly: only a broken transfer says that this is not all.
		panic(http.ErrAbortHandler)
	}
	return nil
}

// timely is a writer for as long as it is not late.
type timely struct {
	io.Writer
	late func() bool
}

func (t timely) Write(p []byte) (int, error) {
	if t.late() {
		return 0, errTooLate
	}
	return t.Writer.Write(p)
}

func writeJSON(out *bufio.Writer, body []byte) { _, _ = out.Write(body) }

func writeBase64(out *bufio.Writer, body []byte) {
	_ = out.WriteByte('"')
	encoder := base64.NewEncoder(base64.StdEncoding, out)
	_, _ = encoder.Write(body)
	_ = encoder.Close()
	_ = out.WriteByte('"')
}

// writeText writes a text that is UTF-8, in pieces.
func writeText(out *bufio.Writer, text []byte) {
	_ = out.WriteByte('"')
	var quoted []byte
	for len(text) > 0 {
		n := min(len(text), 4<<10)
		for n < len(text) && !utf8.RuneStart(text[n]) {
			n--
		}
		quoted, _ = jsontext.AppendQuote(quoted[:0], text[:n]) // it is UTF-8
		_, _ = out.Write(quoted[1 : len(quoted)-1])
		text = text[n:]
	}
	_ = out.WriteByte('"')
}

// headers are those of the upstream's answer. Cookies are left out: one that a service gives to the holder of the credential
// is as good as the credential.
func headers(resp *http.Response) map[string]string {
	all := resp.Header.Clone()
	inject.Hop(all)
	for name := range all {
		if slices.Contains([]string{"set-cookie", "set-cookie2"}, strings.ToLower(name)) {
			delete(all, name)
		}
	}
	out := make(map[string]string, len(all))
	for name, values := range all {
		out[name] = strings.ToValidUTF8(strings.Join(values, ", "), "\uFFFD")
	}
	return out
}

func isJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && (kind == "application/json" || strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json"))
}
