package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/hostd/supervisor"
	"github.com/clawjail/clawjail/internal/session"
)

// newUpCommand is `clawjail up`.
func newUpCommand(p *program) *cobra.Command {
	var noBuild bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run clawjail on this machine: the host daemon and the control plane together",
		Long: `Makes the user of the control plane if there is none, builds the template that browsers run in if there is none, starts both
halves, starts again what dies, and ends everything, every jail included, at Ctrl-C or SIGTERM, or when a half
dies again and again. It must be run as root.

Building the template is done once, takes about two minutes, and fetches packages: Debian's on Linux, those of the system on
FreeBSD. When it fails or is interrupted nothing of it stays, and nothing is started.`,
		Example: "  sudo clawjail up\n  sudo clawjail up --no-build",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, path, err := p.onHost(cmd)
			if err != nil {
				return err
			}
			executable, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			o := supervisor.UpOptions{
				Config: host.Config, ConfigPath: path, Executable: executable,
				Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
				Log:         host.Log,
				ConsoleLink: p.linkForUp(cmd.OutOrStdout(), host.Config),
				Notify:      hostd.Notifier(os.Getenv("NOTIFY_SOCKET")),
				EndJails: func(ctx context.Context) error {
					return hostd.Withdraw(ctx, host, hostd.WithdrawOptions{})
				},
			}
			if !noBuild && !host.Config.Kubernetes.On() {
				o.Prepare = func(ctx context.Context) error {
					_, err := p.ensureTemplate(ctx, cmd, session.DefaultTemplate, cmd.OutOrStdout())
					return err
				}
			}
			return supervisor.Up(cmd.Context(), o)
		},
	}
	cmd.Flags().BoolVar(&noBuild, "no-build", false, "build no template: jails are made of those that are there")
	return cmd
}

// linkForUp makes the link that `up` prints, for a person at a terminal. Another reader, such as a service manager or
// the engine of a container, keeps what is printed for others to read.
func (p *program) linkForUp(out io.Writer, c config.Config) func(context.Context) (string, error) {
	if _, person := terminal(out); !person {
		return nil
	}
	ofAdmin := consoleLink(c)
	return func(ctx context.Context) (string, error) {
		link, err := ofAdmin(ctx)
		if tunnel := p.tunnel(link); err == nil && tunnel != "" {
			link += "\n             (" + tunnel + ")"
		}
		return link, err
	}
}
