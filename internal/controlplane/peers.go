package controlplane

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// openPeers connects this control plane with the others of its database, where there can be others.
func (p *plane) openPeers(ctx context.Context) (err error) {
	if p.Config.Database == "" {
		return nil
	}
	if p.peers, err = peer.New(peer.Options{Node: p.node, Secret: p.nodesSecret, Nodes: p.store.ListNodes, Log: p.Log, Now: p.Now}); err != nil {
		return err
	}
	if err := p.peers.ShareKeys(ctx, p.store, p.key.Keys()); err != nil {
		return fmt.Errorf("make the audit key known to other nodes: %w", err)
	}
	at := p.Config.NodeListen
	if !at.IsValid() {
		return nil
	}
	listener, err := (&net.ListenConfig{KeepAliveConfig: peer.KeepAlive}).Listen(ctx, "tcp", at.String())
	if err != nil {
		return problem.Wrap(err, problem.Conflict, "stop what uses it, or set node_listen in the configuration to an address of this machine", "other nodes cannot be answered on %s", at)
	}
	p.peerListener = p.peers.Listener(api.NewEntrance(listener, p.Config.Quotas, p.tenants))
	return nil
}

func (p *plane) closePeers(context.Context) error {
	if p.peers != nil {
		p.peers.Close()
	}
	if p.peerListener != nil {
		_ = p.peerListener.Close() // where it was served, it is closed already
	}
	return nil
}

// servePeers answers other control planes.
func (p *plane) servePeers(ctx context.Context) error {
	if p.peerListener == nil {
		return nil
	}
	return p.api.ServePeers(ctx, p.peerListener, p.peers.Handler(p.sessions, http.HandlerFunc(p.api.Forwarded)))
}

// nodeSessions are the sessions of this control plane, which lists those of the others, too.
type nodeSessions struct {
	*session.Service
	peers *peer.Peers // nil where there are no others
}

func (p *plane) allSessions() nodeSessions { return nodeSessions{p.sessions, p.peers} }

// List is [session.Service.List] of all control planes. With an error of the code node_unreachable some are missing.
func (s nodeSessions) List(ctx context.Context, by identity.Principal, tenant string, all bool) ([]session.Session, error) {
	if s.peers == nil {
		return s.Service.List(ctx, by, tenant, all)
	}
	return s.peers.List(ctx, s.Service, by, tenant, all)
}

// knownSessions are listed as far as they are known.
type knownSessions struct{ nodeSessions }

// List implements console.Sessions.
func (s knownSessions) List(ctx context.Context, by identity.Principal, tenant string, all bool) ([]session.Session, error) {
	out, err := s.nodeSessions.List(ctx, by, tenant, all)
	if code := problem.CodeOf(err); code == problem.NodeUnreachable || code == problem.NodeLost {
		err = nil
	}
	return out, err
}
