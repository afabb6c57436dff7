package peer

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// Lister lists the sessions of one control plane. *session.Service is one.
type Lister interface {
	List(ctx context.Context, by identity.Principal, tenant string, all bool) ([]session.Session, error)
}

const (
	listPath = "/node/sessions"
	// listLimit is how long a node has to list its sessions, in maxList bytes at most.
	listLimit = 5 * time.Second
	maxList   = 64 << 20
	// maxAsk bounds the question, in bytes.
	maxAsk = 64 << 10
)

// listing asks for the sessions that somebody may see, as [Lister] does. The node that asks knows who it is.
type listing struct {
	By     identity.Principal
	Tenant string
	All    bool
}

// List lists the sessions of this control plane and of the others. With an error of the code node_unreachable those are missing that
// a node has which does not answer.
func (p *Peers) List(ctx context.Context, here Lister, by identity.Principal, tenant string, all bool) ([]session.Session, error) {
	out, err := here.List(ctx, by, tenant, all)
	if err != nil {
		return nil, err
	}
	others, err := p.Others(ctx)
	if err != nil || len(others) == 0 {
		return out, err
	}
	body, err := json.Marshal(listing{by, tenant, all})
	if err != nil {
		return nil, fmt.Errorf("ask other control planes for their sessions: %w", err)
	}
	var asking sync.WaitGroup
	found, errs := make([][]session.Session, len(others)), make([]error, len(others))
	for i, name := range others {
		asking.Go(func() { found[i], errs[i] = p.ask(ctx, name, body) })
	}
	asking.Wait()
	out = append(out, slices.Concat(found...)...)
	slices.SortFunc(out, func(a, b session.Session) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return out, errors.Join(errs...)
}

func (p *Peers) ask(ctx context.Context, node string, body []byte) (out []session.Session, err error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+node+listPath, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := p.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		return nil, problem.New(problem.NodeUnreachable, "look at its log", "the control plane %s cannot list its sessions: %s", node, answer.Status)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxList)).Decode(&out); err != nil {
		return nil, problem.Wrap(err, problem.NodeUnreachable, "try again", "the control plane %s does not list its sessions", node)
	}
	return out, nil
}

// Handler answers other nodes: what they ask for themselves, and with forwarded what they hand on.
func (p *Peers) Handler(here Lister, forwarded http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != listPath {
			forwarded.ServeHTTP(w, r)
			return
		}
		var asked listing
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAsk)).Decode(&asked); err != nil {
			http.Error(w, "not a question", http.StatusBadRequest)
			return
		}
		all, err := here.List(r.Context(), asked.By, asked.Tenant, asked.All)
		if err != nil {
			p.o.Log.Warn("list sessions for another control plane", "error", err)
			http.Error(w, problem.CodeOf(err), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(all); err != nil {
			p.o.Log.Debug("list sessions for another control plane", "error", err)
		}
	})
}
