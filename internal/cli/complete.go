package cli

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/template"
	"github.com/clawjail/clawjail/internal/vault"
)

// completionLimit bounds what a shell waits for.
const completionLimit = 2 * time.Second

// names lists what something can be called, each perhaps with a description (cobra.CompletionWithDesc).
type names func(ctx context.Context, c *client.Client, tenant string) ([]string, error)

// completer asks the control plane. A shell that completes has nowhere to show an error, so there is none.
func (p *program) completer(list names) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		c, err := p.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
		defer cancel()
		tenant := ""
		if f := cmd.Flag("tenant"); f != nil {
			tenant = f.Value.String()
		}
		found, err := list(ctx, c, tenant)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFirst completes the first argument, completeAll all of them.
func (p *program) completeFirst(list names) cobra.CompletionFunc {
	ask := p.completer(list)
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return ask(cmd, args, begun)
	}
}

func (p *program) completeAll(list names) cobra.CompletionFunc { return p.completer(list) }

// completeFlag gives a flag the words of a list.
func (p *program) completeFlag(cmd *cobra.Command, flag string, list names) {
	if err := cmd.RegisterFlagCompletionFunc(flag, p.completer(list)); err != nil {
		panic(err) // there is no such flag: a mistake in this package
	}
}

// completeTemplates lists the templates that are on this host, of which everybody may know the names.
func (p *program) completeTemplates(_ *cobra.Command, args []string, _ string) (out []string, _ cobra.ShellCompDirective) {
	c, err := p.config()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	entries, _ := os.ReadDir(c.TemplatesDir) // a shell that completes has nowhere to show an error
	for _, e := range entries {
		if e.IsDir() && template.CheckName(e.Name()) == nil && !slices.Contains(args, e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// templateFlag completes the flag --template.
func (p *program) templateFlag(cmd *cobra.Command) {
	if err := cmd.RegisterFlagCompletionFunc("template", p.completeTemplates); err != nil {
		panic(err) // there is no such flag: a mistake in this package
	}
}

// tenantFlag adds --tenant.
func (p *program) tenantFlag(cmd *cobra.Command, tenant *string) {
	cmd.Flags().StringVar(tenant, "tenant", "", "`tenant` whose it is; only an admin of all tenants can name another than their own")
	p.completeFlag(cmd, "tenant", tenantNames)
}

func tenantNames(ctx context.Context, c *client.Client, _ string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListTenants(), op.None{})
	return namesOf(all.Tenants, err, func(t op.Tenant) (string, string) { return t.ID, "" })
}

func domainsOfSets(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListCookies(), op.OfTenant{Tenant: tenant})
	return namesOf(all.Sets, err, func(s vault.CookieSet) (string, string) { return s.Domain, count(s.Count, "cookie") })
}

func namesOf[T any](all []T, err error, name func(T) (string, string)) (out []string, _ error) {
	for _, one := range all {
		text, description := name(one)
		out = append(out, cobra.CompletionWithDesc(text, strings.TrimSpace(printable(description))))
	}
	return out, err
}
