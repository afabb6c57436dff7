package llm

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/vault"
)

// responsesFixture is a fixture whose provider answers as OpenAI does.
type responsesFixture struct {
	*fixture
	openAI *openAI
}

func newResponsesFixture(t *testing.T) responsesFixture {
	t.Helper()
	o := newOpenAI()
	w := newFixture(t, nil)
	w.answer = func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		i := slices.Index(w.requests, r)
		body := w.bodies[i]
		w.mu.Unlock()
		var q obj
		if err := json.Unmarshal([]byte(body), &q); err != nil {
			t.Errorf("the provider got %s: %v", body, err)
		}
		o.answer(rw, q)
	}
	w.provider(egress.WireOpenAI, func(p *egress.Provider) { p.Models = []string{"*"} })
	return responsesFixture{w, o}
}

// keptNothing fails when the provider has kept anything.
func (w responsesFixture) keptNothing(t *testing.T) {
	t.Helper()
	w.openAI.mu.Lock()
	defer w.openAI.mu.Unlock()
	if len(w.openAI.items)+len(w.openAI.responses) > 0 {
		t.Errorf("the provider keeps %d items and %d responses", len(w.openAI.items), len(w.openAI.responses))
	}
}

// converse asks as a client does that makes the next input of what there is, and returns the last answer.
func converse(t *testing.T, ask http.HandlerFunc, q obj, turns int, next func(q, response obj)) (last string, refusal string) {
	t.Helper()
	for n := 0; n < turns; n++ {
		input := []any{obj{"role": "user", "content": fmt.Sprintf("question %d", n)}}
		for len(input) > 0 {
			if before, ok := q["input"].([]any); ok {
				input = append(slices.Clone(before), input...)
			}
			q["input"] = input
			body, err := json.Marshal(q)
			if err != nil {
				t.Fatal(err)
			}
			got := httptest.NewRecorder()
			ask(got, httptest.NewRequest(http.MethodPost, pathResponses, bytes.NewReader(body)))
			if got.Code != http.StatusOK {
				return "", fmt.Sprintf("turn %d: %d %s", n, got.Code, got.Body)
			}
			response := responseOf(t, got.Body.String())
			input = nil
			for _, e := range outputOf(response) {
				switch item := e.(obj); item["type"] {
				case "function_call":
					input = append(input, obj{"type": "function_call_output", "call_id": item["call_id"], "output": "21"})
				case "message":
					last = item["content"].([]any)[0].(obj)["text"].(string)
				}
			}
			next(q, response)
		}
	}
	return last, ""
}

// responseOf is the response in an answer, also in one that is a stream.
func responseOf(t *testing.T, body string) (response obj) {
	t.Helper()
	if json.Unmarshal([]byte(body), &response) == nil {
		return response
	}
	for _, event := range strings.Split(body, "\n\n") {
		var o obj
		if json.Unmarshal(eventData([]byte(event)), &o) == nil && o["type"] == "response.completed" {
			return o["response"].(obj)
		}
	}
	t.Fatalf("there is no response in %s", body)
	return nil
}

func outputOf(response obj) []any { return response["output"].([]any) }

func with(q obj, items ...any) { q["input"] = append(q["input"].([]any), items...) }

// clientShapes are what the input of clients is made of: how the next request says what was answered.
var clientShapes = []struct {
	name string
	more obj
	next func(q, response obj)
}{
	{name: "the items as they came", next: func(q, r obj) { with(q, outputOf(r)...) }},
	{name: "references to all items", next: func(q, r obj) {
		for _, e := range outputOf(r) {
			with(q, obj{"type": "item_reference", "id": e.(obj)["id"]})
		}
	}},
	{name: "references without a type", next: func(q, r obj) {
		for _, e := range outputOf(r) {
			with(q, obj{"id": e.(obj)["id"]})
		}
	}},
	{name: "reasoning without what is encrypted", next: func(q, r obj) {
		for _, e := range outputOf(r) {
			delete(e.(obj), "encrypted_content")
		}
		with(q, outputOf(r)...)
	}},
	{name: "the response before", next: func(q, r obj) { q["previous_response_id"], q["input"] = r["id"], []any{} }},
	{name: "items of a client that keeps nothing", more: obj{"store": false, "include": []any{"reasoning.encrypted_content"}},
		next: func(q, r obj) { with(q, outputOf(r)...) }},
	{name: "items without reasoning and ids", next: func(q, r obj) {
		for _, e := range outputOf(r) {
			if delete(e.(obj), "id"); e.(obj)["type"] != "reasoning" {
				with(q, e)
			}
		}
	}},
	{name: "with something else included", more: obj{"include": []any{"message.output_text.logprobs"}}, next: func(q, r obj) { with(q, outputOf(r)...) }},
	{name: "with nothing included", more: obj{"include": []any{}, "store": nil}, next: func(q, r obj) { with(q, outputOf(r)...) }},
}

