package llm

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// TestReservationsAreTheMostThatARequestMayUse: every byte is a token, and a bound that the endpoint does not read is none.
func TestReservationsAreTheMostThatARequestMayUse(t *testing.T) {
	p := egress.Provider{Prices: []egress.Price{{Model: "cheap*", Input: 0.5, Output: 1}, {Model: "*", Input: 2, Output: 4}}, Hosted: []string{hostedStored}}
	const responses, messages, ollama = pathResponses, "/v1/messages", "/api/chat"
	for _, c := range []struct {
		path, body    string
		input, output int64 // input beside the body's
		price         [2]float64
	}{
		{pathChat, `{"model":"cheap-1"}`, 1024, 131072, [2]float64{0.5, 1}},
		{pathChat, `{"model":"dear"}`, 1024, 131072, [2]float64{2, 4}},
		{pathChat, `{"model":"dear","max_tokens":10,"n":3}`, 1024, 30, [2]float64{2, 4}},
		{pathChat, `{"model":"dear","max_tokens":10,"max_completion_tokens":20}`, 1024, 20, [2]float64{2, 4}},
		{pathChat, `{"model":"dear","n":1e300,"max_tokens":1e300}`, 1024, maxTokens, [2]float64{2, 4}},
		{pathChat, `{"model":"dear","max_output_tokens":1}`, 1024, 131072, [2]float64{2, 4}},
		{responses, `{"model":"dear","max_output_tokens":7}`, 1024, 7, [2]float64{2, 4}},
		{responses, `{"model":"dear","max_tokens":1}`, 1024, 131072, [2]float64{2, 4}},
		{responses, `{"model":"dear","max_output_tokens":7,"previous_response_id":"r","store":false}`, 1024 + 1048576, 7, [2]float64{2, 4}},
		{messages, `{"model":"dear","max_tokens":9}`, 1024, 9, [2]float64{2, 4}},
		{ollama, `{"model":"dear","options":{"num_predict":5}}`, 1024, 5, [2]float64{2, 4}},
		{ollama, `{"model":"dear","options":{"num_predict":-1}}`, 1024, 131072, [2]float64{2, 4}},
		{ollama, `{"model":"dear","num_predict":5,"max_tokens":5}`, 1024, 131072, [2]float64{2, 4}},
		{"/v1/embeddings", `{"model":"dear"}`, 1024, 0, [2]float64{2, 4}},
	} {
		e := endpointOf(t, c.path)
		a, refusal := readAsk([]byte(c.body), e)
		if refusal == nil {
			a.wants, refusal = checkHosted(readFields(), a, e, p.Hosted)
		}
		if refusal != nil {
			t.Fatal(refusal)
		}
		want := egress.Tokens{Input: int64(len(a.body)) + c.input, Output: c.output}
		want.MicroCost = int64(math.Ceil(float64(want.Input)*c.price[0] + float64(want.Output)*c.price[1]))
		if got := reservation(e, a, p); got != want {
			t.Errorf("%s: %+v, want %+v", c.body, got, want)
		}
	}
}

func TestPriceThatMakesNoSenseIsNotFree(t *testing.T) {
	for _, price := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e300} {
		p := egress.Provider{Prices: []egress.Price{{Model: "*", Input: price, Output: price}}}
		if got := priced(p, "m", amounts{input: 10, output: 10}); got.MicroCost != maxMicroCost {
			t.Errorf("%v: %+v", price, got)
		}
	}
	if got := priced(egress.Provider{}, "m", amounts{input: 10, output: 10}); got.MicroCost != 0 {
		t.Errorf("a model without a price costs %d", got.MicroCost)
	}
}

