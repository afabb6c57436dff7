package cli

import (
	"context"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcp"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/task"
)

func newMCPCommand(p *program) *cobra.Command {
	var printed, agent, tenant string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve MCP on standard input and output, for an agent on this machine",
		Long: "Serve the Model Context Protocol on standard input and output until the input ends. The tools open sessions at the control plane, " +
			"with the key in $" + keyVariable + " as other commands have it, and drive the host browser. Either may be missing: its tools say so then. " +
			"Sessions that the agent did not close end when their time is up.\n\nThe control plane serves the same tools over HTTP, at /mcp. " +
			"With --agent, the printed configuration is for that: it has the address, and a key of the agent, which is made if there is none of that name. " +
			"An agent that is there keeps its keys: set $" + keyVariable + " to one of them, and the configuration has that.",
		Example: "  clawjail mcp --print-config claude --agent writer -o writer.json\n  clawjail mcp --print-config claude",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("print-config") {
				return p.printMCP(cmd, printed, tenant, agent)
			}
			if agent != "" || tenant != "" || cmd.Flags().Changed("output") {
				return usage(cmd, "--agent, --tenant and --output go with --print-config")
			}
			c, err := p.controlConfig()
			if err != nil {
				return err
			}
			log, err := logger(c.Log, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			p.warnOfRights(c, log)
			own := &mcpBackend{program: p}
			others := newMCPTools(p.version, own.sessions)
			o := mcp.Options{Backend: own, Access: own, Tasks: own, Foreign: others, Version: p.version, Log: log, Now: p.now}
			if p.getenv(urlVariable) == "" { // else the bounds are those of another configuration
				o.Sessions = mcp.Bounds{TTL: c.Sessions.TTL, MaxTTL: c.Sessions.MaxTTL, Idle: c.Sessions.Idle, Max: c.Sessions.Max}
			}
			server, err := mcp.New(o)
			if err != nil {
				return err
			}
			listening, cancel := context.WithCancel(cmd.Context())
			var listens sync.WaitGroup
			defer listens.Wait()
			defer cancel()
			listens.Go(func() { others.run(listening) })
			return server.Serve(cmd.Context(), io.NopCloser(cmd.InOrStdin()), unclosed{cmd.OutOrStdout()})
		},
	}
	cmd.Flags().StringVar(&printed, "print-config", "", "print what a `client` needs in its configuration: "+strings.Join(mcpClients, ", "))
	cmd.Flags().StringVar(&agent, "agent", "", "with --print-config: connect over HTTP as this `agent`, with a key in the configuration")
	p.tenantFlag(cmd, &tenant)
	complete(cmd, "print-config", mcpClients...)
	p.completeFlag(cmd, "agent", agentNames)
	p.keyFile(cmd)
	return cmd
}

// unclosed is a writer of the process's, which stays open.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// mcpBackend is the control plane and the host browser, as they can be reached from here. The principal is whoever has the
// key: the control plane finds that out.
type mcpBackend struct {
	program *program

	mu      sync.Mutex
	control *client.Client
}

// sessions is the client of the control plane. That there is none yet may change while the agent works.
func (b *mcpBackend) sessions() (*client.Client, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.control == nil {
		c, err := b.program.client()
		if err != nil {
			return nil, err
		}
		b.control = c
	}
	return b.control, nil
}

// Open implements mcp.Backend.
func (b *mcpBackend) Open(ctx context.Context, _ identity.Principal, r session.OpenRequest) (session.Session, error) {
	c, err := b.sessions()
	if err != nil {
		return session.Session{}, err
	}
	return c.Open(ctx, r)
}

// Run implements mcp.Tasks.
func (b *mcpBackend) Run(ctx context.Context, _ identity.Principal, r task.Request, tell func(task.Step)) (task.Result, error) {
	c, err := b.sessions()
	if err != nil {
		return task.Result{}, err
	}
	return c.RunTask(ctx, r, tell)
}

// Close implements mcp.Backend.
func (b *mcpBackend) Close(ctx context.Context, _ identity.Principal, id string) (session.Session, error) {
	c, err := b.sessions()
	if err != nil {
		return session.Session{}, err
	}
	return session.Session{ID: id}, c.Close(ctx, id, false)
}

// List implements mcp.Backend.
func (b *mcpBackend) List(ctx context.Context, _ identity.Principal) ([]session.Session, error) {
	c, err := b.sessions()
	if err != nil {
		return nil, err
	}
	return c.List(ctx, false)
}

// Ask implements mcp.Access.
func (b *mcpBackend) Ask(ctx context.Context, _ identity.Principal, kind egress.AccessKind, target, reason string, wait time.Duration) (egress.AccessRequest, error) {
	c, err := b.sessions()
	if err != nil {
		return egress.AccessRequest{}, err
	}
	return client.Call(ctx, c, op.AskForAccess(), op.NewAccess{Body: op.With(op.AccessQuestion{Kind: kind, Target: target, Reason: reason, Wait: wait.String()})})
}

// AccessRequest implements mcp.Access.
func (b *mcpBackend) AccessRequest(ctx context.Context, _ identity.Principal, id string, wait time.Duration) (egress.AccessRequest, error) {
	c, err := b.sessions()
	if err != nil {
		return egress.AccessRequest{}, err
	}
	return client.Call(ctx, c, op.ShowAccess(), op.AccessShown{AccessNamed: op.AccessNamed{ID: id}, Wait: wait.String()})
}

// Drive implements mcp.Backend.
func (b *mcpBackend) Drive(ctx context.Context, _ identity.Principal, t mcp.Target, op browser.Operation) (any, error) {
	if t.Host {
		there, err := b.program.hostBrowser()
		if err != nil {
			return nil, err
		}
		return there.drive(ctx, op)
	}
	c, err := b.sessions()
	if err != nil {
		return nil, err
	}
	return c.Drive(ctx, t.Session, op)
}

// Host implements mcp.Backend. Root has no desktop, and can reach the browser of another machine only.
func (b *mcpBackend) Host() bool {
	there, err := b.program.hostBrowser()
	return err == nil && there.settings.Enabled && (!there.local || !there.env.Root)
}
