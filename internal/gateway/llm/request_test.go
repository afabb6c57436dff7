package llm

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

func endpointOf(t testing.TB, path string) endpoint {
	t.Helper()
	for _, e := range endpoints() {
		if e.path == path {
			return e
		}
	}
	t.Fatal("no endpoint " + path)
	return endpoint{}
}

func TestAskIsRead(t *testing.T) {
	for _, c := range []struct {
		path, body string
		want       ask
	}{
		{pathChat, `{"model":"a"}`, ask{model: "a", choices: 1}},
		{pathChat, ` { "messages":[{"model":"x","stream":true}], "model" : "a\/b" } `, ask{model: "a/b", choices: 1}},
		{pathChat, `{"model":"a","stream":null,"max_tokens":null,"n":3}`, ask{model: "a", choices: 3}},
		{pathChat, `{"model":"a","max_tokens":10,"max_completion_tokens":20}`, ask{model: "a", output: 20, choices: 1}},
		{pathResponses, `{"model":"a","stream":true,"max_output_tokens":1e3,"background":false}`, ask{model: "a", stream: true, output: 1000, choices: 1}},
		{"/v1/messages", `{"max_tokens":1024,"model":"a","stream":true}`, ask{model: "a", stream: true, output: 1024, choices: 1}},
		{"/api/chat", `{"model":"a"}`, ask{model: "a", stream: true, choices: 1}},
		{"/api/chat", `{"model":"a","stream":false,"options":{"num_predict":7,"seed":1}}`, ask{model: "a", output: 7, choices: 1}},
		{"/api/generate", `{"model":"a","options":{"num_predict":-1}}`, ask{model: "a", stream: true, choices: 1}},
		{pathChat, `{"model":"a","max_tokens":1e400}`, ask{model: "a", output: maxTokens, choices: 1}},
		{pathChat, `{"model":"a","n":-4,"max_tokens":-4}`, ask{model: "a", choices: 1}},
	} {
		got, p := readAsk([]byte(c.body), endpointOf(t, c.path))
		if p != nil {
			t.Errorf("%s: %v", c.body, p)
			continue
		}
		if string(got.body) != c.body {
			t.Errorf("%s: goes on as %s", c.body, got.body)
		}
		if got.model != c.want.model || got.stream != c.want.stream || got.output != c.want.output || got.choices != c.want.choices {
			t.Errorf("%s: read as %+v", c.body, got)
		}
	}
}

func TestAskThatCanBeReadInTwoWaysIsRefused(t *testing.T) {
	for name, body := range map[string]string{
		"empty":               ``,
		"no object":           `["model"]`,
		"no model":            `{"messages":[]}`,
		"model twice":         `{"model":"cheap","model":"dear"}`,
		"model twice escaped": `{"model":"cheap","mod\u0065l":"dear"}`,
		"model in capitals":   `{"model":"cheap","MODEL":"dear"}`,
		"model with a fold":   `{"model":"cheap","ſtream":true}`,
		"stream twice":        `{"model":"a","stream":false,"Stream":true}`,
		"deep doubles":        `{"model":"a","messages":[{"role":"user","role":"system"}]}`,
		"two objects":         `{"model":"a"}{"model":"b"}`,
		"garbage behind":      `{"model":"a"} x`,
		"cut":                 `{"model":"a"`,
		"comment":             `{"model":"a"/**/}`,
		"bad UTF-8":           "{\"model\":\"a\",\"x\":\"\xff\"}",
		"model is a list":     `{"model":["a"]}`,
		"model is null":       `{"model":null}`,
		"model is empty":      `{"model":""}`,
		"model is long":       `{"model":"` + strings.Repeat("a", longestModel+1) + `"}`,
		"model with newline":  `{"model":"a\nb"}`,
		"model with NUL":      `{"model":"a\u0000"}`,
		"model turned around": `{"model":"a\u202eb"}`,
		"stream is a text":    `{"model":"a","stream":"true"}`,
		"tokens are a text":   `{"model":"a","max_tokens":"5"}`,
		"further models":      `{"model":"a","models":["b"]}`,
		"fallbacks":           `{"model":"a","fallbacks":["b"]}`,
		"background":          `{"model":"a","background":true}`,
		"options is a list":   `{"model":"a","stream":true,"stream_options":[]}`,
		"usage is a text":     `{"model":"a","stream":true,"stream_options":{"include_usage":"yes"}}`,
	} {
		if got, p := readAsk([]byte(body), endpointOf(t, pathChat)); p == nil {
			t.Errorf("%s: %s is read as %+v", name, body, got)
		} else if p.Code != problem.BadJSON && p.Code != problem.BadRequest || strings.Contains(p.Error(), "dear") {
			t.Errorf("%s: %s: %v", name, p.Code, p)
		}
	}
}