// TestWhatCostsOtherwiseIsCountedAtItsPrice has answers as the documentation of the wires shows them.
func TestWhatCostsOtherwiseIsCountedAtItsPrice(t *testing.T) {
	price, err := egress.ParsePrice("*=10/100 cache-read=1 audio-input=40 audio-output=400 call=0.5 priority=3")
	if err != nil {
		t.Fatal(err)
	}
	const short = `,"usage":{"input_tokens":10,"output_tokens":1}}`
	items := `"output":[{"type":"web_search_call","id":"w"},{"type":"function_call"},{"type":"message","content":[{"type":"file_search_call"}]},{"type":"file_search_call"}]`
	for name, c := range map[string]struct {
		wire         egress.Wire
		path, body   string
		events       bool
		answer       string
		want, lacked int64
		lacks        string // of a price with two amounts only
	}{
		"caches": {egress.WireAnthropic, "/v1/messages", `{"model":"m"}`, false,
			`{"usage":{"input_tokens":10,"cache_read_input_tokens":1000,"cache_creation_input_tokens":500,"output_tokens":1,` +
				`"cache_creation":{"ephemeral_5m_input_tokens":100,"ephemeral_1h_input_tokens":400}}}`,
			10*10 + 1000*1 + 100*12.5 + 400*20 + 100, 10*10 + 1000*10 + 100*12.5 + 400*20 + 100, ""},
		"tools of Anthropic's": {egress.WireAnthropic, "/v1/messages", `{"model":"m","tools":[{"type":"web_search_1","name":"w"}]}`, true,
			"data: {\"type\":\"message_delta\",\"usage\":{\"input_tokens\":10,\"output_tokens\":1,\"server_tool_use\":{\"web_search_requests\":2,\"web_fetch_requests\":1}}}\n\n" +
				"data: {\"type\":\"message_delta\",\"usage\":{\"server_tool_use\":{\"web_search_requests\":3,\"web_fetch_requests\":1}}}\n\n" +
				"data: {\"type\":\"message_stop\"}\n\n",
			200 + 4*500_000, 200, "call=AMOUNT"},
		"a faster answer": {egress.WireAnthropic, "/v1/messages", `{"model":"m","speed":"fast"}`, false, `{"type":"message"` + short, 600, 200, "priority=TIMES"},
		"a part of a cached prompt": {egress.WireOpenAI, pathChat, `{"model":"m"}`, false,
			`{"usage":{"prompt_tokens":100,"completion_tokens":7,"total_tokens":107,"prompt_tokens_details":{"cached_tokens":90}}}`, 10*10 + 90 + 700, 1700, ""},
		"what was thought, beside the answer": {egress.WireOpenAI, pathChat, `{"model":"m"}`, false,
			`{"usage":{"prompt_tokens":100,"completion_tokens":7,"total_tokens":150,"completion_tokens_details":{"reasoning_tokens":43}}}`, 6000, 6000, ""},
		"audio": {egress.WireOpenAI, pathChat, `{"model":"m","modalities":["text","audio"],"audio":{"voice":"a","format":"wav"},` +
			`"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}]}]}`, false,
			`{"usage":{"prompt_tokens":100,"completion_tokens":70,"prompt_tokens_details":{"audio_tokens":80},"completion_tokens_details":{"audio_tokens":60}}}`,
			20*10 + 80*40 + 10*100 + 60*400, 8000, "audio-output=AMOUNT"},
		"a chat that searches": {egress.WireOpenAI, pathChat, `{"model":"m","web_search_options":{}}`, false,
			`{"usage":{"prompt_tokens":10,"completion_tokens":1}}`, 200 + 500_000, 200, "call=AMOUNT"},
		"tools of OpenAI's": {egress.WireOpenAI, pathResponses, `{"model":"m","tools":[{"type":"web_search"}]}`, false, `{` + items + short, 200 + 2*500_000, 200, "call=AMOUNT"},
		"the same in a stream": {egress.WireOpenAI, pathResponses, `{"model":"m","tools":[{"type":"web_search"}]}`, true,
			"data: {\"type\":\"response.in_progress\",\"response\":{\"output\":[{\"type\":\"web_search_call\"}]}}\n\n" +
				`data: {"type":"response.completed","response":{` + items + short + "}\n\n",
			200 + 2*500_000, 200, "call=AMOUNT"},
		"the tier that was used": {egress.WireOpenAI, pathResponses, `{"model":"m","service_tier":"auto"}`, false, `{"service_tier":"priority"` + short, 600, 200, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := endpointOf(t, c.path)
			a, refusal := readAsk([]byte(c.body), e)
			if refusal == nil {
				a.wants, refusal = checkHosted(readFields(), a, e, []string{hostedSearch, hostedFastLane})
			}
			if refusal != nil {
				t.Fatal(refusal)
			}
			plain := egress.Price{Model: "*", Input: 10, Output: 100}
			for _, with := range []struct {
				price egress.Price
				want  int64
				lacks string
			}{{price, c.want, ""}, {plain, c.lacked, c.lacks}} {
				p := egress.Provider{Wire: c.wire, Prices: []egress.Price{with.price}}
				counter := newCounter(c.wire, c.events)
				_, _ = counter.Write([]byte(c.answer))
				reserved := reservation(e, a, p)
				if reserved.Unpriced != with.lacks {
					t.Errorf("the price %q lacks %q, want %q", with.price, reserved.Unpriced, with.lacks)
				}
				used, estimated := settle(e, counter, p, a, reserved, true)
				if used.MicroCost != with.want || estimated {
					t.Errorf("with the price %q it costs %d, want %d; estimated: %v", with.price, used.MicroCost, with.want, estimated)
				}
				if counted := c.wire == egress.WireOpenAI && strings.Contains(c.body, "auto"); used.MicroCost > reserved.MicroCost && !counted {
					t.Errorf("with the price %q %d was reserved, and %d used", with.price, reserved.MicroCost, used.MicroCost)
				}
			}
		})
	}
}

