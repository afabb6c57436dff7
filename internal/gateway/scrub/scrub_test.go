package scrub

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
)

// made is an answer without a server.
func made(body io.Reader, headers ...string) *http.Response {
	resp := &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{}, Body: io.NopCloser(body), ContentLength: -1}
	for i := 0; i < len(headers); i += 2 {
		resp.Header.Add(headers[i], headers[i+1])
	}
	return resp
}

func secrets() *redact.Values { return redact.New([]byte(token)) }

// TestEventsArriveBeforeTheNextIsSent: the server sends the next event when the client has the one before.
func TestEventsArriveBeforeTheNextIsSent(t *testing.T) {
	events := []string{"data: one\n\n", "data: echo " + token + "\n\n", "data: ghp_16C7e42F\n\n", "data: [DONE]\n\n"}
	clean := []string{"data: one\n\n", "data: echo [redacted]\n\n", "data: ghp_16C7e42F\n\n", "data: [DONE]\n\n"}
	for name, compressed := range map[string]bool{"plain": false, "gzip": true} {
		t.Run(name, func(t *testing.T) {
			arrived := make(chan struct{})
			p := between(t, redacting(), token, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				out, flush := io.Writer(w), func() {}
				if compressed {
					w.Header().Set("Content-Encoding", "gzip")
					packer := gzip.NewWriter(w)
					defer packer.Close()
					out, flush = packer, func() { _ = packer.Flush() }
				}
				for _, event := range events {
					_, _ = io.WriteString(out, event)
					flush()
					w.(http.Flusher).Flush()
					select {
					case <-arrived:
					case <-r.Context().Done():
						return
					}
				}
			})
			resp, err := p.client.Get(p.url)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			buf := make([]byte, 100)
			for _, want := range clean {
				n, err := io.ReadFull(resp.Body, buf[:len(want)])
				if err != nil || string(buf[:n]) != want {
					t.Fatalf("got %q, %v; not %q", buf[:n], err, want)
				}
				arrived <- struct{}{}
			}
			if n, err := resp.Body.Read(buf); n != 0 || err != io.EOF {
				t.Errorf("%d more bytes, %v", n, err)
			}
		})
	}
}

func TestARedactedAnswerHasNoLengthAndNoDigests(t *testing.T) {
	serve := func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range describing() {
			w.Header().Set(name, `"of the bytes"`)
		}
		w.Header().Set("Accept-Ranges", "bytes")
		w.Header().Set("X-Other", "stays")
		body := "a " + token
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		_, _ = io.WriteString(w, body)
	}
	a := between(t, redacting(), token, serve).get()
	if string(a.body) != "a [redacted]" || a.broken != nil || a.length != -1 || len(a.transfer) != 1 || a.transfer[0] != "chunked" {
		t.Errorf("%q %v, length %d, %v", a.body, a.broken, a.length, a.transfer)
	}
	for _, name := range append(describing(), "Accept-Ranges", "Content-Length") {
		if a.header.Get(name) != "" {
			t.Errorf("%s is still there", name)
		}
	}
	if a.header.Get("X-Other") != "stays" {
		t.Error("another header is gone")
	}
	untouched := between(t, off(), token, serve).get()
	for _, name := range append(describing(), "Accept-Ranges", "Content-Length") {
		if untouched.header.Get(name) == "" {
			t.Errorf("with scrubbing off, %s is gone", name)
		}
	}
}

// TestABlockedBodyIsABrokenTransfer: neither with a length nor in chunks is what came before taken for all.
func TestABlockedBodyIsABrokenTransfer(t *testing.T) {
	body := strings.Repeat("x", 50_000) + token + strings.Repeat("y", 50_000)
	for name, length := range map[string]string{"with a length": fmt.Sprint(len(body)), "chunked": ""} {
		t.Run(name, func(t *testing.T) {
			a := between(t, blocking(), token, func(w http.ResponseWriter, _ *http.Request) {
				if length != "" {
					w.Header().Set("Content-Length", length)
				}
				_, _ = io.WriteString(w, body)
			}).get()
			if a.broken == nil || strings.Trim(string(a.body), "x") != "" {
				t.Errorf("came %d bytes, ending in %.50q, with %v", len(a.body), a.body[max(0, len(a.body)-50):], a.broken)
			}
		})
	}
}

func TestCleanAnswersPassABlock(t *testing.T) {
	a := between(t, blocking(), token, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Etag", `"1"`)
		w.Header().Set("Content-Length", "13")
		_, _ = io.WriteString(w, "ghp_16C7e42F\n")
	}).get()
	if string(a.body) != "ghp_16C7e42F\n" || a.broken != nil || a.header.Get("Etag") != `"1"` || a.length != 13 {
		t.Errorf("%q, %v, %v, length %d", a.body, a.broken, a.header, a.length)
	}
}

