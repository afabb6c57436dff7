package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/agentenv"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

func newAgentEnv(p *program) *cobra.Command {
	var tenant, dir, token string
	var asJSON bool
	options := agentenv.Options{Gateway: agentenv.GatewayURL, Dir: agentenv.Dir}
	cmd := &cobra.Command{
		Use:   "env NAME",
		Short: "Print what makes tools use the gateway",
		Long: "Prints what the tools of an agent need to work through the gateway unmodified: variables for proxies, git, Node " +
			"and the clients of models and of the services that the agent has. They hold no credentials: the gateway puts " +
			"those in.\n\n" +
			"The variables point to files. In an agent's jail these are there; elsewhere, --dir writes them.\n\n" +
			"With --token they are for an agent that runs in no jail. It shows its token, which is then among the variables, and " +
			"reaches services and models at the API; nothing keeps it from reaching the rest of the world without clawjail.",
		Example: "  clawjail agent env writer --json\n  eval \"$(clawjail agent env writer --token writer.token)\"",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			agent, err := findAgent(cmd.Context(), c, tenant, args[0])
			if err != nil {
				return err
			}
			services, err := client.Call(cmd.Context(), c, op.ListServices(), op.OfTenant{Tenant: agent.Tenant})
			if err != nil {
				return err
			}
			settings, err := client.Call(cmd.Context(), c, op.GetAgentSettings(), op.OneAgent{Name: agent.Name, InTenant: op.InTenant{Tenant: agent.Tenant}})
			if err != nil {
				return err
			}
			providers, err := client.Call(cmd.Context(), c, op.ListProviders(), op.OfTenant{Tenant: agent.Tenant})
			if err != nil {
				return err
			}
			options.AgentName = agent.Name
			if token != "" {
				text, err := os.ReadFile(token)
				if err != nil {
					return problem.Wrap(err, problem.BadRequest, "give the file that `clawjail agent create NAME` has written", "the token cannot be read")
				}
				options.Token = strings.TrimSpace(string(text))
				if !cmd.Flags().Changed("gateway") {
					settings, err := p.controlConfig()
					if err != nil {
						return err
					}
					at, err := p.controlURL(settings)
					if err != nil {
						return err
					}
					options.Gateway = at.String()
				}
			}
			own := make([]egress.Service, len(services.Services))
			for n, s := range services.Services {
				own[n] = s.Service
			}
			models := make([]egress.Provider, len(providers.Providers))
			for n, m := range providers.Providers {
				models[n] = m.Provider
			}
			options.Services, options.Providers = agentenv.Select(own, models, agent.Tenant, agent.ID)
			if list := settings.Effective.Services; list != nil {
				options.Services = slices.DeleteFunc(options.Services, func(s egress.Service) bool { return s.Agent == "" && !slices.Contains(list, s.Name) })
			}
			if dir != "" {
				if options.Dir, err = filepath.Abs(dir); err != nil {
					return fmt.Errorf("find the folder %s: %w", dir, err)
				}
			}
			payload, err := agentenv.For(options)
			if err != nil {
				return err
			}
			if dir != "" {
				if err := writeProvision(options.Dir, payload.Files); err != nil {
					return err
				}
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), payload)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), payload.Env.Shell())
			return err
		},
		ValidArgsFunction: p.completeFirst(agentNames),
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().StringVar(&dir, "dir", "", "write the files into this `folder`, and point the variables to them")
	cmd.Flags().StringVar(&options.Gateway, "gateway", options.Gateway, "`URL` of the gateway as the agent sees it")
	cmd.Flags().StringVar(&token, "token", "", "`file` with the agent's token, for an agent in no jail")
	cmd.Flags().StringVar(&options.Home, "home", "", "`folder` that is the agent's own, as it sees it")
	cmd.Flags().StringVar(&options.CABundle, "ca-bundle", "", "`file` with all certificates to trust, as the agent sees it; the public ones must be in it")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the variables and the files as JSON")
	return cmd
}

// writeProvision writes the files of a payload, each whole or not at all. All of them are in the folder itself.
func writeProvision(dir string, files []agentenv.File) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return problem.Wrap(err, problem.BadRequest, "choose a folder that you may write to", "the folder %s cannot be made", dir)
	}
	for _, f := range files {
		err := writeWhole(filepath.Join(dir, filepath.Base(f.Path)), f.Mode, func(w io.Writer) error {
			_, err := io.WriteString(w, f.Content)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
