package toolserver

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	maxAnswerText = 1 << 20 // bytes of text in an answer
	maxParted     = 1000    // parts of an answer
	maxRefusal    = 1000    // bytes of what a server says when it refuses
)

// bounded is an answer as it is passed on: of the server's own, but not more of it than a caller can take.
func bounded(r *sdk.CallToolResult) *sdk.CallToolResult {
	out := &sdk.CallToolResult{Content: []sdk.Content{}, IsError: r.IsError}
	left, lost := maxAnswerText, 0
	take := func(text string) string {
		kept := cut(text, left, "")
		left -= len(kept)
		lost += len(text) - len(kept)
		return kept
	}
	for n, content := range r.Content {
		if n == maxParted {
			out.Content = append(out.Content, &sdk.TextContent{Text: fmt.Sprintf("[%d more parts were left out]", len(r.Content)-n)})
			break
		}
		switch c := content.(type) {
		case *sdk.TextContent:
			out.Content = append(out.Content, &sdk.TextContent{Text: take(c.Text), Annotations: c.Annotations})
		case *sdk.ImageContent:
			out.Content = append(out.Content, &sdk.ImageContent{Data: c.Data, MIMEType: visible(c.MIMEType, maxTitle), Annotations: c.Annotations})
		case *sdk.AudioContent:
			out.Content = append(out.Content, &sdk.AudioContent{Data: c.Data, MIMEType: visible(c.MIMEType, maxTitle), Annotations: c.Annotations})
		case *sdk.ResourceLink:
			out.Content = append(out.Content, &sdk.ResourceLink{URI: visible(c.URI, maxDescription), Name: visible(c.Name, maxTitle), Title: visible(c.Title, maxTitle),
				Description: visible(c.Description, maxDescription), MIMEType: visible(c.MIMEType, maxTitle), Size: c.Size, Annotations: c.Annotations})
		case *sdk.EmbeddedResource:
			if c.Resource != nil {
				out.Content = append(out.Content, &sdk.EmbeddedResource{Annotations: c.Annotations, Resource: &sdk.ResourceContents{
					URI: visible(c.Resource.URI, maxDescription), MIMEType: visible(c.Resource.MIMEType, maxTitle), Text: take(c.Resource.Text), Blob: c.Resource.Blob}})
			}
		}
	}
	if lost > 0 {
		out.Content = append(out.Content, &sdk.TextContent{Text: fmt.Sprintf("[truncated: %d bytes of text were left out]", lost)})
	}
	if r.StructuredContent != nil {
		text, err := json.Marshal(r.StructuredContent)
		if err == nil && len(text) <= maxAnswerText {
			out.StructuredContent = json.RawMessage(text)
		} else {
			out.Content = append(out.Content, &sdk.TextContent{Text: "[the structured part of the answer was left out: it is too large]"})
		}
	}
	return out
}

// refusal is what a server answers when it does not do a call, as a result that a model can read.
func refusal(err error) (*sdk.CallToolResult, bool) {
	var said *jsonrpc.Error
	if !errors.As(err, &said) {
		return nil, false
	}
	text := fmt.Sprintf("the MCP server refused (%d): %s", said.Code, visible(said.Message, maxRefusal))
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: text}}}, true
}
