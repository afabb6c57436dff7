package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
)

func newAgentRemove(p *program) *cobra.Command {
	var tenant string
	var o agent.RemoveOptions
	var yes, keepWorkspace bool
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
			o.RemoveWorkspace = !keepWorkspace
			if !yes && (!o.KeepState || o.RemoveWorkspace) {
				if err := askToRemove(cmd, c, tenant, args, o); err != nil {
					return err
				}
			}
			return each(cmd, args, func(name string) error { return c.RemoveAgent(cmd.Context(), tenant, name, o) })
		},
	}
	p.tenantFlag(cmd, &tenant)
	f := cmd.Flags()
	f.BoolVar(&o.KeepState, "keep-state", false, "keep what is in /state, for an agent of the same name")
	f.BoolVar(&keepWorkspace, "keep-workspace", false, "keep the folder that clawjail made for it as its workspace, or in a shared one")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask before what cannot be undone")
	return cmd
}

// askToRemove asks when something goes that cannot be made again: what a jail has kept. Of an agent that is an identity alone
// there is nothing of the kind.
func askToRemove(cmd *cobra.Command, c *client.Client, tenant string, names []string, o agent.RemoveOptions) error {
	all, err := c.AgentsAndJails(cmd.Context(), tenant)
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
	if o.RemoveWorkspace {
		with = append(with, "the workspace folders that clawjail made for them")
	}
	return confirm(cmd, "this removes "+strings.Join(asked, ", ")+", with "+strings.Join(with, " and ")+"; it cannot be undone")
}

func newAgentRestart(p *program) *cobra.Command {
	return newAgentChange(p, "restart NAME…", "End the jails of agents, and make new ones",
		"Ends the jails of agents and makes new ones at once. What is in /state and in workspaces stays, and so do the log and the token.",
		(*client.Client).RestartAgent)
}

// jailsUnknown says on standard error why a listing is without jails.
func jailsUnknown(cmd *cobra.Command, why *api.Problem) {
	if why != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "clawjail: warning: it is not known which jails there are: %s\n", printable(why.Detail)) // the listing is there
	}
}
