package mcpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
)

// kindServer is the kind of entries that are servers, added at run time.
const kindServer = "mcpserver"

// Source says where a server was declared.
type Source string

// The sources. A server of the file is changed there.
const (
	SourceFile  Source = "file"
	SourceAdded Source = "added"
)

// State is what a server is doing for a tenant.
type State string

// The states.
const (
	StateStopped  State = "stopped" // until somebody calls it
	StateStarting State = "starting"
	StateRunning  State = "running"
	StatePaused   State = "paused" // it went wrong too often
)

// rank says which state of several is told.
func (s State) rank() int {
	return slices.Index([]State{StateStopped, StatePaused, StateStarting, StateRunning}, s)
}

// Status is a server as it is for one tenant, or for all.
type Status struct {
	config.MCPServer
	Source Source
	State  State     // of the instance that has come furthest
	Since  time.Time // of the one that runs the longest
	// Instances are those that run, are being started, or are left alone.
	Instances []Instance
	// Tools, Resources (with templates of them) and Prompts are how many are offered, -1 when it is not known yet.
	Tools, Resources, Prompts int
	Calls                     int // under way
	// Problem is the last thing that went wrong, unless something went well after it; or what keeps it from being started.
	Problem string
	// Replaced says, of what was just added, that it replaced one.
	Replaced bool
}

// Instance is a server as it runs for one caller.
type Instance struct {
	Tenant string
	// Owner is the caller, as records name it (agent:ID, operator:ID, admin), and Name its name. Both are empty where the server is
	// shared.
	Owner, Name string
	State       State
	Since       time.Time
	Calls       int // under way
}

// Report is what a test of a server found.
type Report struct {
	Name           string
	Title, Version string // what it says of itself
	Protocol       string
	Timing         Timing
	Offers                // what is offered of it
	Left           int    // tools that are not offered
	Stderr         string // what it printed
	Problem        string
	Hint           string
	Code           string
	Instructions   string
}

// storedServers are the entries of the database, as they were read last.
type storedServers struct {
	revision int64
	read     bool
	all      []config.MCPServer
	ids      map[string]string // of entries, by name
}

// servers are those that there are, of the file first. The caller may change the slice.
func (s *Service) servers(ctx context.Context) ([]config.MCPServer, error) {
	stored, err := s.load(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]config.MCPServer, 0, len(s.o.Servers)+len(stored.all))
	for _, server := range s.o.Servers {
		out = append(out, server.WithDefaults(s.o.Limits))
	}
	for _, server := range stored.all {
		if !s.ofFile(server.Name) { // what the file says by now goes before
			out = append(out, server.WithDefaults(s.o.Limits))
		}
	}
	return out, nil
}

func (s *Service) ofFile(name string) bool {
	return slices.ContainsFunc(s.o.Servers, func(server config.MCPServer) bool { return server.Name == name })
}

// load reads the entries if any has changed.
func (s *Service) load(ctx context.Context) (storedServers, error) {
	revision, err := s.o.Store.EntriesRevision(ctx)
	if err != nil {
		return storedServers{}, fmt.Errorf("read the MCP servers: %w", err)
	}
	s.mu.Lock()
	known := s.stored
	s.mu.Unlock()
	if known.read && known.revision == revision {
		return known, nil
	}
	rows, err := s.o.Store.ListEntries(ctx, kindServer)
	if err != nil {
		return storedServers{}, fmt.Errorf("read the MCP servers: %w", err)
	}
	next := storedServers{revision: revision, read: true, ids: map[string]string{}}
	for _, row := range rows {
		server, err := decodeStored(row)
		if err != nil {
			s.o.Log.Error("an MCP server in the database cannot be read, and is left out", "entry", row.ID, "error", err)
			continue
		}
		if len(next.all) < config.MaxMCPServers {
			next.all, next.ids[server.Name] = append(next.all, server), row.ID
		}
	}
	s.mu.Lock()
	s.stored = next
	s.mu.Unlock()
	return next, nil
}