// TestTheTurnAfterAChangedRequest has every shape of client talk for ten turns, directly and through the gateway, to models that
// reason and to one that does not. The model sees the same each way, and its provider keeps nothing.
func TestTheTurnAfterAChangedRequest(t *testing.T) {
	for _, c := range clientShapes {
		for _, model := range []string{"gpt-5-mini", "gpt-4o"} {
			if model == "gpt-4o" && c.more["store"] == false {
				continue // it asks for what that model has not
			}
			for _, stream := range []bool{false, true} {
				if stream && model == "gpt-4o" {
					continue // one way is enough without reasoning
				}
				talk := func(way string, ask http.HandlerFunc) string {
					q := obj{"model": model, "stream": stream, "tools": []any{obj{"type": "function", "name": "weather", "parameters": obj{}}}}
					for key, value := range c.more {
						q[key] = value
					}
					last, refusal := converse(t, ask, q, 10, c.next)
					if refusal != "" {
						t.Errorf("%s, %s, stream %v, %s: %s", c.name, model, stream, way, refusal)
					}
					return last
				}
				w := newResponsesFixture(t)
				want := talk("directly", newOpenAI().ServeHTTP)
				got := talk("through the gateway", func(rw http.ResponseWriter, r *http.Request) {
					w.ServeHTTP(rw, r.WithContext(gateway.WithCaller(r.Context(), w.caller)))
				})
				if got != want || !strings.HasPrefix(got, "user 10 assistant 9 call 10 output 10") {
					t.Errorf("%s, %s, stream %v: directly the model sees %q, through the gateway %q", c.name, model, stream, want, got)
				}
				w.keptNothing(t)
				if n := w.reached(); n > 21 {
					t.Errorf("%s, %s, stream %v: %d requests for 20 answers", c.name, model, stream, n)
				}
			}
		}
	}
}

// first asks a question, and returns the response.
func (w responsesFixture) first(t *testing.T) (response obj) {
	t.Helper()
	got := w.post(pathResponses, `{"model":"gpt-5-mini","input":"x"}`)
	if err := json.Unmarshal([]byte(got.body), &response); err != nil || got.status != http.StatusOK {
		t.Fatalf("%d %s", got.status, got.body)
	}
	return response
}

// follow asks with references to a response and to its items.
func (w responsesFixture) follow(response obj) (byItems, byResponse reply) {
	var items []any
	for _, e := range outputOf(response) {
		items = append(items, obj{"type": "item_reference", "id": e.(obj)["id"]})
		if call := e.(obj)["call_id"]; call != nil {
			items = append(items, obj{"type": "function_call_output", "call_id": call, "output": "21"})
		}
	}
	text, _ := json.Marshal(items)
	output, _ := json.Marshal(items[len(items)-1:])
	byItems = w.post(pathResponses, `{"model":"gpt-5-mini","input":`+string(text)+`}`)
	return byItems, w.post(pathResponses, `{"model":"gpt-5-mini","previous_response_id":"`+response["id"].(string)+`","input":`+string(output)+`}`)
}

func TestWhatAnAgentGotIsForNobodyElse(t *testing.T) {
	w := newResponsesFixture(t)
	own := w.caller
	w.secrets[vault.SecretName{Tenant: "rival", Service: "openai"}] = canary // the tenants have one key
	response := w.first(t)
	be := func(c gateway.Caller) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.caller = c
	}
	for name, other := range map[string]gateway.Caller{
		"another agent":                        {Jail: "b", Tenant: own.Tenant, Agent: "agent-2", Actor: "agent:agent-2"},
		"an agent of that name in another one": {Jail: "c", Tenant: "rival", Agent: own.Agent, Actor: "agent:agent-1"},
	} {
		be(other)
		before := w.reached()
		one, two := w.follow(response)
		for _, got := range []reply{one, two} {
			if got.header.Get(headerRefusal) != problem.HostedDenied || w.reached() != before {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
		}
	}
	be(own)
	if one, two := w.follow(response); one.status != http.StatusOK || two.status != http.StatusOK {
		t.Errorf("its own: %d %s, %d %s", one.status, one.body, two.status, two.body)
	}
	// An answer of one provider is not sent to another.
	w.provider(egress.WireOpenAI, func(p *egress.Provider) { p.ID = "another" })
	if one, two := w.follow(response); one.header.Get(headerRefusal) != problem.HostedDenied || two.header.Get(headerRefusal) != problem.HostedDenied {
		t.Errorf("of another provider: %d %s, %d %s", one.status, one.body, two.status, two.body)
	}
	w.keptNothing(t)
}

