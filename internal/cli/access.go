package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
)

func newAccessCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "access",
		Short: "Answer what agents ask for",
		Long: "An agent that was refused can ask for a host, a tool or a service. An approval becomes a rule, a tool or a service of that agent, " +
			"for one use, for a time or without an end.",
	})
	cmd.AddCommand(described(p, op.ListAccess()), described(p, op.ShowAccess()), newAccessAnswer(p, true), newAccessAnswer(p, false), newAccessWatch(p))
	return cmd
}

func newAccessAnswer(p *program, approve bool) *cobra.Command {
	o := op.AnswerAccess()
	if !approve {
		o.Command = op.Command{Use: "refuse ID", Short: "Refuse what an agent asks for", Without: []string{"once", "for"}}
	}
	return described(p, o, func(_ *cobra.Command, _ *client.Client, in *op.AccessAnswered) error {
		in.Of.Approve = &approve
		return nil
	})
}

func accessIDs(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListAccess(), op.AccessListed{OfTenant: op.OfTenant{Tenant: tenant}})
	return namesOf(all.Requests, err, func(r egress.AccessRequest) (string, string) {
		return r.ID, cmp.Or(r.AgentName, r.Agent) + ": " + r.Target
	})
}

// watchEvery is how often access watch looks.
const watchEvery = 2 * time.Second

func newAccessWatch(p *program) *cobra.Command {
	var tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Follow what agents ask for",
		Long:  "Shows the requests that wait for an answer, then each new one as it comes, one a line, until it is interrupted.",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			list := func(ctx context.Context) ([]egress.AccessRequest, error) {
				all, err := client.Call(ctx, c, op.ListAccess(), op.AccessListed{OfTenant: op.OfTenant{Tenant: tenant}})
				return all.Requests, err
			}
			return watchAccess(cmd.Context(), list, watchEvery, func(r egress.AccessRequest) error {
				return watchedLine(cmd.OutOrStdout(), r, p.now(), asJSON)
			})
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one request a line")
	return cmd
}

// watchAccess shows each request once, until ctx ends.
func watchAccess(ctx context.Context, list func(context.Context) ([]egress.AccessRequest, error), every time.Duration, show func(egress.AccessRequest) error) error {
	seen := map[string]bool{}
	again := time.NewTicker(every)
	defer again.Stop()
	for {
		all, err := list(ctx)
		if ctx.Err() != nil {
			return nil // how watching ends
		}
		if err != nil {
			return err
		}
		now := map[string]bool{} // what is answered is forgotten
		for _, r := range all {
			now[r.ID] = true
			if seen[r.ID] {
				continue
			}
			if err := show(r); err != nil {
				return err
			}
		}
		seen = now
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func watchedLine(w io.Writer, r egress.AccessRequest, now time.Time, asJSON bool) error {
	if asJSON {
		e := encoder(w)
		return e.Encode(r)
	}
	_, err := fmt.Fprintf(w, "%s  %s  %s asks for the %s %s: %s\n", when(r.CreatedAt, now), r.ID, printable(cmp.Or(r.AgentName, r.Agent)),
		printable(string(r.Kind)), printable(r.Target), printable(r.Reason))
	return err
}