// decodeStored reads an entry. It is checked like one that a caller sends.
func decodeStored(row store.Entry) (config.MCPServer, error) {
	var server config.MCPServer
	if err := json.Unmarshal(row.Body, &server); err != nil {
		return config.MCPServer{}, err
	}
	if server.Name != row.Name {
		return config.MCPServer{}, errors.New("its name is another one than that of the entry")
	}
	return server, server.Validate()
}

// Takes says whether a server that a tenant may use is declared with a secret of it.
func (s *Service) Takes(ctx context.Context, tenant, secret string) (bool, error) {
	servers, err := s.servers(ctx)
	for _, server := range servers {
		if slices.ContainsFunc(server.Secrets, func(one config.ServerSecret) bool { return one.Secret == secret }) &&
			server.Serves(tenant) {
			return true, nil
		}
	}
	return false, err
}

// Names are the names of the servers of a tenant, for those who declare agents.
func (s *Service) Names(ctx context.Context, tenant string) (out []string, err error) {
	all, err := s.servers(ctx)
	for _, server := range all {
		if server.Serves(tenant) {
			out = append(out, server.Name)
		}
	}
	return out, err
}

// List describes the servers that a tenant may use; an admin of the installation sees all, and what runs of them for all tenants
// where none is named.
func (s *Service) List(ctx context.Context, by identity.Principal, named string) ([]Status, error) {
	tenant := by.TenantOr(named)
	if err := s.o.Identity.AuthorizeWith(ctx, by, identity.ServerList, identity.Object{Tenant: tenant}); err != nil {
		return nil, err
	}
	all, err := s.servers(ctx)
	if err != nil {
		return nil, err
	}
	var out []Status
	for _, server := range all {
		if by.Tenant == "" || server.Serves(tenant) {
			out = append(out, s.status(server, by.Among(named)))
		}
	}
	slices.SortFunc(out, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	s.explainStopped(ctx, out, tenant)
	return out, nil
}

func (s *Service) status(server config.MCPServer, tenant string) Status {
	out := Status{MCPServer: server, Source: SourceAdded, State: StateStopped, Tools: -1, Resources: -1, Prompts: -1}
	if s.ofFile(server.Name) {
		out.Source = SourceFile
	}
	now := s.o.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, o := range s.offers {
		if key.name != server.Name || tenant != "" && key.tenant != tenant || o.mark != fingerprint(server) {
			continue
		}
		if o.known != nil {
			out.Tools, out.Resources, out.Prompts = max(out.Tools, o.known.Count(Tools)), max(out.Resources, o.known.Count(Resources)), max(out.Prompts, o.known.Count(Prompts))
		}
		if o.isPaused(now) {
			out.State = StatePaused
		}
		if o.last != nil {
			out.Problem = bare(o.last)
		}
	}
	for _, i := range s.instances {
		if i.key.name != server.Name || tenant != "" && i.key.tenant != tenant || i.offer.mark != fingerprint(server) {
			continue
		}
		one := Instance{Tenant: i.key.tenant, Owner: i.key.owner, Name: i.owner.Name, Calls: i.calls}
		switch {
		case i.run != nil && i.run.alive():
			one.State, one.Since = StateRunning, i.since
		case i.attempt != nil:
			one.State = StateStarting
		case i.own.isPaused(now):
			one.State = StatePaused
		default:
			continue
		}
		out.Instances = append(out.Instances, one)
	}
	slices.SortFunc(out.Instances, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Owner, b.Owner))
	})
	for _, one := range out.Instances {
		out.Calls += one.Calls
		if one.State.rank() > out.State.rank() {
			out.State = one.State
		}
		if one.State == StateRunning && (out.Since.IsZero() || one.Since.Before(out.Since)) {
			out.Since = one.Since
		}
	}
	return out
}