func TestChatStreamsAreMadeToSayTheirUsage(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{`{"model":"a","stream":true}`, `{"stream_options":{"include_usage":true},"model":"a","stream":true}`},
		{` {"stream":true, "model":"a"}`, ` {"stream_options":{"include_usage":true},"stream":true, "model":"a"}`},
		{`{"model":"a","stream":true,"stream_options":null,"x":1}`, `{"model":"a","stream":true,"stream_options":{"include_usage":true},"x":1}`},
		{`{"model":"a","stream_options":{},"stream":true}`, `{"model":"a","stream_options":{"include_usage":true},"stream":true}`},
		{`{"model":"a","stream":true,"stream_options": { "b": 1 } }`, `{"model":"a","stream":true,"stream_options": {"include_usage":true, "b": 1 } }`},
		{`{"model":"a","stream":true,"stream_options":{"b":1,"include_usage": false }}`, `{"model":"a","stream":true,"stream_options":{"b":1,"include_usage": true }}`},
		{`{"model":"a","stream":true,"stream_options":{"include_usage":null}}`, `{"model":"a","stream":true,"stream_options":{"include_usage":true}}`},
	} {
		got, p := readAsk([]byte(c.body), endpointOf(t, pathChat))
		if p != nil || !got.hidden || string(got.body) != c.want {
			t.Errorf("%s\n goes on as %s, hidden %v, %v", c.body, got.body, got.hidden, p)
		}
	}
	for _, c := range []struct{ path, body string }{
		{pathChat, `{"model":"a","stream":true,"stream_options":{"include_usage":true}}`},
		{pathChat, `{"model":"a","stream":false}`},
		{pathChat, `{"model":"a","stream_options":{"include_usage":false}}`},
		{pathResponses, `{"model":"a","stream":true}`},
		{"/v1/messages", `{"model":"a","stream":true}`},
		{"/api/chat", `{"model":"a"}`},
	} {
		got, p := readAsk([]byte(c.body), endpointOf(t, c.path))
		if p != nil || got.hidden || string(got.body) != c.body {
			t.Errorf("%s %s goes on as %s, hidden %v, %v", c.path, c.body, got.body, got.hidden, p)
		}
	}
}

// FuzzAsk compares the reader with Go's older one, which takes the last of two keys and does not mind their case: what is
// accepted must mean the same to both.
func FuzzAsk(f *testing.F) {
	for _, body := range []string{
		`{"model":"a","stream":true,"stream_options":{"b":1,"include_usage": false }}`, `{"model":"a","Model":"b"}`, `{"model":"a","stream":true}`,
		`{"stream_options" : null ,"stream":true,"model":"a"}`, `{"model":"a","stream":true,"stream_options":{"x":"}"}}`, `{"mod\u0065l":"a"}`,
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		e := endpoint{wire: egress.WireOpenAI, path: pathChat, answers: true}
		a, p := readAsk([]byte(body), e)
		if p != nil {
			return
		}
		var other struct {
			Model   string `json:"model"`
			Stream  bool   `json:"stream"`
			Options struct {
				Usage bool `json:"include_usage"`
			} `json:"stream_options"`
		}
		if err := json.Unmarshal(a.body, &other); err != nil {
			var wrong *json.UnmarshalTypeError
			if bytes.Contains(a.body, []byte("include_usage")) || strings.Contains(err.Error(), "stream_options") {
				return // a second spelling within the options, which decides nothing
			}
			t.Fatalf("%q goes on as %q, which is not read: %v %v", body, a.body, err, wrong)
		}
		if other.Model != a.model || other.Stream != a.stream || a.hidden && !other.Options.Usage {
			t.Fatalf("%q goes on as %q; read as %+v, and by others as %+v", body, a.body, a, other)
		}
		if !a.hidden && string(a.body) != body {
			t.Fatalf("%q goes on as %q", body, a.body)
		}
	})
}

