package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/doctor"
	"github.com/clawjail/clawjail/internal/problem"
)

func newDoctorCommand(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what this machine can do for clawjail, by trying it",
		Long: "Tries what jails are made of (a clone, a cgroup, a firewall table, a network slot, a browser with its own sandbox) and says what " +
			"does not work and what to do about it. What it tries it undoes; jails that run are not touched. Without root it does what it can.",
		Example: "  sudo clawjail doctor\n  sudo clawjail doctor --json",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			o := doctor.Options{ConfigPath: p.configFile()}
			load := config.Load
			if os.Geteuid() == 0 {
				load = config.LoadTrusted // as the host daemon reads it
			}
			if o.Config, o.ConfigErr = load(o.ConfigPath); o.ConfigErr != nil {
				o.Config = config.Default() // the rest of the machine is worth looking at all the same
			}
			url, err := p.controlURL(o.Config)
			if err != nil {
				return err
			}
			o.ControlURL = url.String()
			report := doctor.Run(ctx, o, doctor.ThisHost(o))
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), report)
			} else {
				_, signs := terminal(cmd.OutOrStdout())
				err = report.Write(cmd.OutOrStdout(), signs)
			}
			if err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if failed := report.Count(doctor.Fail); failed > 0 {
				return problem.New(problem.Unsupported, "do what the hints say, then run it again",
					"%d of %d checks failed", failed, len(report.Checks))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