// isPaused says whether it is left alone for a while.
func (t *trouble) isPaused(now time.Time) bool {
	_, paused := t.starts.next(now)
	return now.Before(paused)
}

// Add makes a server, or replaces the one of the same name that was added before.
func (s *Service) Add(ctx context.Context, by identity.Principal, server config.MCPServer) (Status, error) {
	replaced, full := false, server.WithDefaults(s.o.Limits)
	err := s.change(ctx, by, server.Name, func(stored storedServers) error {
		if err := Check(server); err != nil {
			return err
		}
		for _, tenant := range full.Tenants {
			if err := s.o.Identity.AuthorizeWith(ctx, by, identity.ServerChange, identity.Object{Tenant: strings.TrimPrefix(tenant, "*")}); err != nil {
				return err
			}
		}
		if s.ofFile(server.Name) {
			return ofFileProblem(server.Name)
		}
		body, err := json.Marshal(server)
		if err != nil {
			return err
		}
		now := s.o.Now()
		id, exists := stored.ids[server.Name]
		if !exists {
			if len(stored.all) >= config.MaxMCPServers {
				return problem.New(problem.Conflict, "remove some: clawjail mcp-server rm NAME", "there are %d MCP servers already", len(stored.all))
			}
			err := s.o.Store.CreateEntry(ctx, store.Entry{ID: newID(), Kind: kindServer, Name: server.Name, Body: body, CreatedAt: now, UpdatedAt: now})
			return changed(err, server.Name)
		}
		replaced = true
		row, err := s.o.Store.Entry(ctx, id)
		if err != nil {
			return changed(err, server.Name)
		}
		row.Body, row.UpdatedAt = body, now
		return changed(s.o.Store.UpdateEntry(ctx, row), server.Name)
	})
	if err != nil {
		return Status{}, err
	}
	s.retireAll(server.Name)
	made := []Status{s.status(full, by.Among(""))}
	for _, tenant := range full.Tenants {
		s.explainStopped(ctx, made, cmp.Or(strings.TrimPrefix(tenant, "*"), by.TenantOr("")))
	}
	made[0].Replaced = replaced
	return made[0], nil
}

// Remove removes a server that was added, and ends it.
func (s *Service) Remove(ctx context.Context, by identity.Principal, name string) error {
	err := s.change(ctx, by, name, func(stored storedServers) error {
		if s.ofFile(name) {
			return ofFileProblem(name)
		}
		id, exists := stored.ids[name]
		if !exists {
			return noServer(name)
		}
		return changed(s.o.Store.DeleteEntry(ctx, id), name)
	})
	if err != nil {
		return err
	}
	s.retireAll(name)
	return nil
}

// change does something to what is declared, on the record.
func (s *Service) change(ctx context.Context, by identity.Principal, name string, do func(storedServers) error) error {
	if err := s.o.Identity.AuthorizeWith(ctx, by, identity.ServerChange, identity.Object{}); err != nil {
		return err
	}
	stored, err := s.load(ctx)
	if err != nil {
		return err
	}
	return audit.Do(ctx, s.o.Audit, audit.Intent{Action: string(identity.ServerChange), Actor: by.Actor(), Target: visible(name, 64)}, func() error { return do(stored) })
}

// Check is what is wrong with a declaration, as the mistake of a request and not of the configuration.
func Check(server config.MCPServer) error {
	err := server.Validate()
	var many *problem.ValidationError
	if !errors.As(err, &many) {
		return err
	}
	return &problem.ValidationError{Code: problem.BadRequest, Flaws: many.Flaws}
}

func changed(err error, name string) error {
	switch {
	case errors.Is(err, store.ErrExists):
		return problem.New(problem.Conflict, "try again", "the MCP server %s was changed by somebody else meanwhile", name)
	case errors.Is(err, store.ErrNotFound):
		return noServer(name)
	case err != nil:
		return fmt.Errorf("change the MCP server %s: %w", name, err)
	}
	return nil
}

