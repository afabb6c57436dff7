package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// declaration is what was declared last of one agent. It is written before anything is done for the agent, and again when
// everything is done, so that whatever was begun is found. It is removed when nothing of the agent is left.
//
// It is an entry of the tenant's with the agent's name, and not one of the agent's: it is there before the agent is, and
// after.
type declaration struct {
	Agent clawbots.Agent `json:"agent"`
	// ID is the agent's, also before it is made.
	ID string `json:"id,omitempty"`
	// Node is the control plane whose machine has the agent.
	Node string `json:"node,omitempty"`
	// To is where the agent goes: another control plane while it is to be handed over, and Node when it has been and was not started.
	To string `json:"to,omitempty"`
	// Maker is the node that makes the agent, until it has. An agent whose making was cut is taken back by that node.
	Maker string `json:"maker,omitempty"`
	// Done says that everything was done.
	Done bool `json:"done"`
	// Owns names the parts of the agent's settings that a declaration has set: what a later one does not say any more is
	// taken back, and what others have set is left alone.
	Owns []part `json:"owns,omitempty"`
	// Removing says that the agent is being removed, and what stays. A removal that was begun is finished, whatever is cut.
	Removing *RemoveOptions `json:"removing,omitempty"`

	entry   store.Entry
	damaged bool
}

// part is a part of an agent's settings.
type part string

// The parts.
const (
	partTools    part = "tools"
	partServices part = "services"
	partRates    part = "rates"
	partBudget   part = "budget"
	partBrowser  part = "browser"
)

// declaredServers are the MCP servers of one agent.
type declaredServers struct {
	tenant  string
	servers []string
}

// readDeclaration never fails: what cannot be read is written anew by the next sync.
func readDeclaration(e store.Entry) *declaration {
	d := &declaration{}
	if err := json.Unmarshal(e.Body, d); err != nil || d.Agent.Name != e.Name {
		d = &declaration{damaged: true, Owns: []part{partTools, partServices, partRates, partBudget, partBrowser}}
		d.Agent.Name = e.Name
	}
	d.entry = e
	return d
}

// answerTime is how long the database may take to list something. Those who watch over agents have no time of their own.
const answerTime = 5 * time.Second

// declared is what is declared of all tenants.
func (s *Service) declared(ctx context.Context) ([]store.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	entries, err := s.o.Store.ListEntries(ctx, egress.KindDeclaration)
	if err != nil {
		return nil, fmt.Errorf("read what is declared: %w", err)
	}
	return entries, nil
}

// declarations of a tenant, by name.
func (s *Service) declarations(ctx context.Context, tenant string) (map[string]*declaration, error) {
	entries, err := s.declared(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]*declaration{}
	for _, e := range entries {
		if e.Tenant == tenant && jailName(e.Name) {
			out[e.Name] = readDeclaration(e)
		}
	}
	return out, nil
}

// put writes a declaration of an agent of this machine down, and remembers its new version.
func (s *Service) put(ctx context.Context, tenant string, d *declaration) error {
	d.Node = s.o.Node
	return s.write(ctx, tenant, d)
}

// write is put for an agent of any machine.
func (s *Service) write(ctx context.Context, tenant string, d *declaration) error {
	body, err := d.body()
	if err != nil {
		return err
	}
	now := store.Microsecond(s.o.Now())
	e := d.entry
	e.Body, e.UpdatedAt = body, now
	if e.ID != "" {
		if err := s.o.Store.UpdateEntry(ctx, e); err != nil {
			return fmt.Errorf("write down what is declared of %s: %w", d.Agent.Name, changedMeanwhile(err))
		}
		e.Version++
		d.entry = e
		return nil
	}
	e.ID, e.Kind, e.Tenant, e.Name = "dec_"+strings.ToLower(rand.Text()[:20]), egress.KindDeclaration, tenant, d.Agent.Name
	e.Version, e.CreatedAt = 1, now
	if err := s.o.Store.CreateEntry(ctx, e); err != nil {
		return fmt.Errorf("write down what is declared of %s: %w", d.Agent.Name, changedMeanwhile(err))
	}
	d.entry = e
	return nil
}

func (d *declaration) body() ([]byte, error) {
	body, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("write down what is declared of %s: %w", d.Agent.Name, err)
	}
	if len(body) > store.LongestBody {
		return nil, problem.New(problem.BadLimit, "leave something out: rules for a host and all below it, *.example.com, are shorter",
			"what is declared of %s has %d bytes, more than %d", d.Agent.Name, len(body), store.LongestBody)
	}
	return body, nil
}

// changedMeanwhile is what is said when another control plane did the same at the same moment.
func changedMeanwhile(err error) error {
	if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrNotFound) {
		return problem.Wrap(err, problem.Conflict, "run the sync again", "somebody else changed it at the same moment")
	}
	return err
}

// forget removes a declaration. One that is gone already is removed.
func (s *Service) forget(ctx context.Context, d *declaration) error {
	if d == nil || d.entry.ID == "" {
		return nil
	}
	if err := s.o.Store.DeleteEntry(ctx, d.entry.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("forget what was declared of %s: %w", d.Agent.Name, err)
	}
	return nil
}

// ServersOf are the MCP servers whose tools an agent is offered. It is called with every request, and does no I/O.
func (s *Service) ServersOf(tenant, agentID string) []string {
	all := s.servers.Load()
	if all == nil || agentID == "" {
		return nil
	}
	if of := (*all)[agentID]; of.tenant == tenant {
		return slices.Clone(of.servers)
	}
	return nil
}

// readServers looks up what ServersOf answers.
func (s *Service) readServers(ctx context.Context) error {
	s.reading.Lock() // what is read last is known last
	defer s.reading.Unlock()
	entries, err := s.declared(ctx)
	if err != nil {
		return err
	}
	all := map[string]declaredServers{}
	for _, e := range entries {
		if d := readDeclaration(e); d.ID != "" && len(d.Agent.MCP) > 0 {
			all[d.ID] = declaredServers{e.Tenant, d.Agent.MCP}
		}
	}
	before := s.servers.Swap(&all)
	same := func(a, b declaredServers) bool { return a.tenant == b.tenant && slices.Equal(a.servers, b.servers) }
	if s.o.ServersChanged != nil && (before == nil || !maps.EqualFunc(*before, all, same)) {
		s.o.ServersChanged()
	}
	return nil
}
