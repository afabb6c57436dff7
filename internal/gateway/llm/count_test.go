package llm

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// Answers after the documentation of the wires.
const (
	chatAnswer = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"openai-mini","choices":[{"index":0,"message":{"role":"assistant",` +
		`"content":"Hello \"usage\": {\"prompt_tokens\": 999}","usage":{"prompt_tokens":777}},"finish_reason":"stop"}],` +
		`"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":5},"completion_tokens_details":{"reasoning_tokens":3}}}`

	chatStream = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}],\"usage\":null}\n\n" +
		"data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"},\"finish_reason\":null}],\"usage\":null}\n\n" +
		"data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n" +
		chatUsageEvent +
		"data: [DONE]\n\n"
	chatUsageEvent = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10,\"total_tokens\":29}}\n\n"

	responsesAnswer = `{"id":"resp_1","object":"response","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"Hi"}]}],` +
		`"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":0},"output_tokens":87,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":123}}`
	responsesStream = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"status\":\"in_progress\",\"usage\":null}}\n\n" +
		"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n" +
		"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":36,\"output_tokens\":87,\"total_tokens\":123}}}\n\n"

	embeddingsAnswer = `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.0023064255,-0.009327292]}],"model":"e","usage":{"prompt_tokens":8,"total_tokens":8}}`

	messagesAnswer = `{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text","text":"Hi!"}],"model":"anthropic-1","stop_reason":"end_turn",` +
		`"usage":{"input_tokens":10,"cache_creation_input_tokens":100,"cache_read_input_tokens":1000,"cache_creation":{"ephemeral_5m_input_tokens":100},"output_tokens":25,"service_tier":"standard"}}`
	messagesStream = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"content\":[],\"usage\":{\"input_tokens\":10,\"cache_creation_input_tokens\":100,\"cache_read_input_tokens\":1000,\"output_tokens\":1}}}\n\n" +
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n" +
		"event: ping\ndata: {\"type\": \"ping\"}\n\n" +
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n" +
		"event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":15}}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":25}}\n\n" +
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"

	ollamaAnswer = `{"model":"llama3.2","created_at":"2023-12-12T14:13:43.416799Z","message":{"role":"assistant","content":"Hello!"},"done":true,` +
		`"total_duration":5191566416,"load_duration":2154458,"prompt_eval_count":26,"prompt_eval_duration":383809000,"eval_count":298,"eval_duration":4799921000}` + "\n"
	ollamaStream = `{"model":"llama3.2","created_at":"2023-08-04T08:52:19.385406455-07:00","message":{"role":"assistant","content":"The"},"done":false}` + "\n" +
		`{"model":"llama3.2","created_at":"2023-08-04T19:22:45.499127Z","message":{"role":"assistant","content":""},"done":true,"prompt_eval_count":26,"eval_count":298,"eval_duration":4799921000}` + "\n"
)

// counted is one answer and what it says.
type counted struct {
	name          string
	wire          egress.Wire
	events        bool
	answer        string
	input, output int64
	done          bool
}

func countedAnswers() []counted {
	return []counted{
		{"chat", egress.WireOpenAI, false, chatAnswer, 19, 10, false},
		{"chat stream", egress.WireOpenAI, true, chatStream, 19, 10, true},
		{"chat stream with CRLF", egress.WireOpenAI, true, strings.ReplaceAll(chatStream, "\n", "\r\n"), 19, 10, true},
		{"chat stream with CR", egress.WireOpenAI, true, strings.ReplaceAll(chatStream, "\n", "\r"), 19, 10, true},
		{"responses", egress.WireOpenAI, false, responsesAnswer, 36, 87, false},
		{"responses stream", egress.WireOpenAI, true, responsesStream, 36, 87, true},
		{"embeddings", egress.WireOpenAI, false, embeddingsAnswer, 8, 0, false},
		{"thoughts in the total only", egress.WireOpenAI, false, `{"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":107}}`, 5, 102, false},
		{"messages", egress.WireAnthropic, false, messagesAnswer, 1110, 25, false},
		{"messages stream", egress.WireAnthropic, true, messagesStream, 1110, 25, true},
		{"data of two lines", egress.WireAnthropic, true, "data:{\"type\":\"message_delta\",\ndata: \"usage\":{\"input_tokens\":3,\ndata:\"output_tokens\":4}}\n\n", 3, 4, false},
		{"ollama", egress.WireOllama, false, ollamaAnswer, 26, 298, true},
		{"ollama stream", egress.WireOllama, false, ollamaStream, 26, 298, true},
		{"pretty JSON", egress.WireOpenAI, false, "{\n  \"usage\" : {\n \"prompt_tokens\" : 7 ,\n \"completion_tokens\" : 8\n }\n}", 7, 8, false},
	}
}

// totals are the tokens of a counter, whatever their price.
func totals(c *counter) (input, output int64, said bool) {
	u, said := c.usage()
	t := priced(egress.Provider{}, "", u)
	return t.Input, t.Output, said
}

