package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

func newServiceCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "service",
		Short: "Let agents use services with credentials that they never see",
		Long: "A service is an HTTP server whose requests the gateway makes itself, at /svc/NAME/ in a jail: it puts the credential in on the way " +
			"out, and takes it out of the answer. The credential is a secret of the vault: clawjail secret set NAME.",
	})
	add := described(p, op.PutService(), func(_ *cobra.Command, _ *client.Client, in *op.NewService) error {
		in.Of.Secret = cmp.Or(in.Of.Secret, in.Of.Name) // so that it is shown
		return nil
	})
	addPresets(add, "service", servicePresets())
	remove := described(p, op.RemoveService(), func(cmd *cobra.Command, c *client.Client, in *op.ServiceNamed) (err error) {
		in.ID, err = theAdded(cmd.Context(), c, in.Owner, "service", in.ID, serviceEntries)
		return err
	})
	cmd.AddCommand(add, described(p, op.ListServices()), newServiceShow(p), remove)
	return cmd
}

// said prints a line about what was done.
func said(cmd *cobra.Command, format string, args ...any) error {
	for n, arg := range args {
		args[n] = printable(fmt.Sprint(arg))
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
	return err
}

// preset is what is known of a service or a provider: flags, as NAME=VALUE, and what else there is to know, which is a format for
// its name and that of its secret.
type preset struct {
	name  string
	flags []string
	note  string
}

// servicePresets begin with what holds for a service of which nothing is known.
func servicePresets() []preset {
	return []preset{{flags: []string{"inject=bearer"}},
		{"github", []string{"url=https://github.com", "git=https://github.com/", "inject=basic", "user=x-access-token",
			"allow=GET /*/*/info/refs", "allow=POST /*/*/git-upload-pack", "allow=POST /*/*/git-receive-pack"},
			"this is for git; the API of GitHub is a service of its own: " +
				"clawjail service add github-api --url https://api.github.com --secret %[2]s --allow 'GET /**'; its secret has to be stored " +
				"for both: clawjail secret set %[2]s --origin https://github.com --origin https://api.github.com"},
		{"telegram", []string{"url=https://api.telegram.org/bot" + egress.Placeholder, "inject=path", "allow=GET,POST /*"},
			"this is for the methods of a bot; files that it was sent are a service of their own: clawjail service add files-%[1]s --url '" +
				"https://api.telegram.org/file/bot" + egress.Placeholder + "' --inject path --secret %[2]s --allow 'GET /**'; it allows all methods, " +
				"also those that send what the bot gets elsewhere (setWebhook): --allow narrows it"}}
}

// addPresets adds --preset, which fills in the flags that are not given.
func addPresets(cmd *cobra.Command, what string, all []preset) {
	var words []string
	for _, one := range all[1:] {
		words = append(words, one.name)
	}
	last := len(words) - 1
	maximum := strings.Join(words[:last], ", ")
	var chosen preset
	cmd.Flags().StringVar(&chosen.name, "preset", "", "fill in what is known of a "+what+": "+maximum+" or "+words[last])
	complete(cmd, "preset", words...)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		at := slices.IndexFunc(all, func(one preset) bool { return one.name == chosen.name })
		if at < 0 {
			return usage(cmd, "there is no preset %q; there are %s and %s", chosen.name, maximum, words[last])
		}
		chosen = all[at]
		given := map[string]bool{}
		cmd.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = true })
		for _, flag := range chosen.flags {
			name, value, _ := strings.Cut(flag, "=")
			if given[name] || name == "user" && given["inject"] { // which a user is a part of
				continue
			}
			if err := cmd.Flags().Set(name, value); err != nil {
				return err
			}
		}
		return nil
	}
	cmd.PostRunE = func(cmd *cobra.Command, args []string) error {
		if chosen.note == "" {
			return nil
		}
		_, err := fmt.Fprintf(cmd.ErrOrStderr(), chosen.note+"\n", args[0], cmp.Or(cmd.Flag("secret").Value.String(), args[0]))
		return err
	}
}

// entry is what a service or a provider is known by. It is an agent's own, a tenant's, or everybody's.
type entry struct{ id, name, tenant, agent, about string }

// listEntries lists the services or the providers of a tenant.
type listEntries func(ctx context.Context, c *client.Client, tenant string) ([]entry, error)

func entriesOf[T any](all []T, err error, of func(T) entry) (out []entry, _ error) {
	for _, one := range all {
		out = append(out, of(one))
	}
	return out, err
}

func aboutService(s op.Service) entry {
	return entry{s.ID, s.Name, s.Tenant, cmp.Or(s.AgentName, s.Agent), s.BaseURL}
}

func serviceEntries(ctx context.Context, c *client.Client, tenant string) ([]entry, error) {
	all, err := client.Call(ctx, c, op.ListServices(), op.OfTenant{Tenant: tenant})
	return entriesOf(all.Services, err, aboutService)
}

func namesOfEntries(list listEntries) names {
	return func(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
		all, err := list(ctx, c, tenant)
		return namesOf(all, err, func(e entry) (string, string) { return e.name, e.about })
	}
}

// theOne finds the service that a name, or an id, is of.
func theOne(agent, name string, all []op.Service) (op.Service, error) {
	var found []op.Service
	var ids []string
	for _, one := range all {
		if about := aboutService(one); about.id == name || about.name == name && (agent == "" || about.agent == agent) {
			found, ids = append(found, one), append(ids, about.id)
		}
	}
	switch len(found) {
	case 0:
		return op.Service{}, problem.New(problem.NotFound, "list them: clawjail service ls", "there is no service %q", name)
	case 1:
		return found[0], nil
	}
	return op.Service{}, problem.New(problem.Conflict, "say which, with --tenant or --agent, or by its id: "+strings.Join(ids, ", "),
		"there are %d of the name %q", len(found), name)
}

// theAdded finds the id of the entry that add has made for those, or the one of an id. Another one of the name is somebody else's: a
// removal that is repeated must not come to it.
func theAdded(ctx context.Context, c *client.Client, whose op.Whose, what, name string, list listEntries) (string, error) {
	all, err := list(ctx, c, whose.Tenant)
	if err == nil && !whose.AllTenants {
		whose.Tenant, err = tenantMeant(ctx, c, whose.Tenant)
	}
	if err != nil {
		return "", err
	}
	var others []string
	for _, e := range all {
		if e.id == name || e.name == name && e.tenant == whose.Tenant && e.agent == whose.Agent {
			return e.id, nil
		}
		if e.name == name {
			others = append(others, e.id)
		}
	}
	if len(others) > 0 {
		return "", problem.New(problem.NotFound, "say whose, as add does with --agent, --tenant or --all-tenants; or name its id: "+strings.Join(others, ", "),
			"there is no %s %q that was added so; somebody else has one", what, name)
	}
	return "", problem.New(problem.NotFound, "list them: clawjail "+what+" ls", "there is no %s %q", what, name)
}

func newServiceShow(p *program) *cobra.Command {
	var tenant, agent string
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "show NAME",
		Short:             "Show a service",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(namesOfEntries(serviceEntries)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			all, err := client.Call(cmd.Context(), c, op.ListServices(), op.OfTenant{Tenant: tenant})
			if err != nil {
				return err
			}
			s, err := theOne(agent, args[0], all.Services)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), s)
			}
			return p.show(cmd, s.View())
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().StringVar(&agent, "agent", "", "the one of the agent of this `name`")
	p.completeFlag(cmd, "agent", agentNames)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
