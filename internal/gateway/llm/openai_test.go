package llm

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// openAI answers as OpenAI's Responses API does: it keeps responses and their items unless store is false, looks up what a
// request refers to, and refuses what it has not kept. Reasoning that it has not kept must come back encrypted. Its model calls
// the function weather, and says what it sees of the conversation when the function has answered.
type openAI struct {
	mu        sync.Mutex
	number    int
	items     map[string]obj    // by id, of those that were kept
	responses map[string][]obj  // by id, with everything before
	pairs     map[string]string // by the id of an item, the reasoning that it needs
	sealed    map[string]bool   // encrypted reasoning
	requests  []obj
}

// obj is a JSON object.
type obj = map[string]any

func newOpenAI() *openAI {
	return &openAI{items: map[string]obj{}, responses: map[string][]obj{}, pairs: map[string]string{}, sealed: map[string]bool{}}
}

// responseMembers are what OpenAI takes in a request.
var responseMembers = strings.Fields(`background context_management conversation include input instructions max_output_tokens max_tool_calls metadata model
	parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier
	store stream stream_options temperature text tool_choice tools top_logprobs top_p truncation user`)

// beginnings are how ids of items begin.
var beginnings = map[string]string{"message": "msg_", "function_call": "fc_", "reasoning": "rs_"}

func (o *openAI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != pathResponses || r.Method != http.MethodPost {
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	var q obj
	if err == nil {
		err = json.Unmarshal(body, &q)
	}
	if err != nil {
		o.refuse(w, http.StatusBadRequest, "We could not parse the JSON body of your request.")
		return
	}
	o.answer(w, q)
}

func (o *openAI) answer(w http.ResponseWriter, q obj) {
	o.mu.Lock()
	o.requests = append(o.requests, q)
	response, status, refusal := o.respond(q)
	o.mu.Unlock()
	switch {
	case refusal != "":
		o.refuse(w, status, refusal)
	case q["stream"] == true:
		stream(w, response)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(response)
	}
}

func (o *openAI) refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(obj{"error": obj{"message": text, "type": "invalid_request_error", "param": nil, "code": nil}})
}

func notFound(id string) string {
	return "Item with id '" + id + "' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input."
}

// respond makes a response of a request, or says why there is none.
func (o *openAI) respond(q obj) (response obj, status int, refusal string) {
	for name := range q {
		if !slices.Contains(responseMembers, name) {
			return nil, 400, "Unknown parameter: '" + name + "'."
		}
	}
	model, _ := q["model"].(string)
	thinks := !strings.Contains(model, "4o")
	include, _ := q["include"].([]any)
	seals := slices.Contains(include, any("reasoning.encrypted_content"))
	if seals && !thinks {
		return nil, 400, "Encrypted content is not supported with this model."
	}
	var seen []obj
	if previous, _ := q["previous_response_id"].(string); previous != "" {
		before, ok := o.responses[previous]
		if !ok {
			return nil, 400, "Previous response with id '" + previous + "' not found."
		}
		seen = append(seen, before...)
	}
	switch input := q["input"].(type) {
	case string:
		seen = append(seen, obj{"type": "message", "role": "user", "content": input})
	case []any:
		for i, e := range input {
			item, refusal := o.item(i, e)
			if refusal != "" {
				return nil, 404, refusal
			}
			seen = append(seen, item)
		}
	default:
		return nil, 400, "Missing required parameter: 'input'."
	}
	if refusal := o.check(seen); refusal != "" {
		return nil, 400, refusal
	}
	output := o.think(seen, thinks, seals)
	response = obj{
		"id": o.id("resp_"), "object": "response", "created_at": 1700000000, "status": "completed", "model": model, "output": output,
		"parallel_tool_calls": true, "tools": []any{}, "tool_choice": "auto", "error": nil, "incomplete_details": nil, "instructions": nil,
		"metadata": obj{}, "temperature": 1, "top_p": 1, "store": q["store"] != false, "previous_response_id": q["previous_response_id"],
		"usage": obj{"input_tokens": 10, "input_tokens_details": obj{"cached_tokens": 0}, "output_tokens": 10,
			"output_tokens_details": obj{"reasoning_tokens": 5}, "total_tokens": 20},
	}
	if q["store"] != false {
		for _, item := range output {
			o.items[item["id"].(string)] = item
		}
		o.responses[response["id"].(string)] = append(seen, output...)
	}
	return response, 0, ""
}

func (o *openAI) id(begin string) string {
	o.number++
	return fmt.Sprintf("%s%024d", begin, o.number)
}

// item reads an item of the input.
func (o *openAI) item(i int, e any) (obj, string) {
	item, _ := e.(obj)
	kind, _ := item["type"].(string)
	id, _ := item["id"].(string)
	if kind == "item_reference" || kind == "" && item["role"] == nil {
		if kept, ok := o.items[id]; ok {
			return kept, ""
		}
		return nil, notFound(id)
	}
	if begin := beginnings[kind]; id != "" && begin != "" && !strings.HasPrefix(id, begin) {
		return nil, fmt.Sprintf("Invalid 'input[%d].id': '%s'. Expected an ID that begins with '%s'.", i, id, strings.TrimSuffix(begin, "_"))
	}
	if kind != "reasoning" {
		return item, ""
	}
	switch sealed, _ := item["encrypted_content"].(string); {
	case sealed != "" && !o.sealed[sealed]:
		return nil, "The encrypted content " + sealed + " could not be verified."
	case sealed == "" && o.items[id] == nil:
		return nil, notFound(id)
	}
	return item, ""
}

