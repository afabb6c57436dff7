package cli

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
)

func newProviderCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "provider",
		Short: "Let agents use models, with keys that they never see",
		Long: "A provider is a server that requests for models go to. Agents send them to the gateway, in the language of OpenAI, Anthropic or Ollama; the " +
			"gateway finds the provider by language and model, puts the key in, and counts tokens. The key is a secret of the vault: " +
			"clawjail secret set NAME.",
	})
	add := described(p, op.PutProvider())
	addPresets(add, "provider", []preset{{},
		{name: "openai", flags: []string{"url=https://api.openai.com", "wire=openai", "model=gpt-*,chatgpt-*,o1*,o3*,o4*,text-embedding-*"}},
		{name: "anthropic", flags: []string{"url=https://api.anthropic.com", "wire=anthropic", "model=claude-*"}},
		{name: "ollama", flags: []string{"wire=ollama", "model=*", "inject=none"}}}) // where it is, nobody knows
	remove := described(p, op.RemoveProvider(), func(cmd *cobra.Command, c *client.Client, in *op.ProviderNamed) (err error) {
		in.ID, err = theAdded(cmd.Context(), c, in.Owner, "provider", in.ID, providerEntries)
		return err
	})
	cmd.AddCommand(add, described(p, op.ListProviders()), remove)
	return cmd
}

func providerEntries(ctx context.Context, c *client.Client, tenant string) ([]entry, error) {
	all, err := client.Call(ctx, c, op.ListProviders(), op.OfTenant{Tenant: tenant})
	return entriesOf(all.Providers, err, func(o op.Provider) entry {
		return entry{o.ID, o.Name, o.Tenant, cmp.Or(o.AgentName, o.Agent), string(o.Wire) + " " + o.BaseURL}
	})
}
