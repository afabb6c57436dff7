package llm

import (
	"bytes"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/testenv"
)

const manyBytes = 2 << 20

// TestABodyTakesNoMoreThanItsBytes: a body of many small values takes about as much memory as a text of its size, whatever comes of it.
func TestABodyTakesNoMoreThanItsBytes(t *testing.T) {
	ones, names := strings.Repeat("1,", manyBytes/2)+"1", testenv.Members(manyBytes)
	nested := strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000)
	for _, c := range []struct {
		name, path, body string
		status           int
	}{
		{"items", pathResponses, `{"model":"gpt-5-mini","input":[` + ones + `]}`, http.StatusRequestEntityTooLarge},
		{"what is included", pathResponses, `{"model":"gpt-5-mini","input":"x","include":[` + ones + `]}`, http.StatusOK},
		{"names of a response", pathResponses, `{"model":"gpt-5-mini","input":"x","metadata":{` + names + `}}`, http.StatusRequestEntityTooLarge},
		{"names of the body", pathChat, `{"model":"gpt-5-mini",` + names + `}`, http.StatusRequestEntityTooLarge},
		{"names of a chat", pathChat, `{"model":"gpt-5-mini","messages":[],"metadata":{` + names + `}}`, http.StatusRequestEntityTooLarge},
		{"names of messages", "/v1/messages", `{"model":"gpt-5-mini","max_tokens":1,"messages":[],"metadata":{` + names + `}}`, http.StatusRequestEntityTooLarge},
		{"names of options", "/api/chat", `{"model":"gpt-5-mini","messages":[],"options":{` + names + `}}`, http.StatusRequestEntityTooLarge},
		{"names within names", pathChat, `{"model":"gpt-5-mini","messages":[],"metadata":` + strings.Repeat(`{`+testenv.Members(20<<10)+`,"z":`, 200) + "1" + strings.Repeat("}", 201), http.StatusRequestEntityTooLarge},
		{"objects", pathChat, `{"model":"gpt-5-mini","messages":[],"metadata":[` + strings.Repeat(`{"a":{"b":1}},`, manyBytes/14) + nested + `]}`, http.StatusOK},
		{"numbers", "/v1/embeddings", `{"model":"gpt-5-mini","input":[` + ones + `]}`, http.StatusOK},
		{"a stream's options", pathChat, `{"model":"gpt-5-mini","stream":true,"messages":[],"stream_options":{"x":[` + ones + `]}}`, http.StatusOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newResponsesFixture(t)
			w.answer = jsonAnswer(http.StatusOK, responsesAnswer)
			for i := range w.providers {
				w.providers[i].Models = []string{"*"}
			}
			ask := func(body string) (took int64, got *httptest.ResponseRecorder) {
				got = httptest.NewRecorder()
				r := httptest.NewRequest(http.MethodPost, c.path, bytes.NewReader([]byte(body)))
				r = r.WithContext(gateway.WithCaller(r.Context(), w.caller))
				return testenv.Allocated(func() { w.ServeHTTP(got, r) }), got
			}
			key := map[string]string{pathChat: "user", "/v1/messages": "system", "/api/chat": "format"}[c.path]
			if key == "" {
				key = "input"
			}
			plain, got := ask(`{"model":"gpt-5-mini","` + key + `":"` + strings.Repeat("x", len(c.body)) + `"}`)
			if got.Code != http.StatusOK {
				t.Fatalf("a text: %d %s", got.Code, got.Body)
			}
			took, got := ask(c.body)
			if got.Code != c.status {
				t.Errorf("%d %.300s", got.Code, got.Body)
			}
			if took > 2*plain {
				t.Errorf("%d MiB take %d MiB, a text of that size %d MiB", len(c.body)>>20, took>>20, plain>>20)
			}
			if n := w.heldNow(); n != 0 {
				t.Errorf("%d bytes are still held", n)
			}
		})
	}
}

// TestAnAnswerTakesNoMoreThanItsBytes: the same of what a provider answers, in one piece and as a stream.
func TestAnAnswerTakesNoMoreThanItsBytes(t *testing.T) {
	event := func(output string) string {
		return `data: {"type":"response.completed","response":{"id":"resp_1","output":[` + output + `]}}` + "\n\n"
	}
	plain := `{"type":"message","role":"assistant","content":"` + strings.Repeat("x", manyBytes) + `"}`
	ones, names := strings.Repeat("1,", manyBytes/2)+"1", `{`+testenv.Members(manyBytes)+`}`
	for name, c := range map[string]struct {
		events          bool
		control, answer string
	}{
		"items":               {false, `{"id":"resp_1","output":[` + plain + `]}`, `{"id":"resp_1","output":[` + ones + `]}`},
		"items of a stream":   {true, event(plain), event(ones)},
		"names":               {false, `{"id":"resp_1","output":[` + plain + `]}`, `{"id":"resp_1","output":[` + names + `]}`},
		"names of a stream":   {true, event(plain), event(names)},
		"lines of a stream":   {true, event(plain), strings.Repeat("a\n", manyBytes/2) + "\n"},
		"data of many pieces": {true, event(plain), strings.Repeat("data:\n", manyBytes/6) + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			read := func(answer string) int64 {
				turn := newRecall(Options{}).turn(quota.Holder{Tenant: "acme", Agent: "a"}, egress.Provider{})
				turn.keeps = true
				reader := &itemReader{turn: turn, events: c.events}
				return testenv.Allocated(func() {
					_ = reader.pass([]byte(answer))
					_ = reader.rest()
					turn.close()
				})
			}
			if control, took := read(c.control), read(c.answer); took > 2*control {
				t.Errorf("%d MiB take %d MiB, a text of that size %d MiB", len(c.answer)>>20, took>>20, control>>20)
			}
		})
	}
}