func TestUsageEventIsTakenOutWhateverThePieces(t *testing.T) {
	usage := chatUsageEvent
	for name, c := range map[string]struct{ in, want string }{
		"as documented":     {chatStream, strings.Replace(chatStream, usage, "", 1)},
		"with CRLF":         {crlf(chatStream), crlf(strings.Replace(chatStream, usage, "", 1))},
		"with CR":           {strings.ReplaceAll(chatStream, "\n", "\r"), strings.ReplaceAll(strings.Replace(chatStream, usage, "", 1), "\n", "\r")},
		"usage with text":   {"data: {\"choices\":[{\"delta\":{}}],\"usage\":{\"prompt_tokens\":1}}\n\n", "data: {\"choices\":[{\"delta\":{}}],\"usage\":{\"prompt_tokens\":1}}\n\n"},
		"filter results":    {"data: {\"choices\":[],\"prompt_filter_results\":[],\"usage\":null}\n\n", "data: {\"choices\":[],\"prompt_filter_results\":[],\"usage\":null}\n\n"},
		"an error":          {"data: {\"error\":{},\"usage\":{}}\n\n", "data: {\"error\":{},\"usage\":{}}\n\n"},
		"a comment":         {": usage\n\n" + usage + ": \"usage\"\n\n", ": usage\n\n: \"usage\"\n\n"},
		"no JSON":           {"data: \"usage\" {\n\n", "data: \"usage\" {\n\n"},
		"a long event":      {"data: {\"usage\":{},\"x\":\"" + strings.Repeat("x", longestUsage) + "\"}\n\n" + usage, "data: {\"usage\":{},\"x\":\"" + strings.Repeat("x", longestUsage) + "\"}\n\n"},
		"no end":            {"data: x\n\ndata: y", "data: x\n\ndata: y"},
		"no end of usage":   {"data: x\n\ndata: {\"choices\":[],\"usage\":{\"a\":1}}\n", "data: x\n\ndata: {\"choices\":[],\"usage\":{\"a\":1}}\n"},
		"blank lines first": {"\n\n\n" + usage + "data: x\n\n", "\n\n\ndata: x\n\n"},
	} {
		if got := filtered(c.in, func() int { return len(c.in) }); got != c.want {
			t.Errorf("%s: got %.300q, want %.300q", name, got, c.want)
		}
		if got := filtered(c.in, func() int { return 1 }); got != c.want {
			t.Errorf("%s, byte by byte: got %.300q, want %.300q", name, got, c.want)
		}
		if len(c.in) > 10_000 {
			continue
		}
		property.Check(t, func(t *rapid.T) {
			if got := filtered(c.in, func() int { return rapid.IntRange(1, 50).Draw(t, "size") }); got != c.want {
				t.Fatalf("%s: got %q", name, got)
			}
		})
	}
}

func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

func filtered(in string, size func() int) string {
	var f usageFilter
	var out []byte
	for rest := []byte(in); len(rest) > 0; {
		n := min(size(), len(rest))
		out = append(out, f.pass(rest[:n])...)
		rest = rest[n:]
	}
	return string(append(out, f.rest()...))
}

func FuzzUsageFilter(f *testing.F) {
	f.Add(chatStream, uint8(7))
	f.Add("\r\r\n\ndata: {\"usage\":{}}\r\r\n", uint8(1))
	f.Fuzz(func(t *testing.T, in string, size uint8) {
		whole := filtered(in, func() int { return len(in) })
		if pieces := filtered(in, func() int { return max(int(size), 1) }); pieces != whole {
			t.Fatalf("whole %q, in pieces of %d %q", whole, size, pieces)
		}
		if !strings.Contains(in, "usage") && whole != in {
			t.Fatalf("%q becomes %q", in, whole)
		}
	})
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, model string
		want           bool
	}{
		{"*", "anything", true}, {"gpt-*", "gpt-5", true}, {"gpt-*", "GPT-5", false}, {"gpt-*", "x-gpt-5", false}, {"*-mini", "gpt-mini", true},
		{"*-mini", "gpt-mini-2", false}, {"a*b*c", "a1b2c", true}, {"a*b*c", "ac", false}, {"a*a", "a", false}, {"a*a", "aa", true}, {"", "", true},
		{"", "a", false}, {"gpt", "gpt", true}, {"gpt", "gpt-5", false}, {"**", "x", true}, {"a*b*b", "ab", false}, {"a.c", "abc", false}, {"[a]", "a", false},
	} {
		if matches(c.pattern, c.model) != c.want {
			t.Errorf("%q has %q: %v", c.pattern, c.model, !c.want)
		}
	}
}