// check looks whether what belongs together is there.
func (o *openAI) check(seen []obj) string {
	thoughts, calls := map[string]bool{}, map[string]bool{}
	for i, item := range seen {
		id, _ := item["id"].(string)
		switch item["type"] {
		case "reasoning":
			thoughts[id] = true
			if i+1 == len(seen) || seen[i+1]["type"] != "function_call" && seen[i+1]["role"] != "assistant" {
				return "Item '" + id + "' of type 'reasoning' was provided without its required following item."
			}
		case "function_call":
			calls[item["call_id"].(string)] = true
		case "function_call_output":
			if id := item["call_id"].(string); !calls[id] {
				return "No tool call found for function call output with call_id " + id + "."
			}
			delete(calls, item["call_id"].(string))
		}
		if needs := o.pairs[id]; needs != "" && !thoughts[needs] {
			return fmt.Sprintf("Item '%s' of type '%v' was provided without its required 'reasoning' item: '%s'.", id, item["type"], needs)
		}
	}
	for id := range calls {
		return "No tool output found for function call " + id + "."
	}
	return ""
}

// think is what the model makes of a conversation: a call when a user has spoken, and then a text with all that it sees.
func (o *openAI) think(seen []obj, thinks, seals bool) (output []obj) {
	counts := map[string]int{}
	for _, item := range seen {
		if kind, _ := item["type"].(string); kind != "" && kind != "message" {
			counts[kind]++
		} else {
			counts[item["role"].(string)]++
		}
	}
	thought := ""
	if thinks {
		item := obj{"type": "reasoning", "id": o.id("rs_"), "summary": []any{obj{"type": "summary_text", "text": "I think."}}}
		if seals {
			sealed := o.id("gAAAAAB")
			o.sealed[sealed], item["encrypted_content"] = true, sealed
		}
		thought = item["id"].(string)
		output = append(output, item)
	}
	answer := obj{"type": "function_call", "id": o.id("fc_"), "call_id": o.id("call_"), "name": "weather", "arguments": `{"city":"Bern"}`, "status": "completed"}
	if last := seen[len(seen)-1]; last["type"] == "function_call_output" {
		text := fmt.Sprintf("user %d assistant %d call %d output %d thought %d", counts["user"], counts["assistant"], counts["function_call"],
			counts["function_call_output"], counts["reasoning"])
		answer = obj{"type": "message", "id": o.id("msg_"), "role": "assistant", "status": "completed",
			"content": []any{obj{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}}}
	}
	if thought != "" {
		o.pairs[answer["id"].(string)] = thought
	}
	return append(output, answer)
}

// stream writes a response as events.
func stream(w http.ResponseWriter, response obj) {
	w.Header().Set("Content-Type", "text/event-stream")
	n := 0
	send := func(kind string, members obj) {
		members["type"], members["sequence_number"] = kind, n
		n++
		text, _ := json.Marshal(members)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, text)
		_ = http.NewResponseController(w).Flush()
	}
	with := func(o obj, change ...any) obj {
		out := obj{}
		for key, value := range o {
			out[key] = value
		}
		for i := 0; i < len(change); i += 2 {
			out[change[i].(string)] = change[i+1]
		}
		return out
	}
	begun := with(response, "status", "in_progress", "output", []any{}, "usage", nil)
	send("response.created", obj{"response": begun})
	send("response.in_progress", obj{"response": begun})
	for i, item := range response["output"].([]obj) {
		at := func(more ...any) obj { return with(obj{"output_index": i, "item_id": item["id"]}, more...) }
		switch item["type"] {
		case "reasoning":
			send("response.output_item.added", obj{"output_index": i, "item": with(item, "summary", []any{})})
			part := item["summary"].([]any)[0].(obj)
			send("response.reasoning_summary_part.added", at("summary_index", 0, "part", obj{"type": "summary_text", "text": ""}))
			send("response.reasoning_summary_text.delta", at("summary_index", 0, "delta", part["text"]))
			send("response.reasoning_summary_text.done", at("summary_index", 0, "text", part["text"]))
			send("response.reasoning_summary_part.done", at("summary_index", 0, "part", part))
		case "function_call":
			send("response.output_item.added", obj{"output_index": i, "item": with(item, "arguments", "", "status", "in_progress")})
			send("response.function_call_arguments.delta", at("delta", item["arguments"]))
			send("response.function_call_arguments.done", at("arguments", item["arguments"], "name", item["name"]))
		default:
			send("response.output_item.added", obj{"output_index": i, "item": with(item, "content", []any{}, "status", "in_progress")})
			part := item["content"].([]any)[0].(obj)
			send("response.content_part.added", at("content_index", 0, "part", with(part, "text", "")))
			for _, word := range strings.SplitAfter(part["text"].(string), " ") {
				send("response.output_text.delta", at("content_index", 0, "delta", word, "logprobs", []any{}))
			}
			send("response.output_text.done", at("content_index", 0, "text", part["text"], "logprobs", []any{}))
			send("response.content_part.done", at("content_index", 0, "part", part))
		}
		send("response.output_item.done", obj{"output_index": i, "item": item})
	}
	send("response.completed", obj{"response": response})
}
