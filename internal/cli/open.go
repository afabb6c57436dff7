package cli

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

func newSessionOpen(p *program) *cobra.Command {
	var request session.OpenRequest
	var asJSON, noBuild bool
	var token string
	values := &given{p: p}
	cmd := &cobra.Command{
		Use:   "open [URL]",
		Short: "Open a session, and load a page in it",
		Long: "Open a session and print its id. With a URL that page is loaded too; when it cannot be, or the gateway refuses it, the session stays " +
			"open, its id is printed all the same, and the command ends with 3 and not with 1.\n\nA clean session has no accounts. With --mode operator it has those of " +
			"the named domains, for which it needs a grant, see " +
			"`clawjail grant issue`. Put the grant into the variable " + grantVariable + ", or give --grant - and the token on standard input. " +
			"--grant TOKEN works too, but every user of the machine can read the arguments of a program in its list of processes.",
		Example: "  id=$(sudo clawjail session open https://example.com/)\n  sudo clawjail session open --browser full --ttl " +
			"10m --json\n" +
			"  " + grantVariable + "=$(clawjail grant issue --domain example.com) clawjail session open --mode operator --domain " +
			"example.com",
		Args: arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				// Found out before a session is opened for it.
				if _, err := browser.CheckURL(args[0]); err != nil {
					return err
				}
			}
			if err := values.check(nil, ""); err != nil {
				return err
			}
			text, err := p.grantText(cmd, token, request.CredentialMode)
			if err != nil {
				return err
			}
			request.Grant = grant.ParseToken(text)
			return p.openSession(cmd, request, args, asJSON, noBuild)
		},
	}
	values.cmd = cmd
	values.add(reflect.ValueOf(&request).Elem())
	f := cmd.Flags()
	f.StringVar(&token, "grant", "", "`token` of the grant, - for standard input; better put it into $"+grantVariable)
	p.templateFlag(cmd)
	noBuildFlag(cmd, &noBuild)
	f.BoolVar(&asJSON, "json", false, "print everything that is known of it")
	return cmd
}

// grantText is the token of the grant to open a session with: as it was given, or that of the environment, which is for
// operator sessions only: a clean one with a grant is refused, and the variable may be there for the next.
func (p *program) grantText(cmd *cobra.Command, given, mode string) (string, error) {
	switch {
	case given == standardInput:
		data, err := readCredential(cmd, "grant")
		if err != nil {
			return "", err
		}
		defer clear(data)
		return strings.TrimSpace(string(data)), nil
	case given == "" && mode == session.ModeOperator:
		return strings.TrimSpace(p.getenv(grantVariable)), nil
	}
	return strings.TrimSpace(given), nil
}

// opened is what `session open --json` prints: the session, with the page that was loaded.
type opened struct {
	session.Session
	Page *browser.Result `json:"page,omitempty"`
}

func (p *program) openSession(cmd *cobra.Command, request session.OpenRequest, args []string, asJSON, noBuild bool) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	var out opened
	open := func() (err error) {
		out.Session, err = c.Open(ctx, request)
		return err
	}
	if err := p.withTemplate(cmd, request.Template, noBuild, open); err != nil {
		return err
	}
	var failed error
	if len(args) == 1 {
		page, err := c.Navigate(ctx, out.ID, browser.Navigate{URL: args[0]})
		if err == nil {
			out.Page = &page
		}
		failed = butNotThePage(page, err)
	}
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), out)
	} else {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), out.ID)
	}
	if failed != nil { // more telling than a full disk
		report(cmd.ErrOrStderr(), failed)
		return ExitStatus(exitPartly)
	}
	return err
}

// butNotThePage says what of an opened session did not work. Over HTTP what the gateway refuses has a page of the gateway's,
// over HTTPS none: both are no page of the host.
func butNotThePage(page browser.Result, err error) error {
	if p, ok := problem.As(err); ok {
		said := *p
		said.Message = "opened, but " + p.Message
		return &said
	}
	if err != nil {
		return fmt.Errorf("opened, but %w", err)
	}
	return refusedBy(page, "opened, but ")
}