func TestUsageIsCountedInEveryWire(t *testing.T) {
	for _, a := range countedAnswers() {
		t.Run(a.name, func(t *testing.T) {
			c := newCounter(a.wire, a.events)
			_, _ = c.Write([]byte(a.answer))
			if input, output, said := totals(c); input != a.input || output != a.output || !said || c.done() != a.done {
				t.Errorf("counted %d and %d, said %v, done %v; want %d and %d, done %v", input, output, said, c.done(), a.input, a.output, a.done)
			}
		})
	}
}

func TestUsageIsOnlyWhereTheWireHasIt(t *testing.T) {
	for name, answer := range map[string]string{
		"in a text":        `{"choices":[{"message":{"content":"{\"usage\":{\"prompt_tokens\":5}}"}}]}`,
		"in a choice":      `{"choices":[{"usage":{"prompt_tokens":5,"completion_tokens":6}}]}`,
		"in details":       `{"usage":{"details":{"prompt_tokens":5}}}`,
		"in a list":        `{"usage":[{"prompt_tokens":5}]}`,
		"null":             `{"usage":null}`,
		"below the answer": `{"a":{"usage":{"prompt_tokens":5}}}`,
		"text":             `{"usage":{"prompt_tokens":"5"}}`,
		"negative":         `{"usage":{"prompt_tokens":-5}}`,
		"cut key":          `{"us\u0061ge":{"prompt_tokens":5}}`,
		"of another wire":  `{"message":{"usage":{"input_tokens":5}},"prompt_eval_count":3}`,
	} {
		c := newCounter(egress.WireOpenAI, false)
		_, _ = c.Write([]byte(answer))
		if input, output, said := totals(c); said {
			t.Errorf("%s: counted %d and %d", name, input, output)
		}
	}
}

func TestHugeUsageIsBounded(t *testing.T) {
	c := newCounter(egress.WireAnthropic, false)
	_, _ = c.Write([]byte(`{"usage":{"input_tokens":1e300,"cache_read_input_tokens":1e300,"cache_creation_input_tokens":1e300,"output_tokens":99999999999999999999}}`))
	if input, output, _ := totals(c); input != maxTokens || output != maxTokens {
		t.Errorf("counted %d and %d", input, output)
	}
}

func TestGuessIsByTextOrByEvent(t *testing.T) {
	c := newCounter(egress.WireOpenAI, true)
	_, _ = c.Write([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("word", 50) + "\"}}]}\n\n"))
	if c.guess() != 50 {
		t.Errorf("guessed %d for 200 bytes of text in one event", c.guess())
	}
	for range 100 {
		_, _ = c.Write([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n"))
	}
	if c.guess() != 101 {
		t.Errorf("guessed %d for 101 events", c.guess())
	}
}

// count is everything that a counter says, after pieces of these sizes.
func count(wire egress.Wire, events bool, answer []byte, size func() int) [6]int64 {
	c := newCounter(wire, events)
	for len(answer) > 0 {
		n := min(max(size(), 1), len(answer))
		_, _ = c.Write(answer[:n])
		answer = answer[n:]
	}
	input, output, said := totals(c)
	flag := func(b bool) int64 {
		if b {
			return 1
		}
		return 0
	}
	return [6]int64{input, output, flag(said), flag(c.done()), c.guess(), c.dataEvents}
}

func TestCountsDoNotDependOnPieces(t *testing.T) {
	answers := countedAnswers()
	property.Check(t, func(t *rapid.T) {
		a := answers[rapid.IntRange(0, len(answers)-1).Draw(t, "answer")]
		whole := count(a.wire, a.events, []byte(a.answer), func() int { return len(a.answer) })
		pieces := count(a.wire, a.events, []byte(a.answer), func() int { return rapid.IntRange(1, 40).Draw(t, "size") })
		if whole != pieces {
			t.Fatalf("%s: whole %v, in pieces %v", a.name, whole, pieces)
		}
	})
}

func FuzzCounter(f *testing.F) {
	for _, a := range countedAnswers() {
		f.Add(a.answer, string(a.wire), a.events, uint8(3))
	}
	f.Add(strings.Repeat("[", 100)+"]]]]}}}}\"", "openai", false, uint8(1))
	f.Add("}}}]]]{,\"usage\",:{\"prompt_tokens\":1e5", "openai", true, uint8(2))
	f.Fuzz(func(t *testing.T, answer, wire string, events bool, size uint8) {
		whole := count(egress.Wire(wire), events, []byte(answer), func() int { return len(answer) })
		pieces := count(egress.Wire(wire), events, []byte(answer), func() int { return int(size) })
		if whole != pieces {
			t.Fatalf("whole %v, in pieces of %d %v", whole, size, pieces)
		}
		if whole[0] < 0 || whole[1] < 0 || whole[0] > maxTokens || whole[1] > maxTokens || whole[4] < 0 {
			t.Fatalf("out of bounds: %v", whole)
		}
	})
}

func BenchmarkCounter(b *testing.B) {
	for _, a := range []counted{{name: "events", wire: egress.WireOpenAI, events: true, answer: chatStream}, {name: "json", wire: egress.WireOpenAI, answer: chatAnswer}} {
		b.Run(a.name, func(b *testing.B) {
			data := []byte(strings.Repeat(a.answer, 50))
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			c := newCounter(a.wire, a.events)
			for b.Loop() {
				_, _ = c.Write(data)
			}
		})
	}
}
