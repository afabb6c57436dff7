package llm

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/testenv"
)

// stepped answers with one piece at a time: the next one when the test says so.
type stepped struct {
	kind   string
	pieces []string
	next   chan struct{}
	abort  bool // breaks off after the last piece
	gone   chan struct{}
}

func newStepped(kind string, pieces ...string) *stepped {
	return &stepped{kind: kind, pieces: pieces, next: make(chan struct{}), gone: make(chan struct{})}
}

func (s *stepped) serve(w http.ResponseWriter, r *http.Request) {
	defer close(s.gone)
	w.Header().Set("Content-Type", s.kind)
	w.WriteHeader(http.StatusOK)
	flusher := http.NewResponseController(w)
	_ = flusher.Flush()
	for _, piece := range s.pieces {
		select {
		case <-s.next:
		case <-r.Context().Done():
			return
		}
		_, _ = io.WriteString(w, piece)
		_ = flusher.Flush()
	}
	if s.abort {
		panic(http.ErrAbortHandler)
	}
}

// opened is a request whose answer is being read.
func (w *fixture) open(ctx context.Context, path, body string) *http.Response {
	w.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	w.t.Cleanup(transport.CloseIdleConnections)
	resp, err := transport.RoundTrip(w.request(http.MethodPost, path, body).WithContext(ctx))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// readExactly reads a piece, which the provider has sent before it sends anything else.
func readExactly(t *testing.T, from io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	done := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(from, got)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil || string(got) != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	case <-time.After(testenv.Patience * patience):
		t.Fatalf("%q was held back", want)
	}
}

func events(stream string) []string {
	all := strings.SplitAfter(stream, "\n\n")
	return all[:len(all)-1]
}

func TestEventsArriveBeforeTheNextOneIsSent(t *testing.T) {
	for _, c := range []struct {
		name, path, body, kind string
		pieces                 []string
	}{
		{"chat", pathChat, `{"model":"openai-1","stream":true,"stream_options":{"include_usage":true}}`, "text/event-stream; charset=utf-8", events(chatStream)},
		{"chat with hidden usage", pathChat, `{"model":"openai-1","stream":true}`, "text/event-stream", events(chatStream)},
		{"responses", pathResponses, `{"model":"openai-1","stream":true}`, "text/event-stream", events(responsesStream)},
		{"messages", "/v1/messages", `{"model":"anthropic-1","stream":true}`, "text/event-stream", events(messagesStream)},
		{"events by the line", "/v1/messages", `{"model":"anthropic-1","stream":true}`, "text/event-stream",
			append([]string{": ping\n", "\nevent: ping\n", "data: {}\n", "\n"}, events(messagesStream)...)},
		{"ollama", "/api/chat", `{"model":"ollama-1"}`, "application/x-ndjson", strings.SplitAfter(strings.TrimSuffix(ollamaStream, "\n"), "\n")},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStepped(c.kind, c.pieces...)
			w := newFixture(t, s.serve)
			resp := w.open(t.Context(), c.path, c.body)
			if resp.Header.Get("Content-Type") != c.kind {
				t.Errorf("the type is %q", resp.Header.Get("Content-Type"))
			}
			hidden := c.name == "chat with hidden usage"
			for _, piece := range c.pieces {
				s.next <- struct{}{}
				if !hidden || piece != chatUsageEvent {
					readExactly(t, resp.Body, piece)
				}
			}
			if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil {
				t.Errorf("then %q, %v", rest, err)
			}
		})
	}
}

func TestUsageThatNobodyAskedForIsHidden(t *testing.T) {
	w := newFixture(t, eventAnswer("text/event-stream", chatStream))
	got := w.post(pathChat, `{"model":"openai-1","stream":true}`)
	if got.body != strings.Replace(chatStream, chatUsageEvent, "", 1) {
		t.Errorf("got %s", got.body)
	}
	if _, sent := w.last(); !strings.Contains(sent, `"include_usage":true`) {
		t.Errorf("sent %s", sent)
	}
	if got := w.post(pathChat, `{"model":"openai-1","stream":true,"stream_options":{"include_usage":true}}`); got.body != chatStream {
		t.Errorf("got %s", got.body)
	}
	for range 2 {
		testenv.Eventually(t, patience, func() bool { return w.book.count() == 4 }, "not debited")
	}
	if total := w.book.total(); total.Input != 2*19 || total.Output != 2*10 {
		t.Errorf("debited %+v", total)
	}
}

// debited waits for the second charge, and returns what stands in the book.
func (w *fixture) debited() egress.Tokens {
	w.t.Helper()
	testenv.Eventually(w.t, patience, func() bool { return strings.Contains(w.log.String(), "msg=model ") }, "nothing was settled")
	return w.book.total()
}

