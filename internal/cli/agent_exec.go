package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/op"
)

func newAgentExec(p *program) *cobra.Command {
	var request op.ProcessRequest
	var env []string
	cmd := &cobra.Command{
		Use:   "exec NAME [flags] -- PROGRAM [ARGUMENT…]",
		Short: "Run a program in the jail of an agent, beside what runs there",
		Long: "Runs a program in the jail of an agent that runs, confined like it, with stdin, stdout and stderr here. Bytes pass through " +
			"untouched; there is no terminal. The command's status is the program's, or 128 and the number of the signal that ended it. Ctrl-C " +
			"ends the program, with everything that it started.",
		Example: "  clawjail agent exec dev-bot -- /bin/ls -l /state\n  clawjail agent exec dev-bot -- /bin/tar c /state > state.tar",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 || len(args) == 2 && args[1] == "--" {
				return usage(cmd, "%s needs the name of an agent and a program", cmd.CommandPath())
			}
			return notEmpty(cmd, args[:1])
		},
		ValidArgsFunction: p.completeFirst(agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if request.Env, err = environmentOf(cmd, env); err != nil {
				return err
			}
			if args[1] == "--" { // it is not in the way of who writes none
				args = slices.Delete(args, 1, 2)
			}
			request.Argv = args[1:]
			c, err := p.client()
			if err != nil {
				return err
			}
			return attach(cmd, c, args[0], true, request)
		},
	}
	cmd.Flags().SetInterspersed(false) // what comes behind the name is the program's
	cmd.Flags().StringArrayVar(&env, "env", nil, "variable for it, as `NAME=VALUE`")
	cmd.Flags().StringVar(&request.Dir, "dir", "", "the working `directory`, inside the jail")
	p.tenantFlag(cmd, &request.Tenant)
	return cmd
}