func TestCleanTrailersArrive(t *testing.T) {
	for _, o := range []Options{redacting(), blocking()} {
		a := between(t, o, token, trailing(true)("fine")).get()
		if a.trailer.Get("X-Sum") != "echo fine" || a.broken != nil {
			t.Errorf("%s: %v, %v", o.Scrub, a.trailer, a.broken)
		}
	}
}

// TestTrailersThatCloseBringsAreScrubbed: a body that is closed early may read its trailers then.
func TestTrailersThatCloseBringsAreScrubbed(t *testing.T) {
	for _, o := range []Options{redacting(), blocking()} {
		resp := made(strings.NewReader("x"))
		resp.Body = closing{resp.Body, func() { resp.Trailer = http.Header{"X-Sum": {"echo " + token}} }}
		if err := Response(resp, secrets(), o); err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if got := resp.Trailer.Get("X-Sum"); strings.Contains(got, token) {
			t.Errorf("%s: %s", o.Scrub, got)
		}
		if n, err := resp.Body.Read(make([]byte, 9)); n > 0 || err == nil || err == io.EOF {
			t.Errorf("%s: a closed body gives %d bytes, %v", o.Scrub, n, err)
		}
	}
}

type closing struct {
	io.ReadCloser
	then func()
}

func (c closing) Close() error {
	c.then()
	return c.ReadCloser.Close()
}

func TestTheReasonPhraseIsScrubbed(t *testing.T) {
	resp := made(strings.NewReader(""))
	resp.Status = "200 " + token
	if err := Response(resp, secrets(), redacting()); err != nil || resp.Status != "200 [redacted]" {
		t.Errorf("%s, %v", resp.Status, err)
	}
	resp.Status = "200 " + token
	if err := Response(resp, secrets(), blocking()); problem.CodeOf(err) != problem.ResponseBlocked {
		t.Errorf("blocking: %v", err)
	}
}

func TestAnswersWithoutABodyKeepTheirHeaders(t *testing.T) {
	serve := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Etag", `"1"`)
			w.Header().Set("X-Echo", token)
			if r.Method == http.MethodHead {
				w.Header().Set("Content-Length", "1000")
				w.Header().Set("Content-Encoding", "br")
			}
			w.WriteHeader(status)
		}
	}
	for _, try := range []struct {
		method string
		status int
		length int64
	}{{http.MethodHead, 200, 1000}, {http.MethodGet, 204, 0}, {http.MethodGet, 304, 0}} {
		a := between(t, redacting(), token, serve(try.status)).do(try.method)
		if a.status != try.status || a.header.Get("Etag") != `"1"` || a.header.Get("X-Echo") != redact.Mark || a.length != try.length || a.broken != nil {
			t.Errorf("%s %d: %d, %v, length %d, %v", try.method, try.status, a.status, a.header, a.length, a.broken)
		}
	}
}

// TestNoBodyIsMadeForAnswersThatHaveNone: not every transport says that a body is none.
func TestNoBodyIsMadeForAnswersThatHaveNone(t *testing.T) {
	for _, try := range []struct {
		method string
		status int
	}{{http.MethodHead, 200}, {http.MethodGet, 204}, {http.MethodGet, 304}} {
		resp := made(strings.NewReader(""), "Etag", `"1"`, "Content-Encoding", "br", "X-Echo", token)
		resp.StatusCode, resp.ContentLength, resp.Request = try.status, 1000, &http.Request{Method: try.method}
		if err := Response(resp, secrets(), redacting()); err != nil {
			t.Fatal(err)
		}
		if resp.Header.Get("Etag") == "" || resp.ContentLength != 1000 || resp.Header.Get("X-Echo") != redact.Mark {
			t.Errorf("%s %d: %v, length %d", try.method, try.status, resp.Header, resp.ContentLength)
		}
	}
}

func TestRequestsArePrepared(t *testing.T) {
	header := func() http.Header {
		return http.Header{
			"Range": {"bytes=1-"}, "If-Range": {"x"}, "Te": {"trailers"}, "A-Im": {"vcdiff"}, "Accept-Encoding": {"gzip", "br"},
			"Upgrade": {"websocket"}, "Connection": {"Upgrade"}, "Http2-Settings": {"x"}, "Accept": {"*/*"},
		}
	}
	for scrub, want := range map[egress.Scrub]http.Header{
		egress.ScrubOff:    header(),
		egress.ScrubRedact: {"Accept-Encoding": {"identity"}, "Accept": {"*/*"}},
		egress.ScrubBlock:  {"Accept-Encoding": {"identity"}, "Accept": {"*/*"}},
		"":                 {"Accept-Encoding": {"identity"}, "Accept": {"*/*"}},
		"unknown":          {"Accept-Encoding": {"identity"}, "Accept": {"*/*"}},
	} {
		got := header()
		PrepareRequest(got, Options{Scrub: scrub})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", scrub, diff)
		}
	}
}