func TestEveryWireIsDebitedByItsUsage(t *testing.T) {
	for _, c := range []struct {
		name, path, body, kind, answer string
		want                           egress.Tokens
	}{
		{"chat", pathChat, chatBody("openai-mini"), "application/json", chatAnswer, egress.Tokens{Input: 19, Output: 10, MicroCost: 19 + 20}},
		{"dearer model", pathChat, chatBody("openai-1"), "application/json", chatAnswer, egress.Tokens{Input: 19, Output: 10, MicroCost: 190 + 300}},
		{"chat stream", pathChat, `{"model":"openai-mini","stream":true}`, "text/event-stream", chatStream, egress.Tokens{Input: 19, Output: 10, MicroCost: 39}},
		{"responses", pathResponses, askBody(pathResponses, "openai-mini"), "application/json", responsesAnswer, egress.Tokens{Input: 36, Output: 87, MicroCost: 210}},
		{"responses stream", pathResponses, `{"model":"openai-mini","stream":true}`, "text/event-stream", responsesStream, egress.Tokens{Input: 36, Output: 87, MicroCost: 210}},
		{"embeddings", "/v1/embeddings", askBody("/v1/embeddings", "openai-mini"), "application/json", embeddingsAnswer, egress.Tokens{Input: 8, MicroCost: 8}},
		{"messages", "/v1/messages", chatBody("anthropic-mini"), "application/json", messagesAnswer, egress.Tokens{Input: 1110, Output: 25, MicroCost: 1185}},
		{"messages stream", "/v1/messages", `{"model":"anthropic-mini","stream":true}`, "text/event-stream", messagesStream, egress.Tokens{Input: 1110, Output: 25, MicroCost: 1185}},
		{"ollama", "/api/generate", `{"model":"ollama-mini","stream":false}`, "application/json", ollamaAnswer, egress.Tokens{Input: 26, Output: 298, MicroCost: 622}},
		{"ollama stream", "/api/chat", `{"model":"ollama-mini"}`, "application/x-ndjson", ollamaStream, egress.Tokens{Input: 26, Output: 298, MicroCost: 622}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t, eventAnswer(c.kind, c.answer))
			if got := w.post(c.path, c.body); got.status != http.StatusOK || got.err != nil {
				t.Fatalf("%d %s %v", got.status, got.body, got.err)
			}
			if got := w.debited(); got != c.want {
				t.Errorf("debited %+v, want %+v", got, c.want)
			}
			if !strings.Contains(w.log.String(), "estimated=false") {
				t.Errorf("the log says %s", w.log)
			}
			first := w.book.charges[0]
			if first.requests != 1 || first.who.Agent != "agent-1" || first.who.Tenant != "default" || first.Input != int64(len(w.bodies[0]))+unseenInput {
				t.Errorf("first debited %+v", first)
			}
		})
	}
}

func TestCountingTokensIsFree(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, `{"input_tokens":2095}`))
	w.post("/v1/messages/count_tokens", chatBody("anthropic-1"))
	if w.debited(); w.book.count() != 0 {
		t.Errorf("debited %+v", w.book.total())
	}
}

func TestAnswersWithoutUsageAreEstimated(t *testing.T) {
	text := strings.Repeat("word", 100)
	for _, c := range []struct {
		name, path, body, kind, answer string
		output                         int64
	}{
		{"chat", pathChat, chatBody("openai-1"), "application/json", `{"choices":[{"message":{"content":"` + text + `"}}]}`, 100},
		{"stream", pathChat, `{"model":"openai-1","stream":true}`, "text/event-stream", strings.Repeat("data: {\"choices\":[{\"delta\":{\"content\":\"ab\"}}]}\n\n", 70), 70},
		{"embeddings", "/v1/embeddings", askBody("/v1/embeddings", "openai-1"), "application/json", `{"data":[{"text":"` + text + `"}]}`, 0},
		{"no JSON", pathChat, chatBody("openai-1"), "text/plain", text, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t, eventAnswer(c.kind, c.answer))
			if got := w.post(c.path, c.body); got.body != c.answer {
				t.Fatalf("%d %s", got.status, got.body)
			}
			got := w.debited()
			_, sent := w.last()
			if got.Output != c.output || got.Input != int64(len(sent))+unseenInput || got.MicroCost != got.Input*10+got.Output*30 {
				t.Errorf("debited %+v", got)
			}
			if !strings.Contains(w.log.String(), "estimated=true") {
				t.Errorf("the log says %s", w.log)
			}
		})
	}
}

func TestErrorsOfProvidersCostNothingAndPass(t *testing.T) {
	const body = `{"error":{"message":"overloaded","type":"server_error"}}`
	w := newFixture(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, body)
	})
	got := w.post(pathChat, chatBody("openai-1"))
	if got.header.Get("Content-Security-Policy") != "sandbox" {
		t.Errorf("a page of a provider is one of the gateway: %v", got.header)
	}
	if got.status != http.StatusServiceUnavailable || got.body != body || got.header.Get("Retry-After") != "3" || got.header.Get(headerRefusal) != "" {
		t.Errorf("%d %v %s", got.status, got.header, got.body)
	}
	if total := w.debited(); total != (egress.Tokens{}) {
		t.Errorf("debited %+v", total)
	}
}

