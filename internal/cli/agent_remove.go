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
	var yes bool
	cmd := &cobra.Command{
		Use:     "remove NAME…",
		Aliases: []string{"rm"},
		Short:   "Remove agents, with their jails, tokens and secrets",
		Long: "Ends the jails of agents, removes what is in /state and in the folders that were made for them in shared workspaces, revokes " +
			"their tokens, and removes their own secrets. Their names are free again. Folders that the operator has made stay.",
		Example:           "  clawjail agent remove dev-bot --yes\n  clawjail agent remove dev-bot --keep-state",
		Args:              arguments(1, -1),
		ValidArgsFunction: p.completeAll(agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			if !yes && !o.KeepState {
				if err := askToRemove(cmd, c, tenant, args); err != nil {
					return err
				}
			}
			return each(cmd, args, func(name string) error { return c.RemoveAgent(cmd.Context(), tenant, name, o) })
		},
	}
	p.tenantFlag(cmd, &tenant)
	f := cmd.Flags()
	f.BoolVar(&o.KeepState, "keep-state", false, "keep what is in /state, for an agent of the same name")
	f.BoolVar(&o.KeepWorkspace, "keep-workspace", false, "keep the folder that was made for it in a shared workspace")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask before what cannot be undone")
	return cmd
}

// askToRemove asks when something goes that cannot be made again: what a jail has kept. Of an agent that is an identity alone
// there is nothing of the kind.
func askToRemove(cmd *cobra.Command, c *client.Client, tenant string, names []string) error {
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
	return confirm(cmd, "this removes "+strings.Join(asked, ", ")+", with everything in /state; it cannot be undone")
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
