package execute

import (
	"encoding/base64"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/gateway/inject"
	"github.com/clawjail/clawjail/internal/problem"
)

// result is what an agent gets.
type result struct {
	Status int `json:"status"`
	// StatusCode is Status, by its older name.
	StatusCode int               `json:"statusCode"`
	Headers    map[string]string `json:"headers"`
	// Body is JSON when the upstream says that it is and it is, else text.
	Body any `json:"body"`
	// Base64 says that the body is not text, and encoded.
	Base64 bool `json:"body_base64,omitzero"`
	// URL is that of the last hop.
	URL       string `json:"url"`
	Redirects int    `json:"redirects"`
}

// answer writes a result. Nothing of the upstream's is in the header of the gateway's own answer.
func answer(w http.ResponseWriter, e *errand, resp *http.Response, body []byte) *problem.Error {
	out := result{
		Status: resp.StatusCode, StatusCode: resp.StatusCode, Headers: headers(resp), URL: e.url.String(), Redirects: e.redirects,
	}
	switch {
	case !utf8.Valid(body):
		out.Body, out.Base64 = base64.StdEncoding.EncodeToString(body), true
	case isJSON(resp.Header.Get("Content-Type")) && jsontext.Value(body).IsValid():
		out.Body = jsontext.Value(body)
	default:
		out.Body = string(body)
	}
	raw, err := json.Marshal(out, json.Deterministic(true))
	if err != nil {
		return problem.Wrap(err, problem.Internal, "Tell the operator.", "the answer could not be written")
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(raw)))
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	// A client that left before reading its answer has lost nothing that could be given to somebody else.
	_, _ = w.Write(raw)
	return nil
}

// headers are those of the upstream's answer. Cookies are left out: one that a service gives to whoever has the credential
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
