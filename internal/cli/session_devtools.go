package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/identity"
)

func newSessionCDP(p *program) *cobra.Command {
	r := api.TokenRequest{Scope: identity.ScopeCDP}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "cdp ID",
		Short: "Print the address for Playwright and Puppeteer, with a new token",
		Long: "Print the address at which DevTools clients connect to a session, with a new token in it. Whoever has the address can drive the browser until " +
			"the token ends. With accounts, scripts read what pages show and store, and cookies without HttpOnly; the jar and the headers are closed. " +
			"With another scope the token alone is printed: it is sent as Authorization: Bearer TOKEN, and does what the scope says with this session and nothing else.",
		Example: "  node -e 'chromium.connectOverCDP(process.argv[1])' \"$(clawjail session cdp $id)\"\n" +
			"  clawjail session cdp $id --scope view --ttl 10m",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			token, err := c.SessionToken(cmd.Context(), args[0], r)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), token)
			}
			text := token.CDPURL
			if text == "" {
				text = token.Token
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().StringVar((*string)(&r.Scope), "scope", string(r.Scope), "what its holder may: view, control or cdp")
	cmd.Flags().StringVar(&r.TTL, "ttl", "", "how long it is good, such as 10m; an hour when it is left out")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, with the address of the WebSocket")
	complete(cmd, "scope", string(identity.ScopeView), string(identity.ScopeControl), string(identity.ScopeCDP))
	p.keyFile(cmd)
	return cmd
}

func newSessionRecording(p *program) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:               "recording ID -o FILE",
		Short:             "Save what was recorded of a session, as a web page",
		Long:              "Save what was recorded of a session, as one page of HTML that needs nothing else. Without -o it goes to standard output.",
		Example:           "  clawjail session recording $id -o session.html",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				file = standardInput
			}
			if _, tty := terminal(cmd.OutOrStdout()); tty && file == standardInput {
				return usage(cmd, "a recording is not written to a terminal: give -o FILE")
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			_, err = output(cmd, file, 0o644, func(w io.Writer) error { return c.Recording(cmd.Context(), w, args[0]) })
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`file` to write, - for standard output")
	return cmd
}
