package task

import "encoding/json"

// responses is OpenAI's Responses API.
type responses struct{}

func (responses) path() string { return "/v1/responses" }

func (responses) body(q question) any {
	content := []any{map[string]any{"type": "input_text", "text": q.user}}
	if len(q.picture) > 0 {
		content = append(content, map[string]any{"type": "input_image", "image_url": dataURL(q.picture)})
	}
	return map[string]any{
		"model": q.model, "max_output_tokens": q.limit, "instructions": q.system,
		"input": []any{map[string]any{"role": "user", "content": content}},
		"tools": []any{map[string]any{"type": "function", "name": toolName, "description": toolAbout, "parameters": toolSchema(),
			"strict": false}}, // strict demands every member in every call
		"tool_choice": "required",
	}
}

func (responses) read(data []byte) (reply, error) {
	var in struct {
		Output []struct {
			Type      string `json:"type"`
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"output"`
		Usage struct {
			Input  int64 `json:"input_tokens"`
			Output int64 `json:"output_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return reply{}, err
	}
	out := reply{input: in.Usage.Input, output: in.Usage.Output}
	for _, item := range in.Output {
		if item.Type == "function_call" {
			out.call(item.Name, json.RawMessage(item.Arguments))
		}
	}
	return out, nil
}
