package cli

import (
	"context"
	"net"
	"os"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/gateway/relay"
	"github.com/clawjail/clawjail/internal/problem"
)

// newRelayCommand is what the container hermit_shell runs. People have no use for it.
func newRelayCommand(p *program) *cobra.Command {
	var listen, to, key string
	cmd := &cobra.Command{
		Use:    "relay",
		Short:  "Relay connections of containers to the gateway, from a container between their network and this host",
		Args:   arguments(0, 0),
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, _, err := net.SplitHostPort(to); err != nil {
				return problem.New(problem.BadUsage, "give --to HOST:PORT", "--to does not say where the gateway is")
			}
			secret, err := relay.ReadKey(key)
			if err != nil {
				return err
			}
			log, err := logger(config.Log{Level: "info", Format: "json"}, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			listener, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", listen)
			if err != nil {
				return problem.Wrap(err, problem.Conflict, "stop what uses it", "the relay cannot listen on %s", listen)
			}
			log.Info("relay is ready", "listen", listener.Addr(), "pid", os.Getpid())
			return relay.Run(cmd.Context(), relay.Options{Listener: listener, Key: secret, Log: log,
				Dial: func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", to) }})
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "0.0.0.0:3000", "`address` to listen on")
	cmd.Flags().StringVar(&to, "to", "", "`address` of the gateway's end")
	cmd.Flags().StringVar(&key, "key", "/run/clawjail/relay.key", "`file` of the key")
	return cmd
}
