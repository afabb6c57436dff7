package toolserver

import (
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/problem"
)

const (
	maxParted  = 1000 // parts of an answer
	maxRefusal = 1000 // bytes of what a server says when it refuses
)

// bounded is an answer as it is passed on: the server's own, whose size the wire has bounded.
func bounded(r *sdk.CallToolResult) *sdk.CallToolResult {
	out := &sdk.CallToolResult{Content: []sdk.Content{}, IsError: r.IsError}
	for n, content := range r.Content {
		if n == maxParted {
			out.Content = append(out.Content, &sdk.TextContent{Text: fmt.Sprintf("[%d more parts were left out]", len(r.Content)-n)})
			break
		}
		switch c := content.(type) {
		case *sdk.TextContent:
			out.Content = append(out.Content, &sdk.TextContent{Text: c.Text, Annotations: c.Annotations})
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
					URI: visible(c.Resource.URI, maxDescription), MIMEType: visible(c.Resource.MIMEType, maxTitle), Text: c.Resource.Text, Blob: c.Resource.Blob}})
			}
		}
	}
	out.StructuredContent = r.StructuredContent
	return out
}

// leftOutOf is the error of a call whose answer was left out; nil for any other.
func leftOutOf(server string, err error) *problem.Error {
	var said *jsonrpc.Error
	if !errors.As(err, &said) || said.Code != codeLeftOut {
		return nil
	}
	return problem.New(problem.TooLarge, "ask for less at once, or set `answer` of the server", "the answer of the MCP server %s %s", server, visible(said.Message, maxRefusal))
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
