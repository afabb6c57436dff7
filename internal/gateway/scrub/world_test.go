package scrub

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// token is like those that services give out; special has all that encoders escape.
	token   = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
	special = `p"ss\w<r>d/&'+=~ xü`
)

func redacting() Options { return Options{Scrub: egress.ScrubRedact} }
func blocking() Options  { return Options{Scrub: egress.ScrubBlock} }
func off() Options       { return Options{Scrub: egress.ScrubOff} }

// proxied is a server behind a proxy that scrubs, and a client of the proxy.
type proxied struct {
	t      testing.TB
	url    string
	client *http.Client
}

// between puts a scrubbing proxy before a server, on loopback.
func between(t testing.TB, o Options, secret string, serve http.HandlerFunc) *proxied {
	t.Helper()
	upstream := httptest.NewUnstartedServer(serve)
	quiet := log.New(io.Discard, "", 0)
	upstream.Config.ErrorLog = quiet
	upstream.Start()
	t.Cleanup(upstream.Close)
	to, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	out := &http.Transport{}
	t.Cleanup(out.CloseIdleConnections)
	proxy := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			PrepareRequest(r.Out.Header, o)
		},
		Transport:      out,
		ErrorLog:       quiet,
		ModifyResponse: func(resp *http.Response) error { return Response(resp, redact.New([]byte(secret)), o) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			w.Header().Set("Refusal", problem.CodeOf(err))
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, err.Error())
		},
	})
	proxy.Config.ErrorLog = quiet
	proxy.Start()
	t.Cleanup(proxy.Close)
	in := &http.Transport{DisableCompression: true}
	t.Cleanup(in.CloseIdleConnections)
	return &proxied{t, proxy.URL, &http.Client{
		Transport:     in,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// answer is all that a client got.
type answer struct {
	status   int
	header   http.Header
	trailer  http.Header
	body     []byte
	broken   error
	refusal  string
	length   int64
	transfer []string
}

// get asks with the headers given as pairs.
func (p *proxied) get(headers ...string) answer { return p.do(http.MethodGet, headers...) }

func (p *proxied) do(method string, headers ...string) answer {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.url, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := p.client.Do(r)
	if err != nil {
		return answer{broken: err}
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header, refusal: resp.Header.Get("Refusal"), length: resp.ContentLength, transfer: resp.TransferEncoding}
	a.body, a.broken = io.ReadAll(resp.Body)
	a.trailer = resp.Trailer
	return a
}

// text is everything of an answer that can be read, also what is compressed.
func (a answer) text() string {
	var b strings.Builder
	for _, h := range []http.Header{a.header, a.trailer} {
		for name, list := range h {
			fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(list, "\n"))
		}
	}
	body := a.body
	for {
		b.Write(body)
		b.WriteByte('\n')
		plain := decompressed(body)
		if plain == nil {
			return b.String()
		}
		body = plain
	}
}

// decompressed is what any of the codings makes of a body; nil when none does.
func decompressed(body []byte) []byte {
	var out []byte
	if r, err := gzip.NewReader(bytes.NewReader(body)); err == nil {
		out, _ = io.ReadAll(r)
	} else if r, err := zlib.NewReader(bytes.NewReader(body)); err == nil {
		out, _ = io.ReadAll(r)
	} else if plain, err := io.ReadAll(flate.NewReader(bytes.NewReader(body))); err == nil {
		out = plain
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

func zlibbed(text string) string {
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

func deflated(text string) string {
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.DefaultCompression)
	if err != nil {
		panic(err)
	}
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

// says is a server that always gives one body, in chunks.
func says(header, value string, chunks ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if header != "" {
			w.Header().Set(header, value)
		}
		for _, chunk := range chunks {
			_, _ = io.WriteString(w, chunk)
			w.(http.Flusher).Flush()
		}
	}
}
