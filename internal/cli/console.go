package cli

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// linkLimit bounds making a link for who starts clawjail: they are told where it is in any case.
const linkLimit = 5 * time.Second

func newConsoleCommand(p *program) *cobra.Command {
	var asJSON, open bool
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Print a link to the console, which signs you in once",
		Long: "Prints a link to the web console. The person who opens it is signed in as the owner of your key, which is the admin key unless $" + keyVariable + " says otherwise. " +
			"It works once, within ten minutes.\n\nWith --open your browser is started with it. Other users of this machine can then read the link in the list of processes.",
		Example: "  sudo clawjail console\n  " + keyVariable + "=cjop_… clawjail console --open",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if open && p.getenv("SUDO_UID") != "" {
				return problem.New(problem.BadUsage, "leave --open out, and open the link yourself; or run it without sudo, with your key in $"+keyVariable,
					"--open would start the browser of root, not yours")
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			defer c.CloseIdle()
			link, err := c.ConsoleLink(cmd.Context())
			if problem.CodeOf(err) == problem.NotFound {
				return problem.Wrap(err, problem.NotFound, "set console.enabled to true in the configuration, and start clawjail again", "the console is switched off")
			}
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), link)
			} else {
				err = p.printLink(cmd, link.URL)
			}
			if err != nil || !open {
				return err
			}
			return openBrowser(cmd.Context(), link.URL)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&open, "open", false, "start the browser of your desktop with it")
	return cmd
}

// openBrowser starts what the desktop opens links with, which hands it to the browser and ends.
func openBrowser(ctx context.Context, url string) error {
	opener := "xdg-open"
	if runtime.GOOS == "darwin" {
		opener = "open"
	}
	if err := exec.CommandContext(ctx, opener, url).Run(); err != nil {
		return problem.Wrap(err, problem.BrowserMissing, "open the link yourself: it is printed above", "your browser could not be started with %s", opener)
	}
	return nil
}

// printLink prints a link alone, and beside it how to open it from another machine.
func (p *program) printLink(cmd *cobra.Command, link string) error {
	_, err := fmt.Fprintln(cmd.OutOrStdout(), link)
	if tunnel := p.tunnel(link); err == nil && tunnel != "" {
		_, err = fmt.Fprintln(cmd.ErrOrStderr(), tunnel)
	}
	return err
}

// tunnel is how a link that is good on this machine alone is opened elsewhere, where the caller seems to have no desktop here.
// sudo takes SSH_CONNECTION away, and leaves DISPLAY. A caller that names a control plane has found a way already.
func (p *program) tunnel(link string) string {
	here := p.getenv("DISPLAY") + p.getenv("WAYLAND_DISPLAY")
	if runtime.GOOS == "darwin" {
		here = "its desktop"
	}
	at, err := url.Parse(link)
	if err != nil || at.Port() == "" || !hostport.IsLoopback(at.Hostname()) || p.getenv(urlVariable) != "" || here != "" && p.getenv("SSH_CONNECTION") == "" {
		return ""
	}
	return fmt.Sprintf("from your own machine: ssh -L %s:localhost:%[1]s HOST, then open it there", at.Port())
}

// consoleLink makes a link for who has just started clawjail as root.
func consoleLink(c config.Config) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, linkLimit)
		defer cancel()
		// The folder is the control plane's: root reads nothing there but an admin key.
		key, err := identity.ReadAdminKey(hostd.AdminKeyPath(c))
		if err != nil {
			return "", err
		}
		control := client.NewOwn(listening(c), key.Reveal(), c.TLS.Cert)
		defer control.CloseIdle()
		link, err := control.ConsoleLink(ctx)
		return link.URL, err
	}
}
