package mcpserver

import (
	"context"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of what is told of prompts.
const (
	maxPrompts         = 128
	maxPromptArguments = 32
	maxCompletions     = 100 // as the protocol has it
	maxCompletion      = 1 << 10
)

// smallPrompt is a prompt in bounded, visible text, nil when its name, or one of an argument, is none that anybody could use.
func smallPrompt(p *sdk.Prompt) *sdk.Prompt {
	if !properName(p.Name) || len(p.Arguments) > maxPromptArguments {
		return nil
	}
	out := &sdk.Prompt{Name: p.Name, Title: visible(p.Title, maxTitle), Description: visible(p.Description, maxDescription)}
	for _, a := range p.Arguments {
		if a == nil || !properName(a.Name) {
			return nil
		}
		out.Arguments = append(out.Arguments, &sdk.PromptArgument{Name: a.Name, Title: visible(a.Title, maxTitle), Description: visible(a.Description, maxDescription), Required: a.Required})
	}
	return out
}

// Prompt gets a prompt by the name under which it is offered. tell may be nil.
func (s *Service) Prompt(ctx context.Context, by identity.Principal, name string, arguments map[string]string, tell Progress) (*sdk.GetPromptResult, error) {
	return use(ctx, s, by, question[*sdk.GetPromptResult]{
		server: serverOf(name), action: "mcp_server.prompt", name: name, own: func(c *catalog) string { return c.prompts[name] }, none: noPrompt(), tell: tell,
		target: func(own string) string { return named(serverOf(name), own) },
		ask: func(ctx context.Context, r *run, own, token string) (*sdk.GetPromptResult, error) {
			params := &sdk.GetPromptParams{Name: own, Arguments: arguments}
			params.SetProgressToken(token)
			return r.session.GetPrompt(ctx, params)
		},
		pass: (*catalog).prompt,
	})
}

// prompt is the answer to one as it is passed on. A model reads it as what its user says, so that it has nothing that the user does
// not see.
func (c *catalog) prompt(r *sdk.GetPromptResult) *sdk.GetPromptResult {
	out := &sdk.GetPromptResult{Description: visible(r.Description, maxDescription), Messages: []*sdk.PromptMessage{}}
	for _, m := range r.Messages[:min(len(r.Messages), maxParted)] {
		if m == nil {
			continue
		}
		part := c.part(m.Content)
		switch p := part.(type) {
		case nil:
			continue
		case *sdk.TextContent:
			p.Text = visible(p.Text, len(p.Text))
		case *sdk.EmbeddedResource:
			p.Resource.Text = visible(p.Resource.Text, len(p.Resource.Text))
		}
		role := sdk.Role("user")
		if m.Role == "assistant" {
			role = m.Role
		}
		out.Messages = append(out.Messages, &sdk.PromptMessage{Role: role, Content: part})
	}
	return out
}

// Complete says what an argument of a prompt, or a variable of a template of resources, may be. A server that does not say such
// things has nothing to say.
func (s *Service) Complete(ctx context.Context, by identity.Principal, asked *sdk.CompleteParams) (*sdk.CompleteResult, error) {
	if asked.Ref == nil || asked.Argument.Name == "" {
		return nil, problem.New(problem.BadRequest, "", "ref or argument.name is missing")
	}
	q := question[*sdk.CompleteResult]{action: "mcp_server.complete", pass: func(_ *catalog, r *sdk.CompleteResult) *sdk.CompleteResult { return completion(r) }}
	send := func(ctx context.Context, r *run, ref *sdk.CompleteReference) (*sdk.CompleteResult, error) {
		if r.can().Completions == nil {
			return &sdk.CompleteResult{}, nil
		}
		return r.session.Complete(ctx, &sdk.CompleteParams{Ref: ref, Argument: asked.Argument, Context: asked.Context})
	}
	if asked.Ref.Type == "ref/prompt" {
		q.server, q.name, q.own, q.none = serverOf(asked.Ref.Name), asked.Ref.Name, func(c *catalog) string { return c.prompts[asked.Ref.Name] }, noPrompt()
		q.target = func(own string) string { return named(q.server, own) }
		q.ask = func(ctx context.Context, r *run, own, _ string) (*sdk.CompleteResult, error) {
			return send(ctx, r, &sdk.CompleteReference{Type: asked.Ref.Type, Name: own})
		}
		return use(ctx, s, by, q)
	}
	server, own := ownURI(asked.Ref.URI)
	q.server, q.name, q.own, q.none = server, asked.Ref.URI, ofResources(own), noResource()
	q.target = func(string) string { return recordedURI(asked.Ref.URI) }
	q.ask = func(ctx context.Context, r *run, own, _ string) (*sdk.CompleteResult, error) {
		return send(ctx, r, &sdk.CompleteReference{Type: asked.Ref.Type, URI: own})
	}
	return use(ctx, s, by, q)
}

// completion is an answer as it is passed on. A value that is not all visible, or too long, is left out: cleaned, it would be another one.
func completion(r *sdk.CompleteResult) *sdk.CompleteResult {
	values := slices.DeleteFunc(slices.Clone(r.Completion.Values), func(v string) bool { return visible(v, maxCompletion) != v })
	more := len(values) > maxCompletions
	out := &sdk.CompleteResult{}
	out.Completion = sdk.CompletionResultDetails{Values: append([]string{}, values[:min(len(values), maxCompletions)]...),
		HasMore: r.Completion.HasMore || more, Total: max(r.Completion.Total, 0)}
	return out
}

// named is how the record names a tool or a prompt of a server.
func named(server, own string) string { return server + "/" + cut(own, maxToolName, "…") }

func noPrompt() error {
	return problem.New(problem.NotFound, "list them with prompts/list", "there is no such prompt, or you may not use it")
}
