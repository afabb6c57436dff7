package execute

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/testenv"
)

func newShare() *share {
	gate := quota.NewGate(quota.GateOptions{Kind: quota.Bodies(), Whole: maxHeld, Agent: maxHeldByAgent})
	return &share{room: gate, of: quota.Holder{Tenant: "acme", Agent: "a"}}
}

// writer takes an answer and keeps nothing of it.
type writer struct {
	header http.Header
	to     io.Writer
}

func (w writer) Header() http.Header         { return w.header }
func (w writer) Write(p []byte) (int, error) { return w.to.Write(p) }
func (w writer) WriteHeader(int)             {}

func never() bool { return false }

func readAll(t *testing.T, held *share, text string) []byte {
	t.Helper()
	body, err := held.read(strings.NewReader(text), largestAnswer, never)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// TestAnAnswerTakesNoMoreThanIsCounted, whatever it is made of: a byte that cannot be written as it is becomes six.
func TestAnAnswerTakesNoMoreThanIsCounted(t *testing.T) {
	const size = 2 << 20
	for name, c := range map[string]struct{ kind, body string }{
		"a text":             {"text/plain", strings.Repeat("x", size)},
		"control characters": {"text/plain", strings.Repeat("\x01", size)},
		"other letters":      {"text/plain", strings.Repeat("xé€𝄞\u2028", size/13)},
		"no text":            {"text/plain", strings.Repeat("\xff", size)},
		"JSON":               {"application/json", `["` + strings.Repeat("x", size) + `"]`},
		"no JSON":            {"application/json", strings.Repeat(`"`, size)},
		"names":              {"application/json", "{" + testenv.Members(size/8) + "}"},
	} {
		resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {c.kind}}}
		e := &outbound{url: &url.URL{Scheme: "http", Host: "api.example"}}
		give := func(to io.Writer, body string) (took, counted int64, refusal *problem.Error) {
			held := newShare()
			took = testenv.Allocated(func() { refusal = answer(writer{http.Header{}, to}, e, resp, readAll(t, held, body), held, never) })
			return took, held.n, refusal
		}
		took, counted, refusal := give(io.Discard, c.body)
		if refusal != nil || took > counted {
			t.Errorf("%s: %d KiB, %d are counted, %v", name, took>>10, counted>>10, refusal)
		}
		var whole strings.Builder
		_, _, _ = give(&whole, c.body)
		var out struct {
			Body   any
			Base64 bool `json:"body_base64"`
			Status int
		}
		if err := json.Unmarshal([]byte(whole.String()), &out); err != nil || out.Status != 200 {
			t.Fatalf("%s: %v", name, err)
		}
		if text, is := out.Body.(string); is && !out.Base64 && text != c.body || out.Base64 == utf8.ValidString(c.body) {
			t.Errorf("%s: %.60q", name, text)
		}
	}
	// More names than there is room for are refused before they are read.
	held := newShare()
	resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}}
	if p := answer(writer{http.Header{}, io.Discard}, &outbound{url: &url.URL{}}, resp, readAll(t, held, "{"+testenv.Members(9<<20)+"}"), held, never); p == nil || p.Code != problem.RateLimited {
		t.Errorf("many names: %v", p)
	}
}

// TestAnAnswerThatIsNotReadIsCutOff: what it holds is given back, and it does not look whole.
func TestAnAnswerThatIsNotReadIsCutOff(t *testing.T) {
	for _, size := range []int{0, 1 << 20} {
		for _, slow := range []bool{true, false} {
			var out strings.Builder
			func() {
				defer func() {
					if cut := recover() != nil; cut != slow || cut == json.Valid([]byte(out.String())) {
						t.Errorf("%d bytes, slow %t: cut %t, %.100s", size, slow, cut, out.String())
					}
				}()
				resp := &http.Response{StatusCode: 200, Header: http.Header{}}
				late := func() bool { return slow && out.Len() >= size/2 }
				_ = answer(writer{http.Header{}, &out}, &outbound{url: &url.URL{}}, resp, []byte(strings.Repeat("x", size)), newShare(), late)
			}()
		}
	}
}

// TestARequestTakesNoMoreThanIsCounted: the same of what an agent sends.
func TestARequestTakesNoMoreThanIsCounted(t *testing.T) {
	const size = 1 << 20
	for name, c := range map[string]struct {
		members, code string
	}{
		"a text":             {`"body":"` + strings.Repeat("x", size) + `"`, ""},
		"names of a body":    {`"body":{` + testenv.Members(size/8) + `}`, ""},
		"many of a body":     {`"body":{` + testenv.Members(8*size) + `}`, problem.RateLimited},
		"headers":            {`"headers":{` + testenv.Members(size/8) + `}`, problem.BadRequest},
		"values of a header": {`"headers":{"A":[` + strings.Repeat(`"",`, size) + `""]}`, problem.BadRequest},
	} {
		held := newShare()
		r := httptest.NewRequest(http.MethodPost, "/v1/execute", strings.NewReader(`{"url":"http://api.example",`+c.members+`}`))
		r.Header.Set("Content-Type", "application/json")
		var refusal *problem.Error
		took := testenv.Allocated(func() { _, refusal = read(r, held, never) })
		if refusal == nil && c.code != "" || refusal != nil && refusal.Code != c.code {
			t.Errorf("%s: %v", name, refusal)
		}
		if took > 2*held.n {
			t.Errorf("%s: %d KiB, %d are counted", name, took>>10, held.n>>10)
		}
	}
}