// Where a provider may keep what is said, the body goes on as it is, and the provider knows what it refers to.
func TestWhereKeepingIsAllowedNothingIsChanged(t *testing.T) {
	w := newResponsesFixture(t)
	w.allowHosted(hostedStored)
	response := w.first(t)
	if _, got := w.last(); got != `{"model":"gpt-5-mini","input":"x"}` {
		t.Errorf("the provider got %s", got)
	}
	if one, two := w.follow(response); one.status != http.StatusOK || two.status != http.StatusOK {
		t.Errorf("%d %s, %d %s", one.status, one.body, two.status, two.body)
	}
	if _, got := w.last(); !strings.Contains(got, `"previous_response_id":"resp_`) {
		t.Errorf("the provider got %s", got)
	}
}

func TestReasoningThatNobodyCanReadIsLeftOut(t *testing.T) {
	w := newResponsesFixture(t)
	body := `{"model":"gpt-5-mini","input":[{"role":"user","content":"x"},{"type":"reasoning","id":"rs_of_another","summary":[]},` +
		`{"type":"function_call","id":"fc_1","call_id":"c","name":"weather","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"21"},` +
		`{"type":"message","id":"msg_1","role":"assistant","content":"y"},{"role":"user","content":"z"}]}`
	want := `"input":[{"role":"user","content":"x"},` +
		`{"type":"function_call","call_id":"c","name":"weather","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"21"},` +
		`{"type":"message","id":"msg_1","role":"assistant","content":"y"},{"role":"user","content":"z"}]}`
	if got := w.post(pathResponses, body); got.status != http.StatusOK {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if _, got := w.last(); !strings.HasSuffix(got, want) {
		t.Errorf("the provider got %s", got)
	}
}

func TestMemoryOfAnswersIsSharedAndBounded(t *testing.T) {
	tenants := 2
	r := newRecall(Options{Options: access.Options{Tenants: func() int { return tenants }}})
	of := func(tenant, agent string) *turn {
		return r.turn(quota.Holder{Tenant: tenant, Agent: agent}, egress.Provider{Meta: egress.Meta{ID: "p"}})
	}
	parts := make([]sum, (1<<20-entryCost)/sha256.Size)
	fill := func(t *turn, n int) {
		for i := range n {
			t.put(fmt.Sprint(i), parts)
		}
	}
	kept := func(t *turn, n int) (count int) {
		for i := range n {
			if _, ok := r.get(entryKey{by: t.by, provider: "p", id: fmt.Sprint(i)}); ok {
				count++
			}
		}
		return count
	}
	rival := of("rival", "a")
	fill(rival, 4)
	// An agent's own oldest go first, and nobody else's.
	one := of("acme", "one")
	fill(of("acme", "old"), 20)
	fill(one, 40)
	if n := kept(one, 40); n != 31 {
		t.Errorf("one agent keeps %d", n)
	}
	if n := kept(one, 9); n != 0 {
		t.Errorf("%d of the oldest are kept", n)
	}
	if n := kept(of("acme", "old"), 20); n != 20 {
		t.Errorf("another agent of the tenant keeps %d", n)
	}
	// The whole tenant: its oldest go, and nothing of another tenant's.
	for i := range 10 {
		fill(of("acme", fmt.Sprint("agent", i)), 31)
	}
	if a := r.gate.Amounts(quota.Holder{Tenant: "acme"}); a[0].Held.Tenant > maxRecalled*8/10 || a[0].Held.Tenant < maxRecalled*7/10 {
		t.Errorf("the tenant keeps %d", a[0].Held.Tenant)
	}
	if n := kept(of("acme", "agent9"), 31); n != 31 {
		t.Errorf("the newest agent keeps %d", n)
	}
	if n := kept(rival, 4); n != 4 {
		t.Errorf("another tenant keeps %d", n)
	}
	fill(rival, 31)
	if n := kept(rival, 31); n != 31 {
		t.Errorf("another tenant finds room for %d", n)
	}
	// Bytes of an answer under way count, and are given back.
	held := r.gate.Amounts(quota.Holder{})[0].Held.All
	late := of("late", "a")
	if !late.hold(1 << 20) {
		t.Error("there is no room for what is under way")
	}
	late.close()
	late.close()
	if now := r.gate.Amounts(quota.Holder{})[0].Held.All; now != held {
		t.Errorf("%d are held, %d before", now, held)
	}
}

// An agent whose share is smaller than what one agent may have at most takes nothing from others of its tenant either.
func TestAnAgentAtItsShareForgetsItsOwnAnswers(t *testing.T) {
	quotas := config.Default().Quotas
	quotas.Agent = 4 // percent: 10 MiB and some
	r := newRecall(Options{Options: access.Options{Quotas: quotas}})
	kept := map[string]int{}
	for _, agent := range []string{"old", "one"} {
		for i := range map[string]int{"old": 5, "one": 20}[agent] {
			r.turn(quota.Holder{Tenant: "acme", Agent: agent}, egress.Provider{}).put(fmt.Sprint(i), make([]sum, (1<<20-entryCost)/sha256.Size))
		}
	}
	for key := range r.entries {
		kept[key.by.Agent]++
	}
	if kept["old"] != 5 || kept["one"] != 10 {
		t.Errorf("kept are %v", kept)
	}
}

// TestReferencesDoNotMultiply: what many references to one large item stand for is bounded.
func TestReferencesDoNotMultiply(t *testing.T) {
	w := newResponsesFixture(t)
	turn := w.recall.turn(holderOf(w.caller), w.providers[0])
	turn.made([]byte(`{"type":"message","id":"msg_large","role":"assistant","content":"` + strings.Repeat("x", 1<<20) + `"}`))
	before := w.reached()
	refs := strings.TrimSuffix(strings.Repeat(`{"type":"item_reference","id":"msg_large"},`, 40), ",")
	if got := w.post(pathResponses, `{"model":"gpt-5-mini","input":[`+refs+`]}`); got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %.300s", got.status, got.body)
	}
	others := strings.ReplaceAll(refs, "item_reference", "reasoning") // of which each is looked up, and left out
	if got := w.post(pathResponses, `{"model":"gpt-5-mini","input":[`+others+`]}`); got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("as another kind: %d %.300s", got.status, got.body)
	}
	if w.reached() != before {
		t.Error("it reached the provider")
	}
	if got := w.post(pathResponses, `{"model":"gpt-5-mini","input":[`+refs[:strings.Index(refs, "}")+1]+`]}`); got.status != http.StatusOK {
		t.Errorf("one reference: %d %.300s", got.status, got.body)
	}
	if n := w.heldNow(); n != 0 {
		t.Errorf("%d bytes are still held", n)
	}
}

