package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
)

func newAgentRemove(p *program) *cobra.Command {
	var o op.AgentRemoved
	var yes bool
	cmd := &cobra.Command{
		Use:     "remove NAME…",
		Aliases: []string{"rm"},
		Short:   "Remove agents, with their jails, tokens and secrets",
		Long: "Ends the jails of agents, revokes their tokens, removes their own secrets, what is in /state, and the folder that clawjail made " +
			"for an agent as its workspace, or in a shared one. Their names are free again. A folder stays that was there before, or that " +
			"another agent has had: it is the operator's. It asks before it removes what cannot be made again.",
		Example:           "  clawjail agent remove dev-bot --yes\n  clawjail agent remove dev-bot --keep-state --keep-workspace",
		Args:              arguments(1, -1),
		ValidArgsFunction: p.completeAll(agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			if !yes && (!o.KeepState || !o.KeepWorkspace) {
				if err := askToRemove(cmd, c, args, o); err != nil {
					return err
				}
			}
			return each(cmd, args, func(name string) error {
				o.Name = name
				return client.Do(cmd.Context(), c, op.RemoveAgent(), o)
			})
		},
	}
	p.tenantFlag(cmd, &o.Tenant)
	f := cmd.Flags()
	f.BoolVar(&o.KeepState, "keep-state", false, "keep what is in /state, for an agent of the same name")
	f.BoolVar(&o.KeepWorkspace, "keep-workspace", false, "keep the folder that clawjail made for it as its workspace, or in a shared one")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask before what cannot be undone")
	return cmd
}

// askToRemove asks when something goes that cannot be made again: what a jail has kept. Of an agent that is an identity alone
// there is nothing of the kind.
func askToRemove(cmd *cobra.Command, c *client.Client, names []string, o op.AgentRemoved) error {
	all, err := client.Call(cmd.Context(), c, op.ListAgents(), op.OfTenant{Tenant: o.Tenant})
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, a := range all.Agents {
		kept[a.Name] = kept[a.Name] || a.Declares || a.Jail != nil || all.JailsUnknown != nil
	}
	var asked []string
	for _, name := range names {
		if kept[name] {
			asked = append(asked, name)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	var with []string
	if !o.KeepState {
		with = append(with, "everything in /state")
	}
	if !o.KeepWorkspace {
		with = append(with, "the workspace folders that clawjail made for them")
	}
	return confirm(cmd, "this removes "+strings.Join(asked, ", ")+", with "+strings.Join(with, " and ")+"; it cannot be undone")
}
