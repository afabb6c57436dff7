package controlplane

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	// nodeSeen is about how often a control plane says that it is there, to others that use its database, and nodeKept how long one
	// is listed that is gone.
	nodeSeen = store.NodeAlive / 3
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
	if p.Config.Database == "" { // which nobody else has open
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

// keepNode says again and again that this control plane is there. It fails when another one has taken its name meanwhile.
func (p *plane) keepNode(ctx context.Context) error {
	pause := nodeSeen
	if p.Config.Database == "" {
		pause = tidyEvery // nobody else is there to hear it
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause + mathrand.N(pause/5)):
		}
		limited, cancel := context.WithTimeout(ctx, store.NodeAlive)
		err := p.store.SeeNode(limited, p.node, p.nodeRun)
		cancel()
		switch {
		case errors.Is(err, store.ErrNotFound):
			return problem.New(problem.Conflict, "set node in clawjail.yml to a name of its own", "another control plane has become the node %s of this database", p.node)
		case err != nil && ctx.Err() == nil:
			p.Log.Warn("say that this control plane is there", "error", err)
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