// TestWhatIsPutInIsCountedBeforeItIsThere: a small request that refers to much takes as much room as what it becomes, while it becomes
// that, and its turn counts for as long as its answer takes.
func TestWhatIsPutInIsCountedBeforeItIsThere(t *testing.T) {
	w := newResponsesFixture(t)
	by := holderOf(w.caller)
	large := `{"type":"message","id":"msg_large","role":"assistant","content":"` + strings.Repeat("x", manyBytes) + `"}`
	answered := w.recall.turn(by, w.providers[0])
	answered.keeps = true
	answered.answered([]byte(`{"id":"resp_large","output":[` + large + `]}`))
	for name, body := range map[string]string{
		"an item":                 `{"model":"gpt-5-mini","input":[{"type":"item_reference","id":"msg_large"}]}`,
		"a response":              `{"model":"gpt-5-mini","previous_response_id":"resp_large","input":"x"}`,
		"a response, and no more": `{"model":"gpt-5-mini","previous_response_id":"resp_large"}`,
	} {
		ask := func() (took int64, got *httptest.ResponseRecorder) {
			got = httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, pathResponses, strings.NewReader(body))
			r = r.WithContext(gateway.WithCaller(r.Context(), w.caller))
			return testenv.Allocated(func() { w.ServeHTTP(got, r) }), got
		}
		if err := w.held.Take(by, maxHeldByAgent-manyBytes); err != nil {
			t.Fatal(err)
		}
		took, got := ask()
		if got.Header().Get(headerRefusal) != problem.RateLimited || took > manyBytes {
			t.Errorf("%s, without room: %d %s, %d KiB", name, got.Code, got.Body, took>>10)
		}
		w.held.Give(by, maxHeldByAgent-manyBytes)
		if took, got = ask(); got.Code != http.StatusOK || took < manyBytes {
			t.Errorf("%s, with room: %d %s, %d KiB", name, got.Code, got.Body, took>>10)
		}
		if n := w.heldNow(); n != 0 {
			t.Errorf("%s: %d bytes are still held", name, n)
		}
	}
	// A reference to a response, as if it were an item, does not read the items of the response.
	answered.answered([]byte(`{"id":"resp_many","output":[` + strings.Repeat("1,", maxItems-1) + `1]}`))
	refs := strings.Repeat(`{"type":"item_reference","id":"resp_many"},`, 200)
	took := testenv.Allocated(func() { _, _ = answered.resolve([]byte(`{"model":"gpt-5-mini","input":[`+refs+`1]}`), nil) })
	if took > 1<<20 {
		t.Errorf("200 references to a response of many items take %d KiB", took>>10)
	}
	answered.close()
	// What a turn says is counted until its answer has ended.
	turn := w.recall.turn(by, w.providers[0])
	before := turn.held
	if _, p := turn.resolve([]byte(`{"model":"gpt-5-mini","input":[`+strings.Repeat("1,", 999)+`1]}`), nil); p != nil {
		t.Fatal(p)
	}
	if n := turn.held - before; n < 1000*32 || n > 1000*64 {
		t.Errorf("%d bytes are held of a thousand items", n)
	}
	turn.close()
}

// TestAnAgentAtItsBoundPassesNobodyElsesAnswers: what an agent's own oldest makes room for costs the same however much others have kept
// before.
func TestAnAgentAtItsBoundPassesNobodyElsesAnswers(t *testing.T) {
	const puts = 500
	took := func(others int) (minimum time.Duration) {
		r := newRecall(Options{})
		other := r.turn(quota.Holder{Tenant: "acme", Agent: "other"}, egress.Provider{})
		for i := range others {
			other.text(binary.BigEndian.AppendUint32(nil, uint32(i)))
		}
		turn := r.turn(quota.Holder{Tenant: "acme", Agent: "a"}, egress.Provider{})
		turn.hold(maxRecalledByAgent - 100*entryCost)
		for round := range 3 {
			begun := time.Now()
			for i := range puts {
				turn.text(binary.BigEndian.AppendUint32(nil, uint32(round*puts+i)))
			}
			if d := time.Since(begun); round == 0 || d < minimum {
				minimum = d
			}
		}
		if n := len(r.entries); n < others+95 || n > others+100 {
			t.Errorf("%d entries, %d of them of another agent", n, others)
		}
		return minimum
	}
	alone := took(0)
	if beside := took(30_000); beside > 50*alone {
		t.Errorf("%d entries take %s, and %s beside 30000 of another agent", puts, alone, beside)
	}
}

// TestKeptAnswersTakeWhatIsCounted: what is kept of many small items takes no more memory than is counted.
func TestKeptAnswersTakeWhatIsCounted(t *testing.T) {
	r := newRecall(Options{})
	turn := r.turn(quota.Holder{Tenant: "acme", Agent: "a"}, egress.Provider{})
	live := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := live()
	for i := range 60_000 {
		turn.text([]byte{byte(i), byte(i >> 8), byte(i >> 16)})
	}
	took, counted := live()-before, r.gate.Amounts(quota.Holder{})[0].Held.All
	if took > counted || took < counted/4 {
		t.Errorf("%d KiB are taken, %d counted", took>>10, counted>>10)
	}
	runtime.KeepAlive(r)
}
