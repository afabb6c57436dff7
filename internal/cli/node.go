package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// drainPoll is how often it is asked how many sessions a node has left, and drainHeard how long it takes at most until a node
	// knows that it opens no more.
	drainPoll  = time.Second
	drainHeard = 4 * time.Second
)

func newNodeCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "node",
		Short: "Control planes that share a database",
		Long:  "Each control plane that uses the database is a node, with the name in node of its configuration, or the installation's id.",
	})
	cmd.AddCommand(described(p, op.ListNodes()), newNodeDrain(p), described(p, op.ResumeNode()))
	return cmd
}

func newNodeDrain(p *program) *cobra.Command {
	var wait int // milliseconds
	cmd := described(p, op.DrainNode())
	drain := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := drain(cmd, args); err != nil || wait == 0 {
			return err
		}
		control, err := p.client()
		if err != nil {
			return err
		}
		limit := time.Duration(wait) * time.Millisecond
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), limit, problem.New(problem.Timeout, "wait longer, or close them: clawjail session ls",
			"%s has sessions, or agents that others take over, after %s", args[0], limit))
		defer cancel()
		return drained(ctx, control, args[0], newProgress(cmd.ErrOrStderr(), p.now))
	}
	timeoutFlag(cmd, "wait", &wait, "wait until it has no sessions, for so long at most, such as 1h", 1, int((24 * time.Hour).Milliseconds()))
	return cmd
}

// drained waits until a node that drains has no sessions left, and no agents that others take over.
func drained(ctx context.Context, c *client.Client, name string, shown *progress) error {
	defer shown.end()
	for began, maximum := time.Now(), 0; ; {
		left, known, err := sessionsLeft(ctx, c, name)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case known && left == 0 && time.Since(began) > drainHeard:
			return nil
		case known:
			maximum = max(maximum, left)
			shown.step(step{Stage: fmt.Sprintf("waiting until %s has no sessions, and no agents that others take over", name), Done: int64(maximum - left), Total: int64(maximum)})
		}
		select {
		case <-ctx.Done():
		case <-time.After(drainPoll):
		}
	}
}

// sessionsLeft is how many sessions a node has that drains, and agents that others take over. It fails when it does not drain any more, or is lost.
func sessionsLeft(ctx context.Context, c *client.Client, name string) (left int, known bool, err error) {
	all, err := client.Call(ctx, c, op.ListNodes(), op.None{})
	if err != nil {
		return 0, false, err
	}
	at := slices.IndexFunc(all.Nodes, func(n peer.Node) bool { return n.Name == name })
	switch {
	case at < 0 || all.Nodes[at].State == peer.NodeStopped:
		return 0, true, nil
	case all.Nodes[at].State == peer.NodeLost:
		return 0, false, problem.New(problem.NodeLost, "list them: clawjail node ls", "the control plane %s is lost, and its sessions with it", name)
	case all.Nodes[at].State != peer.NodeDraining:
		return 0, false, problem.New(problem.Conflict, "drain it again", "the control plane %s opens sessions again", name)
	case all.Nodes[at].Sessions == nil:
		return 0, false, nil
	}
	return *all.Nodes[at].Sessions + all.Nodes[at].Leaving, true, nil
}

func nodeNames(ctx context.Context, c *client.Client, _ string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListNodes(), op.None{})
	return namesOf(all.Nodes, err, func(n peer.Node) (string, string) { return n.Name, string(n.State) })
}
