package task

import "encoding/json"

// messages is Anthropic's Messages API.
type messages struct{}

func (messages) path() string { return "/v1/messages" }

func (messages) body(q question) any {
	content := []any{map[string]any{"type": "text", "text": q.user}}
	if len(q.picture) > 0 {
		content = append(content, map[string]any{"type": "image", "source": map[string]any{"type": "base64", "media_type": pictureType, "data": q.picture}})
	}
	return map[string]any{
		"model": q.model, "max_tokens": q.limit, "system": q.system,
		"messages":    []any{map[string]any{"role": "user", "content": content}},
		"tools":       []any{map[string]any{"name": toolName, "description": toolAbout, "input_schema": toolSchema()}},
		"tool_choice": map[string]any{"type": "any"},
	}
}

func (messages) read(data []byte) (reply, error) {
	var in struct {
		Content []struct {
			Type  string          `json:"type"`
			Name  string          `json:"name"`
			Input json.RawMessage `json:"input"`
		} `json:"content"`
		Usage struct {
			Input  int64 `json:"input_tokens"`
			Output int64 `json:"output_tokens"`
			Read   int64 `json:"cache_read_input_tokens"`
			Write  int64 `json:"cache_creation_input_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return reply{}, err
	}
	out := reply{input: in.Usage.Input + in.Usage.Read + in.Usage.Write, output: in.Usage.Output}
	for _, block := range in.Content {
		if block.Type == "tool_use" {
			out.call(block.Name, block.Input)
		}
	}
	return out, nil
}