func TestAgentThatLeavesPaysForWhatMayHaveBeenMade(t *testing.T) {
	s := newStepped("text/event-stream", events(messagesStream)...)
	w := newFixture(t, s.serve)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	resp := w.open(ctx, "/v1/messages", `{"model":"anthropic-mini","stream":true,"max_tokens":500}`)
	s.next <- struct{}{}
	readExactly(t, resp.Body, s.pieces[0])
	leave()
	select {
	case <-s.gone:
	case <-time.After(testenv.Patience * patience):
		t.Fatal("the provider was not told")
	}
	// The input is the one of message_start, 100 of it written to a cache, and the output all that was asked for.
	if got, want := w.debited(), (egress.Tokens{Input: 1110, Output: 500, MicroCost: 1135 + 1000}); got != want {
		t.Errorf("debited %+v, want %+v", got, want)
	}
	if !strings.Contains(w.log.String(), "estimated=true") {
		t.Errorf("the log says %s", w.log)
	}
}

func TestAgentThatLeavesAtTheEndPaysWhatWasSaid(t *testing.T) {
	s := newStepped("text/event-stream", chatStream, ": the provider does not hang up\n\n")
	w := newFixture(t, s.serve)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	resp := w.open(ctx, pathChat, `{"model":"openai-mini","stream":true,"stream_options":{"include_usage":true}}`)
	s.next <- struct{}{}
	readExactly(t, resp.Body, chatStream)
	leave()
	<-s.gone
	if got, want := w.debited(), (egress.Tokens{Input: 19, Output: 10, MicroCost: 39}); got != want {
		t.Errorf("debited %+v, want %+v", got, want)
	}
}

func TestProviderThatBreaksIsSeenToBreak(t *testing.T) {
	for _, kind := range []string{"text/event-stream", "application/json"} {
		first := events(messagesStream)[0]
		s := newStepped(kind, first)
		s.abort = true
		w := newFixture(t, s.serve)
		resp := w.open(t.Context(), "/v1/messages", `{"model":"anthropic-mini","stream":true,"max_tokens":500}`)
		s.next <- struct{}{}
		got, err := io.ReadAll(resp.Body)
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: a broken answer looks whole: %q", kind, got)
		}
		if got := w.debited(); got.Output != 500 {
			t.Errorf("%s: debited %+v", kind, got)
		}
	}
}

func TestStreamThatEndsEarlyIsNotTakenForWhole(t *testing.T) {
	w := newFixture(t, eventAnswer("text/event-stream", events(messagesStream)[0]))
	got := w.post("/v1/messages", `{"model":"anthropic-mini","stream":true,"max_tokens":500}`)
	if got.err != nil || got.body != events(messagesStream)[0] {
		t.Errorf("%v %s", got.err, got.body)
	}
	if total := w.debited(); total.Output != 500 || total.Input != 1110 {
		t.Errorf("debited %+v", total)
	}
}

func TestLongAnswersAreCut(t *testing.T) {
	pass := func(n int64) (int64, error) {
		return io.Copy(io.Discard, &bounded{Reader: io.LimitReader(zeros{}, n), left: 1000})
	}
	if n, err := pass(1000); n != 1000 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	if n, err := pass(1001); n != 1000 || !errors.Is(err, errTooLong) {
		t.Errorf("%d %v", n, err)
	}
	w := newFixture(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(w, io.LimitReader(zeros{}, longestAnswer+1))
	})
	if got := w.post(pathChat, chatBody("openai-1")); got.err == nil {
		t.Errorf("%d, %d bytes", got.status, len(got.body))
	}
	w.provider(egress.WireOpenAI, func(p *egress.Provider) { p.Models = []string{"*"} })
	w.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "99999999999")
		panic(http.ErrAbortHandler)
	}
	if got := w.post(pathChat, chatBody("openai-1")); got.err == nil && got.status < 500 {
		t.Errorf("%d, %d bytes", got.status, len(got.body))
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestCompressedAnswersAreReadAllTheSame(t *testing.T) {
	w := newFixture(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		zip := gzip.NewWriter(w)
		_, _ = io.WriteString(zip, strings.Replace(chatAnswer, "Hello", "Hello "+canary, 1))
		_ = zip.Close()
	})
	got := w.post(pathChat, chatBody("openai-mini"))
	if got.status != http.StatusOK || strings.Contains(got.body, canary) || !strings.Contains(got.body, "Hello [redacted]") || got.header.Get("Content-Encoding") != "" {
		t.Errorf("%d %v %s", got.status, got.header, got.body)
	}
	if total := w.debited(); total.Input != 19 {
		t.Errorf("debited %+v", total)
	}
}

func TestKeyIsNotInAStream(t *testing.T) {
	s := newStepped("text/event-stream", "data: {\"a\":\"", canary[:10], canary[10:]+"\"}\n\n", "data: [DONE]\n\n")
	w := newFixture(t, s.serve)
	resp := w.open(t.Context(), pathChat, `{"model":"openai-1","stream":true}`)
	for range s.pieces {
		s.next <- struct{}{}
	}
	all, err := io.ReadAll(bufio.NewReader(resp.Body))
	if err != nil || strings.Contains(string(all), canary[:10]) || !strings.HasSuffix(string(all), "data: [DONE]\n\n") {
		t.Errorf("%v %q", err, all)
	}
}
