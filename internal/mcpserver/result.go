package mcpserver

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

// bounded is the answer of a tool as it is passed on: the server's own, whose size the wire has bounded.
func bounded(c *catalog, r *sdk.CallToolResult) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: c.parts(r.Content), IsError: r.IsError, StructuredContent: r.StructuredContent}
}

// parts are those of an answer as they are passed on.
func (c *catalog) parts(all []sdk.Content) []sdk.Content {
	out := []sdk.Content{}
	for n, content := range all {
		if n == maxParted {
			out = append(out, &sdk.TextContent{Text: fmt.Sprintf("[%d more parts were left out]", len(all)-n)})
			break
		}
		if part := c.part(content); part != nil {
			out = append(out, part)
		}
	}
	return out
}

// part is one of an answer as it is passed on, nil when it is of no kind that an answer may have.
func (c *catalog) part(content sdk.Content) sdk.Content {
	switch p := content.(type) {
	case *sdk.TextContent:
		return &sdk.TextContent{Text: p.Text, Annotations: p.Annotations}
	case *sdk.ImageContent:
		return &sdk.ImageContent{Data: p.Data, MIMEType: visible(p.MIMEType, maxTitle), Annotations: p.Annotations}
	case *sdk.AudioContent:
		return &sdk.AudioContent{Data: p.Data, MIMEType: visible(p.MIMEType, maxTitle), Annotations: p.Annotations}
	case *sdk.ResourceLink:
		return &sdk.ResourceLink{URI: c.link(p.URI), Name: visible(p.Name, maxTitle), Title: visible(p.Title, maxTitle),
			Description: visible(p.Description, maxDescription), MIMEType: visible(p.MIMEType, maxTitle), Size: p.Size, Annotations: p.Annotations}
	case *sdk.EmbeddedResource:
		if p.Resource != nil {
			return &sdk.EmbeddedResource{Annotations: p.Annotations, Resource: c.contents(p.Resource)}
		}
	}
	return nil
}

// leftOutOf is the error of a call whose answer was left out; nil for any other.
func leftOutOf(server string, err error) *problem.Error {
	var said *jsonrpc.Error
	if !errors.As(err, &said) || said.Code != codeLeftOut {
		return nil
	}
	return problem.New(problem.TooLarge, "ask for less at once, or set `answer` of the server", "the answer of the MCP server %s %s", server, visible(said.Message, maxRefusal))
}

// refused is the error of a server that refuses a request; nil for any other error. Its code keeps "there is no such thing" apart from
// other refusals.
func refused(server string, err error) *jsonrpc.Error {
	var said *jsonrpc.Error
	if !errors.As(err, &said) {
		return nil
	}
	code := int64(jsonrpc.CodeInternalError)
	if said.Code == jsonrpc.CodeInvalidParams || said.Code == codeNoResource {
		code = said.Code
	}
	return &jsonrpc.Error{Code: code, Message: fmt.Sprintf("the MCP server %s refused (%d): %s", server, said.Code, visible(said.Message, maxRefusal))}
}

// codeNoResource is how versions of the protocol before 2026 say that there is no such resource.
const codeNoResource = -32002

// refusal is what a server refuses, as a result that a model can read.
func refusal(said *jsonrpc.Error) *sdk.CallToolResult {
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: said.Message}}}
}
