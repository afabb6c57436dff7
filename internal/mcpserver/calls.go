package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// OffersFor lists what a principal may use of a kind, by name. Servers of which nothing is known yet are started, and waited for
// a moment; one that takes longer, or cannot be started, has nothing in this listing. seen is the view of it: see [Service.View].
func (s *Service) OffersFor(ctx context.Context, by identity.Principal, kind Kind) (_ Offers, seen string) {
	tenant := by.TenantOr("")
	servers, changes, err := s.usable(ctx, by, tenant)
	if err != nil {
		s.o.Log.Error("list MCP servers", "error", err)
		return Offers{}, ""
	}
	var starting []*attempt
	for _, server := range servers {
		a, err := s.ask(server, changes, tenant, by)
		if errors.Is(err, errChanged) {
			return s.OffersFor(ctx, by, kind)
		}
		if err != nil {
			return Offers{}, "" // clawjail is being stopped
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
	var out Offers
	known := make([]*catalog, len(servers))
	for n, server := range servers {
		if known[n] = s.catalogFor(server, tenant, by); known[n] != nil {
			out.add(kind, known[n].Offers)
		}
	}
	return out.Sorted(), view(kind, servers, known)
}

// usable are the servers that a principal may use, and how many changes of servers there had been before they were read.
func (s *Service) usable(ctx context.Context, by identity.Principal, tenant string) (_ []config.MCPServer, changes int, err error) {
	// Not the asking kind: a listing is no attempt at anything.
	if identity.Can(by, identity.ServerCall, tenant) != nil {
		return nil, 0, nil
	}
	s.mu.Lock()
	changes = s.changes
	s.mu.Unlock()
	all, err := s.servers(ctx)
	if err != nil {
		return nil, 0, err
	}
	var given []string
	if by.Kind == identity.KindAgent {
		given = s.o.ServersOf(tenant, by.ID)
	}
	return slices.DeleteFunc(all, func(server config.MCPServer) bool {
		return !server.Serves(tenant) || by.Kind == identity.KindAgent && !slices.Contains(given, server.Name)
	}), changes, nil
}

// Offered says whether a name is one that tools of servers are offered by. No other tool has such a name.
func Offered(name string) bool { return strings.Contains(name, separator) }

// Call calls a tool by the name under which it is offered. tell may be nil.
func (s *Service) Call(ctx context.Context, by identity.Principal, name string, arguments json.RawMessage, tell Progress) (*sdk.CallToolResult, error) {
	given, err := readArguments(arguments)
	if err != nil {
		return nil, err
	}
	out, err := use(ctx, s, by, question[*sdk.CallToolResult]{
		server: serverOf(name), action: string(identity.ServerCall), name: name, own: func(c *catalog) string { return c.tools[name] }, none: noTool(), tell: tell,
		target: func(own string) string { return named(serverOf(name), own) },
		ask: func(ctx context.Context, r *run, tool, token string) (*sdk.CallToolResult, error) {
			params := &sdk.CallToolParams{Name: tool, Arguments: given}
			params.SetProgressToken(token)
			return r.session.CallTool(ctx, params)
		},
		pass: bounded,
	})
	if said := new(jsonrpc.Error); errors.As(err, &said) {
		return refusal(said), nil
	}
	return out, err
}

// question is what a caller asks of a server, of whatever kind it is, and R its answer.
type question[R any] struct {
	// server is the name of the server that is asked, and action what the record calls it.
	server, action string
	// name is what is asked for, as it is offered. own is what the server calls it, empty where it offers no such thing: that is the
	// error none then. target is how the record names it.
	name   string
	own    func(*catalog) string
	none   error
	target func(own string) string
	// ask sends it, with a token for its progress, of which tell is told. tell may be nil.
	ask  func(ctx context.Context, r *run, own, token string) (R, error)
	tell Progress
	// pass makes of an answer what the caller gets.
	pass func(c *catalog, answer R) R
}

// use asks a server something for a caller: in an instance that the caller may have, within bounds, and on the record before it
// is asked. A refusal of the server is a *jsonrpc.Error.
func use[R any](ctx context.Context, s *Service, by identity.Principal, q question[R]) (answer R, err error) {
	var nothing R
	tenant := by.TenantOr("")
	object := identity.Object{Tenant: tenant}
	if by.Kind == identity.KindAgent {
		object.Agent = by.ID
	}
	if err := s.o.Identity.AuthorizeWith(ctx, by, identity.ServerCall, object); err != nil {
		return nothing, err
	}
	servers, changes, err := s.usable(ctx, by, tenant)
	if err != nil {
		return nothing, err
	}
	at := slices.IndexFunc(servers, func(server config.MCPServer) bool { return server.Name == q.server })
	if at < 0 || !utf8.ValidString(q.name) || strings.ContainsFunc(q.name, invisible) {
		return nothing, q.none
	}
	server := servers[at]
	i, release, err := s.take(server, changes, tenant, by)
	if errors.Is(err, errChanged) {
		return use(ctx, s, by, q)
	}
	if err != nil {
		return nothing, err
	}
	defer release()
	leave, err := s.enter(by.Actor())
	if err != nil {
		return nothing, err
	}
	defer leave()
	// The offer of that name, where it is known, gives the record the server's own name of it.
	target := q.name
	if known := s.catalogFor(server, tenant, by); known != nil && q.own(known) != "" {
		target = q.own(known)
	}
	pending, err := s.o.Audit.Begin(ctx, audit.Intent{Action: q.action, Tenant: tenant, Actor: by.Actor(), Target: q.target(target)})
	if err != nil {
		return nothing, err
	}
	defer pending.End(audit.Outcome{Result: audit.Failed}) // of what panics
	var outcome audit.Outcome
	answer, outcome, err = asked(ctx, i, by, tenant, q)
	pending.End(outcome)
	return answer, err
}

// asked asks the server of an instance, and says what is recorded of it.
func asked[R any](ctx context.Context, i *instance, by identity.Principal, tenant string, q question[R]) (answer R, outcome audit.Outcome, err error) {
	var nothing R
	r, err := i.acquire(ctx, by.Actor())
	if err != nil {
		err = forCaller(by, err)
		return nothing, audit.OutcomeOf(err, nil), err
	}
	end := func(err error, fields audit.Fields) (R, audit.Outcome, error) {
		outcome := audit.OutcomeOf(err, fields)
		outcome.Jail = string(r.process.name)
		return answer, outcome, err
	}
	known := i.s.catalogFor(i.server, tenant, by)
	if known == nil || q.own(known) == "" {
		return end(q.none, nil)
	}
	said, err := ask(ctx, r, q.tell, func(ctx context.Context, token string) (R, error) { return q.ask(ctx, r, q.own(known), token) })
	if err == nil {
		answer = q.pass(known, said)
		return end(nil, nil)
	}
	if p := leftOutOf(i.server.Name, err); p != nil {
		return end(p, nil)
	}
	if refusal := refused(i.server.Name, err); refusal != nil {
		var own *jsonrpc.Error // whose code callers get only where it tells them something
		errors.As(err, &own)
		return end(refusal, audit.Fields{"code": "refused_by_server", "server_code": own.Code})
	}
	return end(forCaller(by, i.lost(ctx, r, err)), nil)
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
		return problem.Wrap(err, problem.JailFailed, r.hint(), "the MCP server %s sent an invalid answer", r.server.Name)
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
	return problem.New(problem.NotFound, "list them with tools/list", "there is no such tool, or you may not use it")
}

// forCaller leaves what a server printed out of an error for an agent: it may be about another agent's call.
func forCaller(by identity.Principal, err error) error {
	var p *problem.Error
	if by.Kind != identity.KindAgent || !errors.As(err, &p) {
		return err
	}
	return problem.New(p.Code, p.Hint, "%s", p.Message)
}
