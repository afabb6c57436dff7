package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
)

func newSessionTokens(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "tokens ID",
		Short:             "List the tokens for a session that are good",
		Long:              "Lists the tokens for a session that are good. What they are is told when they are made, see `clawjail session cdp`, and never again.",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			tokens, err := c.SessionTokens(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), tokens)
			}
			return table(cmd.OutOrStdout(), sessionTokenRows(tokens, p.now()))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func sessionTokenRows(tokens []api.SessionTokenInfo, now time.Time) [][]string {
	rows := [][]string{{"ID", "SCOPE", "BY", "CREATED", "EXPIRES"}}
	for _, t := range tokens {
		rows = append(rows, []string{t.ID, string(t.Scope), printable(t.By), when(t.CreatedAt, now), when(t.ExpiresAt, now)})
	}
	return rows
}

func newSessionRevokeToken(p *program) *cobra.Command {
	return &cobra.Command{
		Use:               "revoke-token ID TOKEN…",
		Short:             "End tokens for a session, and what is open with them",
		Long:              "Ends tokens for a session, named as `clawjail session tokens` lists them. What is open with them is cut.",
		Example:           "  clawjail session revoke-token s_abcdefgh23456789 st_abcdefgh",
		Args:              arguments(2, -1),
		ValidArgsFunction: p.completeSessionTokens,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			return each(cmd, args[1:], func(token string) error { return c.RevokeSessionToken(cmd.Context(), args[0], token) })
		},
	}
}

// completeSessionTokens completes the session, and then its tokens.
func (p *program) completeSessionTokens(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return p.completeSessions(cmd, args, begun)
	}
	return p.completer(func(ctx context.Context, c *client.Client, _ string) ([]string, error) {
		tokens, err := c.SessionTokens(ctx, args[0])
		return namesOf(tokens, err, func(t api.SessionTokenInfo) (string, string) { return t.ID, string(t.Scope) })
	})(cmd, args, begun)
}
