package toolserver

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// ToolsFor lists the tools that a principal may call, by name. Servers whose tools are not known yet are started, and waited
// for a moment; one that takes longer, or cannot be started, has no tools in this listing. seen is the view of them: see [Service.View].
func (s *Service) ToolsFor(ctx context.Context, by identity.Principal) (_ []*sdk.Tool, seen string) {
	tenant := by.TenantOr("")
	servers, err := s.usable(ctx, by, tenant)
	if err != nil {
		s.o.Log.Error("list MCP servers", "error", err)
		return nil, ""
	}
	var starting []*attempt
	for _, server := range servers {
		a, err := s.ask(server, tenant, by)
		if err != nil {
			return nil, "" // clawjail is being stopped
		}
		if a != nil {
			starting = append(starting, a)
		}
	}
	patience := time.NewTimer(listPatience)
	defer patience.Stop()
wait:
	for _, a := range starting {
		select {
		case <-a.done:
		case <-patience.C:
			break wait
		case <-ctx.Done():
			break wait
		}
	}
	var out []*sdk.Tool
	known := make([]*catalog, len(servers))
	for n, server := range servers {
		if known[n] = s.catalogOf(server, tenant); known[n] != nil {
			out = append(out, known[n].tools...)
		}
	}
	slices.SortFunc(out, byName)
	return out, view(servers, known)
}

// usable are the servers whose tools a principal may call.
func (s *Service) usable(ctx context.Context, by identity.Principal, tenant string) ([]config.MCPServer, error) {
	// Not the asking kind: a listing is no attempt at anything.
	if identity.Can(by, identity.ServerCall, tenant) != nil {
		return nil, nil
	}
	all, err := s.servers(ctx)
	if err != nil {
		return nil, err
	}
	var given []string
	if by.Kind == identity.KindAgent {
		given = s.o.ServersOf(tenant, by.ID)
	}
	return slices.DeleteFunc(all, func(server config.MCPServer) bool {
		return !server.Serves(tenant) || by.Kind == identity.KindAgent && !slices.Contains(given, server.Name)
	}), nil
}

// Offered says whether a name is one that tools of servers are offered by. No other tool has such a name.
func Offered(name string) bool { return strings.Contains(name, separator) }

// Call calls a tool by the name under which it is offered. tell may be nil.
func (s *Service) Call(ctx context.Context, by identity.Principal, name string, arguments json.RawMessage, tell Progress) (*sdk.CallToolResult, error) {
	tenant := by.TenantOr("")
	object := identity.Object{Tenant: tenant}
	if by.Kind == identity.KindAgent {
		object.Agent = by.ID
	}
	if err := s.o.Identity.AuthorizeWith(ctx, by, identity.ServerCall, object); err != nil {
		return nil, err
	}
	servers, err := s.usable(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(servers, func(server config.MCPServer) bool { return server.Name == serverOf(name) })
	if at < 0 {
		return nil, noTool()
	}
	server := servers[at]
	given, err := readArguments(arguments)
	if err != nil {
		return nil, err
	}
	leave, err := s.enter(by.Actor())
	if err != nil {
		return nil, err
	}
	defer leave()
	i, release, err := s.take(server, tenant, by)
	if err != nil {
		return nil, err
	}
	defer release()
	// What was offered under the name, where it is known, so that the record has the server's own name of it.
	target := name
	if known := s.catalogOf(server, tenant); known != nil && known.original[name] != "" {
		target = known.original[name]
	}
	end, err := s.o.Audit(ctx, audit.Intent{Action: string(identity.ServerCall), Tenant: tenant, Actor: by.Actor(), Target: server.Name + "/" + cut(target, maxToolName, "…")})
	if err != nil {
		return nil, err
	}
	outcome := audit.Outcome{Result: audit.Failed}
	defer func() { end(outcome) }()
	r, err := i.acquire(ctx, by.Actor())
	if err != nil {
		return nil, forCaller(by, err)
	}
	outcome.Jail = string(r.place.name)
	tool := ""
	if known := s.catalogOf(server, tenant); known != nil {
		tool = known.original[name]
	}
	if tool == "" {
		return nil, noTool()
	}
	result, err := r.call(ctx, tool, given, tell)
	if err == nil {
		outcome.Result = audit.OK
		return bounded(result), nil
	}
	if p := leftOutOf(server.Name, err); p != nil {
		return nil, p
	}
	if said, ok := refusal(err); ok {
		return said, nil
	}
	return nil, forCaller(by, i.lost(ctx, r, err))
}

// lost is why a call has no answer. A server that does not answer questions about itself either is ended.
func (i *instance) lost(ctx context.Context, r *run, err error) error {
	if problem.CodeOf(err) == problem.Timeout {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.pace.pong)
		defer cancel()
		r.probe(asking)
		return err
	}
	if ctx.Err() != nil {
		return err
	}
	// The connection is about to go, or the answer was none.
	patience := time.NewTimer(2 * r.pace.exit)
	defer patience.Stop()
	select {
	case <-r.settled:
	case <-patience.C:
		return problem.Wrap(err, problem.JailFailed, r.hint(), "the MCP server %s answered something else than an answer", r.server.Name)
	}
	if r.why != nil {
		return r.why
	}
	return problem.Wrap(err, problem.JailFailed, "try again", "the MCP server %s was ended during the call", r.server.Name)
}

// readArguments are those of a call as an object.
func readArguments(raw json.RawMessage) (json.RawMessage, error) {
	text := strings.TrimSpace(string(raw))
	switch {
	case text == "" || text == "null":
		return json.RawMessage(`{}`), nil
	case text[0] != '{' || !json.Valid(raw):
		return nil, problem.New(problem.BadRequest, "", "the arguments are not an object")
	}
	return raw, nil
}

func noTool() error {
	return problem.New(problem.NotFound, "tools/list has those that there are", "there is no such tool, or it is not yours to use")
}

// forCaller leaves what a server printed out of an error for an agent: it may be about another agent's call.
func forCaller(by identity.Principal, err error) error {
	var p *problem.Error
	if by.Kind != identity.KindAgent || !errors.As(err, &p) {
		return err
	}
	return problem.New(p.Code, p.Hint, "%s", p.Message)
}