func ofFileProblem(name string) error {
	return problem.New(problem.Conflict, "change mcp_servers in the configuration, and restart clawjail", "the MCP server %s is declared in the configuration file", name)
}

func noServer(name string) error {
	return problem.New(problem.NotFound, "list them: clawjail mcp-server ls", "there is no MCP server %q", visible(name, 60))
}

// Test starts a server for a tenant, beside those that run, asks for what it offers, and ends it. A failure is in the
// report.
func (s *Service) Test(ctx context.Context, by identity.Principal, tenant, name string) (Report, error) {
	tenant = by.TenantOr(tenant)
	if err := s.o.Identity.AuthorizeWith(ctx, by, identity.ServerChange, identity.Object{Tenant: tenant}); err != nil {
		return Report{}, err
	}
	all, err := s.servers(ctx)
	if err != nil {
		return Report{}, err
	}
	at := slices.IndexFunc(all, func(server config.MCPServer) bool { return server.Name == name })
	if at < 0 {
		return Report{}, noServer(name)
	}
	if !all[at].Serves(tenant) {
		return Report{}, problem.New(problem.Conflict, "name one of its tenants with --tenant", "the MCP server %s is not for the tenant %s", name, visible(tenant, 60))
	}
	if !s.begin() {
		return Report{}, errClosing()
	}
	defer s.tasks.Done()
	leave, err := s.running.Enter(quota.Holder{Tenant: tenant})
	if err != nil {
		return Report{}, err
	}
	defer leave()
	pending, err := s.o.Audit.Begin(ctx, audit.Intent{Action: "mcp_server.start", Tenant: tenant, Actor: by.Actor(), Target: name})
	if err != nil {
		return Report{}, err
	}
	defer pending.End(audit.Outcome{Result: audit.Failed}) // of what panics
	report, jailed, err := s.try(ctx, all[at], tenant)
	outcome := audit.OutcomeOf(err, nil)
	outcome.Jail = jailed
	if err != nil {
		report.Code, report.Problem = problem.CodeOf(err), err.Error()
		if p, ok := problem.As(err); ok {
			report.Problem, report.Hint = p.Message, p.Hint
			if text, ok := p.Details[detailStderr].(string); ok && report.Stderr == "" {
				report.Stderr = text
			}
		}
	}
	pending.End(outcome)
	s.noteTest(all[at], tenant, report)
	return report, nil
}

func (s *Service) try(ctx context.Context, server config.MCPServer, tenant string) (report Report, jailed string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })()
	report.Name = server.Name
	r, err := s.start(ctx, server, tenant)
	if err != nil {
		return report, "", err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.pace.destroy)
		defer cancel()
		err = errors.Join(err, r.end(ending))
		report.Stderr = r.printed(texts.TailBytes)
	}()
	report.Timing = r.took
	if hello := r.session.InitializeResult(); hello != nil {
		report.Protocol, report.Instructions = visible(hello.ProtocolVersion, 40), visible(hello.Instructions, maxDescription)
		if hello.ServerInfo != nil {
			report.Title, report.Version = visible(cmp.Or(hello.ServerInfo.Title, hello.ServerInfo.Name), maxTitle), visible(hello.ServerInfo.Version, maxTitle)
		}
	}
	began := s.o.Now()
	list, missing, err := r.list(ctx, nil, s.pace.list)
	if err != nil {
		return report, string(r.process.name), r.explain(ctx, err)
	}
	report.Timing.List = s.o.Now().Sub(began)
	report.Offers, report.Left = list.Offers, list.left
	if missing != nil {
		return report, string(r.process.name), problem.Wrap(missing, problem.JailFailed, "what it lists is offered all the same",
			"the MCP server %s does not list what it offers: %s", server.Name, visible(missing.Error(), maxRefusal))
	}
	return report, string(r.process.name), nil
}
