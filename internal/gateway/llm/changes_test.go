package llm

import (
	"net/http"
	"strings"
	"testing"
)

// changes are a request of each endpoint and the one after it, and what the provider gets of them: every change that the gateway
// makes to a body is here.
var changes = []struct {
	name, path, answer string
	turns              [2]string // what the agent sends
	sent               [2]string // what the provider gets; empty: the same
}{
	{
		name: "a chat, whole", path: pathChat, answer: chatAnswer,
		turns: [2]string{
			`{"model":"openai-1","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}]}`,
			`{"model":"openai-1","messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"21"}]}`,
		},
	},
	{
		name: "a chat that does not ask for its usage", path: pathChat, answer: chatAnswer,
		turns: [2]string{
			`{"model":"openai-1","stream":true,"messages":[{"role":"user","content":"x"}]}`,
			`{"stream":true,"stream_options":{"include_usage":false},"model":"openai-1","messages":[{"role":"assistant","content":"x"},{"role":"user","content":"y"}]}`,
		},
		sent: [2]string{
			`{"stream_options":{"include_usage":true},"model":"openai-1","stream":true,"messages":[{"role":"user","content":"x"}]}`,
			`{"stream":true,"stream_options":{"include_usage":true},"model":"openai-1","messages":[{"role":"assistant","content":"x"},{"role":"user","content":"y"}]}`,
		},
	},
	{
		name: "a response that is not kept", path: pathResponses,
		answer: `{"id":"resp_1","output":[{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":"AA"},{"id":"fc_1","type":"function_call","call_id":"c","name":"f","arguments":"{}"}]}`,
		turns: [2]string{
			`{"model":"openai-1","input":"x"}`,
			`{"model":"openai-1","previous_response_id":"resp_1","input":[{"type":"function_call_output","call_id":"c","output":"21"}]}`,
		},
		sent: [2]string{
			`{"include":["reasoning.encrypted_content"],"store":false,"model":"openai-1","input":"x"}`,
			`{"include":["reasoning.encrypted_content"],"store":false,"model":"openai-1","input":[{"role":"user","content":"x"},{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":"AA"},{"id":"fc_1","type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"21"}]}`,
		},
	},
	{
		name: "a response of a client that keeps nothing", path: pathResponses, answer: `{"id":"resp_1","output":[]}`,
		turns: [2]string{
			`{"model":"openai-1","store":false,"include":["reasoning.encrypted_content"],"input":"x"}`,
			`{"model":"openai-1","store":false,"input":[{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"AA"},{"type":"message","role":"assistant","id":"msg_1","status":"completed","content":[{"type":"output_text","text":"y","annotations":[]}]},{"role":"user","content":"z"}]}`,
		},
	},
	{
		name: "a response whose reasoning nobody has", path: pathResponses, answer: `{"id":"resp_1","output":[]}`,
		turns: [2]string{
			`{"model":"openai-1","store":false,"input":[{"type":"reasoning","id":"rs_1","summary":[]},{"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"21"}]}`,
			`{"model":"openai-1","store":false,"input":"z"}`,
		},
		sent: [2]string{`{"model":"openai-1","store":false,"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"21"}]}`},
	},
	{
		name: "embeddings", path: "/v1/embeddings", answer: embeddingsAnswer,
		turns: [2]string{`{"model":"openai-e","input":["x"]}`, `{"model":"openai-e","input":"y","dimensions":8}`},
	},
	{
		name: "messages of Anthropic", path: pathMessages, answer: messagesAnswer,
		turns: [2]string{
			`{"model":"anthropic-1","max_tokens":9,"stream":true,"thinking":{"type":"enabled","budget_tokens":5},"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","input_schema":{}}]}`,
			`{"model":"anthropic-1","max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"AA=="},{"type":"redacted_thinking","data":"BB=="},{"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"21"}]}]}`,
		},
	},
	{
		name: "counting tokens", path: "/v1/messages/count_tokens", answer: `{"input_tokens":3}`,
		turns: [2]string{`{"model":"anthropic-1","messages":[{"role":"user","content":"x"}]}`, `{"model":"anthropic-1","messages":[]}`},
	},
	{
		name: "a chat of Ollama", path: "/api/chat", answer: ollamaAnswer,
		turns: [2]string{
			`{"model":"ollama-1","messages":[{"role":"user","content":"x","images":["AAAA"]}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"think":true}`,
			`{"model":"ollama-1","messages":[{"role":"assistant","content":"","thinking":"t","tool_calls":[{"function":{"name":"f","arguments":{}}}]},{"role":"tool","tool_name":"f","content":"21"}]}`,
		},
	},
	{
		name: "a text of Ollama", path: "/api/generate", answer: ollamaAnswer,
		turns: [2]string{`{"model":"ollama-1","prompt":"x"}`, `{"model":"ollama-1","prompt":"y","context":[1,2],"keep_alive":"5m","options":{"seed":1}}`},
	},
}

func TestEveryChangeToARequestAndTheTurnAfterIt(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range changes {
		seen[c.path] = true
		w := newFixture(t, jsonAnswer(http.StatusOK, c.answer))
		for i, body := range c.turns {
			want := c.sent[i]
			if want == "" {
				want = body
			}
			if got := w.post(c.path, body); got.status != http.StatusOK {
				t.Errorf("%s, turn %d: %d %s", c.name, i, got.status, got.body)
			} else if got.body != c.answer {
				t.Errorf("%s, turn %d: the agent got %s", c.name, i, got.body)
			}
			if _, sent := w.last(); sent != want {
				t.Errorf("%s, turn %d: the provider got\n%s, not\n%s", c.name, i, sent, want)
			}
		}
	}
	for _, e := range endpoints() {
		if !seen[e.path] {
			t.Errorf("%s is not in the table", strings.TrimPrefix(e.path, "/"))
		}
	}
}