// TestAnAnswerThatBreaksOffCostsWhatWasReserved has streams of which nobody has said, before they end, what they use.
func TestAnAnswerThatBreaksOffCostsWhatWasReserved(t *testing.T) {
	start := "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n"
	for name, c := range map[string]struct {
		wire           egress.Wire
		path, first    string
		event          string
		events         int
		output         int64 // 0 is what was reserved
		beyondReserved bool
	}{
		"nothing said":          {egress.WireOpenAI, pathChat, "", "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n", 400, 0, false},
		"the input said":        {egress.WireAnthropic, "/v1/messages", start, "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"word\"}}\n\n", 400, 0, false},
		"more than was allowed": {egress.WireOpenAI, pathChat, "", "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n", 1500, 1500, true},
	} {
		e := endpointOf(t, c.path)
		a, refusal := readAsk([]byte(`{"model":"m","stream":true,"max_tokens":1000,"messages":[{"role":"user","content":"`+strings.Repeat("x", 2000)+`"}]}`), e)
		if refusal != nil {
			t.Fatal(refusal)
		}
		p := egress.Provider{Wire: c.wire, Prices: []egress.Price{{Model: "*", Input: 10, Output: 100}}}
		reserved := reservation(e, a, p)
		counter := newCounter(c.wire, true)
		_, _ = counter.Write([]byte(c.first + strings.Repeat(c.event, c.events)))
		used, estimated := settle(e, counter, p, a, reserved, false)
		want := reserved
		if c.output > 0 {
			want.Output = c.output
		}
		if used.Input != want.Input || used.Output != want.Output || !estimated || (used.MicroCost > reserved.MicroCost) != c.beyondReserved {
			t.Errorf("%s: %+v, want %+v", name, used, want)
		}
	}
}

// TestAWriteToACacheIsReservedAtItsPrice has requests that differ in what is kept.
func TestAWriteToACacheIsReservedAtItsPrice(t *testing.T) {
	p := egress.Provider{Wire: egress.WireAnthropic, Prices: []egress.Price{{Model: "*", Input: 100, Output: 0}}}
	for more, want := range map[string]float64{
		`"top_k":1`: 1, `"cache_control":{"type":"ephemeral"}`: 1.25, `"cache_control":{"type":"ephemeral","ttl":"1h"}`: 2,
		`"system":[{"type":"text","text":"x","cache_control":{"ttl":"1h"}}]`: 2,
	} {
		e := endpointOf(t, "/v1/messages")
		a, refusal := readAsk([]byte(`{"model":"m",`+more+`}`), e)
		if refusal == nil {
			a.wants, refusal = checkHosted(readFields(), a, e, nil)
		}
		if refusal != nil {
			t.Fatal(refusal)
		}
		if got := reservation(e, a, p); got.MicroCost != int64(math.Ceil(float64(got.Input)*100*want)) {
			t.Errorf("%s: %+v", more, got)
		}
	}
}

