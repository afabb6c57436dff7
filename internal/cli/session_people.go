package cli

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/problem"
)

// consoleAt is a link that signs the caller in to the console, and leads to one of its pages.
func consoleAt(ctx context.Context, c *client.Client, page string) (api.ConsoleLink, error) {
	link, err := c.ConsoleLink(ctx)
	if problem.CodeOf(err) == problem.NotFound {
		return link, problem.Wrap(err, problem.NotFound, "set console.enabled to true in the configuration, and start clawjail again", "the console is switched off")
	}
	if err != nil {
		return link, err
	}
	at, err := url.Parse(link.URL)
	if err != nil {
		return link, fmt.Errorf("read the link of the control plane: %w", err)
	}
	query := at.Query()
	query.Set("next", page)
	at.RawQuery = query.Encode()
	link.URL = at.String()
	return link, nil
}

func newSessionWatch(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "watch ID",
		Short: "Print a link to the console's page of a session",
		Long: "Prints a link to the page of the console that shows a session live, and on which it can be taken over. The link signs you in, " +
			"as `clawjail console` does: it works once, within ten minutes.",
		Example:           "  sudo clawjail session watch s_abcdefgh23456789",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			s, err := c.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			link, err := consoleAt(cmd.Context(), c, "/console/sessions/"+url.PathEscape(s.ID))
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), link)
			}
			return p.printLink(cmd, link.URL)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
