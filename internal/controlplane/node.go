package controlplane

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	// nodeSeen is about how often a control plane says that it is there, to others that use its database, and nodeKept how long one
	// is listed that is gone.
	nodeSeen = store.NodeAlive / 4
	nodeKept = 30 * 24 * time.Hour
	// runFile has the run of this control plane, which one that starts here later follows: the host daemon serves one at a time.
	runFile = "node.run"
)

// startNode takes the node's name: what is a node's alone, such as its part of the audit log, is one process's.
func (p *plane) startNode(ctx context.Context) error {
	if p.node = p.Config.Node; p.node == "" {
		p.node = string(p.info.Installation)
	}
	former, err := os.ReadFile(p.own(runFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the run before this one: %w", err)
	}
	p.nodeRun = strings.ToLower(rand.Text())
	alive := store.NodeAlive
	if p.Config.Database == "" { // no other control plane has it open
		alive = 0
	}
	n := store.Node{Name: p.node, Run: p.nodeRun, Version: p.Version, Address: p.Config.Listen.String()}
	if p.Config.NodeListen.IsValid() {
		n.PeerAddress = p.Config.NodeListen.String()
	}
	others, err := p.store.ListNodes(ctx)
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	for _, other := range others {
		if other.Name != p.node && store.NodeTag(other.Name) == store.NodeTag(p.node) {
			return problem.New(problem.Conflict, "set node in clawjail.yml to another name", "the ids of sessions of the node %s would look like those of %s", p.node, other.Name)
		}
	}
	if err := p.store.StartNode(ctx, n, string(former), alive); errors.Is(err, store.ErrExists) {
		return problem.New(problem.Conflict, fmt.Sprintf("set node in clawjail.yml to a name of its own; the name of one that has gone without a word is free %s later", store.NodeAlive),
			"another control plane is the node %s of this database", p.node)
	} else if err != nil {
		return fmt.Errorf("take the name of the node: %w", err)
	}
	// Without it, as on a full disk, the next one here waits until this one is lost.
	if err := os.WriteFile(p.own(runFile), []byte(p.nodeRun), 0o600); err != nil {
		p.Log.Warn("keep the run of the node", "error", err)
	}
	return nil
}

// otherNodes lists the control planes of the database; nil where there can be no others.
func (p *plane) otherNodes() func(ctx context.Context) ([]store.Node, error) {
	if p.Config.Database == "" {
		return nil
	}
	return p.store.ListNodes
}

// takers are the control planes that take over the agents of this one while it drains; nil where the state of agents is on the machine.
func (p *plane) takers() func(ctx context.Context) ([]string, error) {
	if p.Config.Database == "" || !p.Config.Kubernetes.On() {
		return nil
	}
	return func(ctx context.Context) (out []string, err error) {
		ctx, cancel := context.WithTimeout(ctx, nodeSeen)
		defer cancel()
		all, err := p.store.ListNodes(ctx)
		if err != nil || !slices.ContainsFunc(all, func(n store.Node) bool { return n.Name == p.node && !n.DrainingAt.IsZero() }) {
			return nil, err
		}
		host, err := p.host.Info(ctx)
		for _, n := range all {
			// Another version may not know of this.
			if n.Name != p.node && n.Version == p.Version && n.StoppedAt.IsZero() && n.DrainingAt.IsZero() && !n.Lost() && slices.Contains(host.Beside, n.Name) {
				out = append(out, n.Name)
			}
		}
		return out, err
	}
}

// keepNode says again and again that this control plane is there, and gives up others of which nothing is heard. It fails when this one
// was given up, or another one has taken its name meanwhile.
func (p *plane) keepNode(ctx context.Context) error {
	pause := nodeSeen
	if p.Config.Database == "" {
		pause = tidyEvery // a database file has one control plane: no other one looks
	}
	var heard, steady time.Time // when the database last answered, and since when it has answered each time
	beat := time.NewTimer(pause)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.nodeLook:
			p.heedNode(ctx)
			continue
		case <-beat.C:
			beat.Reset(pause + mathrand.N(pause/5))
		}
		limited, cancel := context.WithTimeout(ctx, store.NodeAlive)
		err := p.store.SeeNode(limited, p.node, p.nodeRun)
		cancel()
		switch {
		case errors.Is(err, store.ErrNotFound):
			return problem.New(problem.Conflict, "when two have the same name: set node in clawjail.yml to one of its own",
				"nothing was heard of this control plane for %s, so the others have given it up, or another one has become the node %s", store.NodeAlive, p.node)
		case err != nil && ctx.Err() == nil:
			p.Log.Warn("say that this control plane is there", "error", err)
		case err == nil && p.Config.Database != "":
			// After the database was away, everybody has been silent for as long.
			now := time.Now()
			if now.Sub(heard) > store.NodeAlive/2 {
				steady = now
			}
			if heard = now; now.Sub(steady) >= store.NodeAlive {
				p.loseNodes(ctx)
			}
			p.heedNode(ctx)
		}
	}
}

// heedNode has this control plane drain, or not, as the database says.
func (p *plane) heedNode(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, nodeSeen)
	defer cancel()
	all, err := p.store.ListNodes(ctx)
	if err != nil {
		p.Log.Warn("ask whether this control plane drains", "error", err)
		return
	}
	for _, n := range all {
		if n.Name == p.node {
			p.sessions.Drain(!n.DrainingAt.IsZero())
			if !n.DrainingAt.IsZero() {
				p.agents.Look() // those that go are counted soon
			}
		}
	}
}

// loseNodes gives up the nodes of which nothing is heard: their accounts are free for others, and they end when they are heard of
// again. A node that gave one up may have ended before it freed its accounts, so all nodes free them again for a minute.
func (p *plane) loseNodes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, store.NodeAlive)
	defer cancel()
	all, err := p.store.ListNodes(ctx)
	if err != nil {
		p.Log.Warn("look for nodes that are lost", "error", err)
		return
	}
	for _, n := range all {
		if n.Name == p.node || !n.Lost() || !n.LostAt.IsZero() && n.ReadAt.Sub(n.LostAt) > time.Minute {
			continue
		}
		switch err := p.store.LoseNode(ctx, n.Name, n.Run, store.NodeAlive); {
		case err == nil:
			p.Log.Warn("a node is lost", "node", n.Name, "last_heard_of", n.SeenAt)
			p.audit.Note(audit.Event{Action: "node.lost", Result: audit.OK, Actor: system, Target: n.Name, Detail: audit.NewDetail(audit.Fields{"seen_at": n.SeenAt.UTC().Format(time.RFC3339)})})
		case !errors.Is(err, store.ErrNotFound):
			p.Log.Warn("give up a node", "node", n.Name, "error", err)
			continue
		}
		if err := p.store.ReleaseLostLeases(ctx, n.Name, n.Run); err != nil {
			p.Log.Warn("release the accounts of a lost node", "node", n.Name, "error", err)
		}
	}
}

// endNode says that this control plane has ended. A database that is away hears nothing of it for as long.
func (p *plane) endNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	if err := p.store.StopNode(ctx, p.node, p.nodeRun); err != nil {
		p.Log.Warn("say that this control plane has ended", "error", err)
	}
	return nil
}