// TestWhatAServerDoesNotTakeIsNotAdded: some servers refuse a member that they do not know. They get the request as the agent
// wrote it, and the next one at once so.
func TestWhatAServerDoesNotTakeIsNotAdded(t *testing.T) {
	for _, c := range []struct {
		path, body, refused, answer, sent string
		status                            int
	}{
		{pathChat, `{"model":"openai-1","stream":true,"messages":[]}`, `"stream_options"`, `{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"]}]}`,
			`{"model":"openai-1","stream":true,"messages":[]}`, 422},
		{pathResponses, `{"model":"openai-1","input":"x"}`, `"include"`, `{"error":{"message":"Encrypted content is not supported with this model."}}`,
			`{"store":false,"model":"openai-1","input":"x"}`, 400},
	} {
		w := newFixture(t, nil)
		w.answer = func(rw http.ResponseWriter, r *http.Request) {
			if _, body := w.last(); strings.Contains(body, c.refused) {
				jsonAnswer(c.status, c.answer)(rw, r)
				return
			}
			jsonAnswer(http.StatusOK, responsesAnswer)(rw, r)
		}
		for turn, requests := range []int{2, 3} {
			if got := w.post(c.path, c.body); got.status != http.StatusOK || w.reached() != requests {
				t.Errorf("%s, turn %d: %d %s, %d requests", c.path, turn, got.status, got.body, w.reached())
			}
			if _, sent := w.last(); sent != c.sent {
				t.Errorf("%s, turn %d: the provider got %s", c.path, turn, sent)
			}
		}
		// Of another agent nothing is known.
		w.mu.Lock()
		w.caller.Agent = "agent-2"
		w.mu.Unlock()
		if w.post(c.path, c.body); w.reached() != 5 {
			t.Errorf("%s: of another agent %d requests", c.path, w.reached()-3)
		}
		// An error about something else is the agent's, whole, and nothing is sent again.
		text := `{"error":{"message":"` + strings.Repeat("no ", 40<<10) + `"}}`
		w.mu.Lock()
		w.caller.Agent, w.answer = "agent-3", jsonAnswer(http.StatusBadRequest, text)
		w.mu.Unlock()
		if got := w.post(c.path, c.body); got.status != http.StatusBadRequest || got.body != text || w.reached() != 6 {
			t.Errorf("%s: %d, %d bytes, %d requests", c.path, got.status, len(got.body), w.reached()-5)
		}
	}
}