func TestBudgetIsAskedBeforeAnythingIsSent(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	w.book.limit = 4000 // less than an answer without a bound may have
	got := w.post(pathChat, chatBody("openai-1"))
	if got.status != http.StatusTooManyRequests || got.header.Get(headerRefusal) != problem.BudgetExceeded || w.reached() != 0 {
		t.Errorf("%d %s, %d reached", got.status, got.body, w.reached())
	}
	// The same agent may ask for a shorter answer.
	if got := w.post(pathChat, `{"model":"openai-1","max_tokens":100}`); got.status != http.StatusOK {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestReservationIsGivenBackWhenNothingWasSent(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	w.refusal = problem.New(problem.HostDenied, "", "denied")
	w.post(pathChat, chatBody("openai-1"))
	if got := w.debited(); got != (egress.Tokens{}) || w.book.count() != 2 {
		t.Errorf("debited %+v in %d steps", got, w.book.count())
	}
	// A connection that breaks when the request was on its way may have cost something.
	w = newFixture(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	w.post(pathChat, `{"model":"openai-1","max_tokens":77}`)
	if got := w.debited(); got.Output != 77 {
		t.Errorf("debited %+v", got)
	}
}

func TestWhatEndsAfterMidnightIsCorrectedOnItsDay(t *testing.T) {
	w := newFixture(t, nil)
	w.book.day = "2026-01-01"
	w.answer = func(rw http.ResponseWriter, r *http.Request) {
		w.book.mu.Lock()
		w.book.day = "2026-01-02"
		w.book.mu.Unlock()
		jsonAnswer(http.StatusOK, chatAnswer)(rw, r)
	}
	w.post(pathChat, chatBody("openai-1"))
	w.debited()
	if w.book.count() != 2 || w.book.charges[0].Day != "" || w.book.charges[1].Day != "2026-01-01" {
		t.Errorf("%+v", w.book.charges)
	}
}

// TestBudgetsHold lets an agent ask for what it likes and models answer as long as they like: what is debited is never more
// than the limit and one request, which is under way when the limit is reached; and it is what was used.
func TestBudgetsHold(t *testing.T) {
	w := newFixture(t, nil)
	property.Check(t, func(t *rapid.T) {
		w.book.mu.Lock()
		limit := rapid.Int64Range(1, 20_000).Draw(t, "limit")
		w.book.limit, w.book.sum, w.book.charges = limit, 0, nil
		w.book.mu.Unlock()
		var used, maximum int64
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			input, output := rapid.Int64Range(0, 5000).Draw(t, "input"), rapid.Int64Range(0, 8000).Draw(t, "output")
			w.mu.Lock()
			before := len(w.requests)
			w.answer = jsonAnswer(http.StatusOK, fmt.Sprintf(`{"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, input, output))
			w.mu.Unlock()
			got := w.post(pathChat, fmt.Sprintf(`{"model":"openai-1","max_tokens":%d}`, rapid.Int64Range(0, 6000).Draw(t, "asked")))
			if w.reached() == before {
				if got.status != http.StatusTooManyRequests {
					t.Fatalf("not sent, and answered %d %s", got.status, got.body)
				}
				continue
			}
			used, maximum = used+input+output, max(maximum, input+output)
		}
		w.front.CloseClientConnections()
		total := w.book.total()
		if total.Input+total.Output != used || used > limit+maximum {
			t.Fatalf("limit %d, used %d, debited %+v, largest request %d", limit, used, total, maximum)
		}
	})
}

func TestErrorThatRepeatsTheKeyIsLoggedWithoutIt(t *testing.T) {
	w := newFixture(t, nil)
	w.fail = func(r *http.Request) *problem.Error {
		return problem.Wrap(errors.New("cannot send "+r.Header.Get("Authorization")), problem.UpstreamFailed, "", "it broke")
	}
	got := w.post(pathChat, chatBody("openai-1"))
	w.debited()
	if got.status != http.StatusBadGateway || !strings.Contains(w.log.String(), "cannot send") || strings.Contains(got.body+w.log.String(), canary) {
		t.Errorf("%d %s %s", got.status, got.body, w.log)
	}
}

func TestLogHasNoKeyAndNoText(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	w.post(pathChat, `{"model":"openai-1","messages":[{"role":"user","content":"a private question"}]}`, "Authorization", "Bearer agents-own")
	w.debited()
	for _, word := range []string{canary, "private question", "agents-own", "Hello"} {
		if strings.Contains(w.log.String(), word) {
			t.Errorf("the log has %q: %s", word, w.log)
		}
	}
	for _, word := range []string{"agent=agent-1", "provider=openai", "model=openai-1", "input_tokens=19", "output_tokens=10", "micro_cost=490", "status=200"} {
		if !strings.Contains(w.log.String(), word) {
			t.Errorf("the log lacks %q: %s", word, w.log)
		}
	}
}
