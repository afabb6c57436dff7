package mcpserver

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"slices"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
)

// offer is what one declaration of a server offers to a tenant, and what went wrong with it, for all callers. It outlives what runs
// of the server. The service's lock guards it.
type offer struct {
	mark  string // of the declaration
	known *catalog
	trouble
}

// offerOf finds what a declaration offers, or begins it. The lock is held.
func (s *Service) offerOf(server config.MCPServer, tenant string) *offer {
	key, mark := offerKey{tenant, server.Name}, fingerprint(server)
	o := s.offers[key]
	if o == nil || o.mark != mark {
		o = &offer{mark: mark}
		s.offers[key] = o
	}
	return o
}

// offerKey is which server for which tenant.
type offerKey struct{ tenant, name string }

// catalogFor is what a server offers a caller, as it was when it was asked last; nil when it has not been.
func (s *Service) catalogFor(server config.MCPServer, tenant string, by identity.Principal) *catalog {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known(server, tenant, by)
}

// known is [Service.catalogFor] with the lock held. It changes nothing.
func (s *Service) known(server config.MCPServer, tenant string, by identity.Principal) *catalog {
	o := s.offers[offerKey{tenant, server.Name}]
	if o == nil || o.mark != fingerprint(server) {
		return nil // never asked, or it was declared anew since it was read
	}
	if i := s.instances[keyOf(server, tenant, by)]; i != nil && i.offer == o && i.run != nil && i.run.lists != nil {
		return i.run.lists
	}
	return o.known
}

// learn keeps what a server of a declaration offers. Listeners hear of it where it is something else than before.
func (s *Service) learn(key offerKey, o *offer, list *catalog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offers[key] != o {
		return // the declaration is another one by now
	}
	same := o.known != nil && maps.Equal(o.known.views, list.views)
	o.known = list
	if !same {
		s.announce(key.tenant)
	}
}

// learnMore keeps what a run offers now. Once its owner has called it, resources and prompts may tell what it has in mind for them, so
// that other callers are not offered those; its tools are of its declaration.
func (i *instance) learnMore(r *run, list *catalog) {
	i.s.mu.Lock()
	if known := i.offer.known; r.used && i.key.owner != "" && known != nil {
		if r.lists == nil || !maps.Equal(r.lists.views, list.views) {
			i.s.announce(i.key.tenant)
		}
		r.lists, list = list, known.withTools(list)
	}
	i.s.mu.Unlock()
	i.s.learn(i.key.offerKey, i.offer, list)
}

// View stands for what a principal is offered now, as far as it is known: while it is the same of a kind, so is that. It starts
// nothing. A server that the principal may not use is not in it.
func (s *Service) View(ctx context.Context, by identity.Principal) (Views, error) {
	tenant := by.TenantOr("")
	servers, _, err := s.usable(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := make([]*catalog, len(servers))
	for n, server := range servers {
		known[n] = s.known(server, tenant, by)
	}
	out := Views{}
	for _, kind := range Kinds() {
		out[kind] = view(kind, servers, known)
	}
	return out, nil
}

// view is a hash of the lists that servers are known to offer. A server whose lists are not known yet counts among the tools: a client that
// then lists the tools has the server asked.
func view(kind Kind, servers []config.MCPServer, known []*catalog) string {
	var lines []string
	for n, server := range servers {
		switch {
		case known[n] != nil && known[n].Count(kind) > 0:
			lines = append(lines, server.Name+" "+known[n].views[kind]+"\n")
		case known[n] == nil && kind == Tools:
			lines = append(lines, server.Name+" ?\n")
		}
	}
	slices.SortFunc(lines, cmp.Compare)
	h := sha256.New()
	for _, line := range lines {
		_, _ = io.WriteString(h, line) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Watch has something in changed whenever what a principal is offered may be something else, until stop: View says whether it
// is. changed is closed when the service ends.
func (s *Service) Watch(by identity.Principal) (changed <-chan struct{}, stop func()) {
	w := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		close(w)
		return w, func() {}
	}
	s.watchers[w] = by.TenantOr("")
	return w, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, w)
	}
}

// Changed says that agents may use other servers than before.
func (s *Service) Changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announce("")
}

// announce tells who listens for a tenant, which is all of them when it is empty. The lock is held.
func (s *Service) announce(tenant string) {
	for w, of := range s.watchers {
		if tenant != "" && of != tenant {
			continue
		}
		select {
		case w <- struct{}{}:
		default: // it is known already
		}
	}
}

// dismiss ends what listens. The lock is held.
func (s *Service) dismiss() {
	for w := range s.watchers {
		close(w)
		delete(s.watchers, w)
	}
}