func TestSettingsThatMakeNoSenseRefuse(t *testing.T) {
	bad := Options{Scrub: "redcat", Compressed: "maybe", MaxDecoded: -1}
	err := bad.Validate()
	for _, word := range []string{"redcat", "maybe", "-1"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not name %s", err, word)
		}
	}
	for _, o := range []Options{{Scrub: "redcat"}, {Compressed: "maybe"}, {MaxDecoded: -1}} {
		if err := Response(made(strings.NewReader("x")), secrets(), o); problem.CodeOf(err) != problem.ResponseBlocked {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if err := (Options{}).Validate(); err != nil {
		t.Error(err)
	}
}

// TestWithoutACredentialNothingIsTouched: a service that injects nothing has nothing to lose.
func TestWithoutACredentialNothingIsTouched(t *testing.T) {
	for _, v := range []*redact.Values{nil, redact.New()} {
		resp := made(strings.NewReader("compressed"), "Content-Encoding", "br", "Etag", `"1"`)
		resp.StatusCode = http.StatusPartialContent
		before, header := resp.Body, resp.Header.Clone()
		if err := Response(resp, v, redacting()); err != nil || resp.Body != before {
			t.Errorf("changed, or %v", err)
		}
		if diff := cmp.Diff(header, resp.Header); diff != "" {
			t.Error(diff)
		}
	}
}

// TestAfterTheCredentialIsPutAwayNothingPasses: what is not known any more cannot be found.
func TestAfterTheCredentialIsPutAwayNothingPasses(t *testing.T) {
	gone := secrets()
	gone.Wipe()
	if err := Response(made(strings.NewReader(token)), gone, redacting()); problem.CodeOf(err) != problem.ResponseBlocked {
		t.Errorf("the answer passes: %v", err)
	}
	v := secrets()
	resp := made(io.MultiReader(strings.NewReader("first "), strings.NewReader(token)))
	resp.Trailer = http.Header{"X-Sum": {""}}
	if err := Response(resp, v, redacting()); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 6)
	if _, err := io.ReadFull(resp.Body, buf); err != nil {
		t.Fatal(err)
	}
	resp.Trailer.Set("X-Sum", token)
	v.Wipe()
	if rest, err := io.ReadAll(resp.Body); problem.CodeOf(err) != problem.ResponseBlocked || len(rest) > 0 || len(resp.Trailer) > 0 {
		t.Errorf("%q, %v, %v", rest, err, resp.Trailer)
	}
}

func TestErrorsOfTheServerStayWhatTheyAre(t *testing.T) {
	broken := errors.New("connection reset")
	resp := made(io.MultiReader(strings.NewReader("first\n"), failing{broken}))
	if err := Response(resp, secrets(), redacting()); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(resp.Body)
	if !errors.Is(err, broken) || string(out) != "first\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, again := resp.Body.Read(make([]byte, 1)); !errors.Is(again, broken) {
		t.Errorf("then %v", again)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestRefusalsDoNotShowTheCredential looks at every error that there is.
func TestRefusalsDoNotShowTheCredential(t *testing.T) {
	for _, resp := range []*http.Response{
		made(strings.NewReader(""), "X-Echo", token),
		made(strings.NewReader(""), "X-"+token, "1"),
		made(strings.NewReader(token)),
		made(strings.NewReader("x"), "Content-Encoding", token),
		made(strings.NewReader(token), "Content-Encoding", "gzip"),
	} {
		err := Response(resp, secrets(), blocking())
		if err == nil {
			_, err = io.ReadAll(resp.Body)
		}
		p, ok := problem.As(err)
		if !ok || p.Code != problem.ResponseBlocked || p.Hint == "" {
			t.Fatalf("%v", err)
		}
		if text := fmt.Sprintf("%v %+v %s %v", err, *p, p.Hint, p.Details); strings.Contains(text, token[:10]) {
			t.Error(text)
		}
	}
}

// TestTheStandardClientRefusesTransferCodings: those that it knew would be decoded as others are.
func TestTheStandardClientRefusesTransferCodings(t *testing.T) {
	text := "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
	if resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil); err == nil {
		resp.Body.Close()
		t.Error("a coded transfer is read")
	}
	resp := made(strings.NewReader(gzipped("a " + token)))
	resp.TransferEncoding = []string{"gzip", "chunked"}
	if err := Response(resp, secrets(), redacting()); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(resp.Body); string(out) != "a [redacted]" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
}
