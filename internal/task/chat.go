package task

import (
	"encoding/base64"
	"encoding/json"
)

// chat is OpenAI's Chat Completions, and that of the many servers which speak it too.
type chat struct{}

func (chat) path() string { return "/v1/chat/completions" }

func (chat) body(q question) any {
	var content any = q.user // some servers take nothing but a text
	if len(q.picture) > 0 {
		content = []any{
			map[string]any{"type": "text", "text": q.user},
			map[string]any{"type": "image_url", "image_url": map[string]any{"url": dataURL(q.picture)}},
		}
	}
	return map[string]any{
		"model": q.model, "max_completion_tokens": q.limit,
		"messages": []any{map[string]any{"role": "system", "content": q.system}, map[string]any{"role": "user", "content": content}},
		"tools": []any{map[string]any{"type": "function", "function": map[string]any{
			"name": toolName, "description": toolAbout, "parameters": toolSchema()}}},
		"tool_choice": "required",
	}
}

func (chat) read(data []byte) (reply, error) {
	var in struct {
		Choices []struct {
			Message struct {
				Calls []struct {
					Function struct {
						Name      string `json:"name"`
						Arguments string `json:"arguments"`
					} `json:"function"`
				} `json:"tool_calls"`
			} `json:"message"`
		} `json:"choices"`
		Usage struct {
			Input  int64 `json:"prompt_tokens"`
			Output int64 `json:"completion_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return reply{}, err
	}
	out := reply{input: in.Usage.Input, output: in.Usage.Output}
	for _, choice := range in.Choices {
		for _, call := range choice.Message.Calls {
			out.call(call.Function.Name, json.RawMessage(call.Function.Arguments))
		}
	}
	return out, nil
}

// dataURL is a picture as a data: URL, which the provider need not fetch.
func dataURL(picture []byte) string {
	return "data:" + pictureType + ";base64," + base64.StdEncoding.EncodeToString(picture)
}
