package cli

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
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
	cmd.AddCommand(newProviderAdd(p), described(p, op.ListProviders()), newProviderRemove(p))
	return cmd
}

// providerPreset fills in what is known of a provider.
func providerPreset(cmd *cobra.Command, name string, r *op.ProviderRequest) error {
	switch egress.Wire(name) {
	case "":
	case egress.WireOpenAI:
		r.BaseURL, r.Wire, r.Models = "https://api.openai.com", egress.WireOpenAI, []string{"gpt-*", "chatgpt-*", "o1*", "o3*", "o4*", "text-embedding-*"}
	case egress.WireAnthropic:
		r.BaseURL, r.Wire, r.Models = "https://api.anthropic.com", egress.WireAnthropic, []string{"claude-*"}
	case egress.WireOllama:
		// Where it is, nobody knows.
		r.Wire, r.Models, r.Inject.Type = egress.WireOllama, []string{"*"}, egress.InjectNone
	default:
		return usage(cmd, "there is no preset %q; there are openai, anthropic and ollama", name)
	}
	return nil
}

func newProviderAdd(p *program) *cobra.Command {
	var whose whoseFlags
	var flags op.ProviderRequest // what was said on the command line
	var preset, wire, inject, at string
	var prices []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Make a provider, or replace the one of the same name",
		Long: "Makes a provider, or replaces the one of the same name, tenant and agent. A model is served by the first provider of its language that " +
			"has it: an agent's own come before its tenant's, then by --priority, then by age. --price counts the cost, per million tokens; " +
			"without one a model is not counted as money, and agents with a budget in money may not use it. Acts of a provider by itself, such as " +
			"searching the web or fetching an address, do not follow the rules of agents, and are refused unless --allow-hosted names them.",
		Example: "  clawjail secret set openai < key.txt\n  clawjail provider add openai --preset openai --price 'gpt-4o*=2.50/10'\n" +
			"  clawjail provider add local --preset ollama --url http://models.internal:11434 --address 192.168.1.30",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := whose.check(cmd); err != nil {
				return err
			}
			request := op.ProviderRequest{Whose: whose.Whose, Name: args[0], Secret: flags.Secret, Note: flags.Note, Priority: flags.Priority}
			if err := providerPreset(cmd, preset, &request); err != nil {
				return err
			}
			changed := cmd.Flags().Changed
			if changed("url") {
				request.BaseURL = flags.BaseURL
			}
			if changed("wire") {
				request.Wire = egress.Wire(wire)
			}
			if len(flags.Models) > 0 {
				request.Models = flags.Models
			}
			if changed("inject") {
				request.Inject = egress.Injection{Type: egress.InjectionType(inject)}
			}
			if changed("inject-name") {
				request.Inject.Name = flags.Inject.Name
			}
			if changed("priority") && request.Priority < 1 {
				return usage(cmd, "--priority %d: it is at least 1", request.Priority)
			}
			var err error
			if request.Address, err = address(cmd, at); err != nil {
				return err
			}
			request.Hosted = flags.Hosted
			if request.Prices, err = priceList(cmd, prices); err != nil {
				return err
			}
			switch {
			case request.Wire == "":
				return usage(cmd, "the language is missing: --wire openai, anthropic or ollama; or --preset")
			case request.BaseURL == "":
				return usage(cmd, "where the provider is, is missing: --url https://models.example.com")
			case len(request.Models) == 0:
				return usage(cmd, "which models it has is missing: --model 'gpt-*', or --model '*' for all")
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			made, err := client.Call(cmd.Context(), c, op.PutProvider(), op.NewProvider{Body: op.With(request)})
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), made)
			}
			return said(cmd, "provider %s: %s, %s", made.Name, made.BaseURL, strings.Join(made.Models, ", "))
		},
	}
	whose.add(p, cmd)
	f := cmd.Flags()
	f.StringVar(&preset, "preset", "", "fill in what is known of a provider: openai, anthropic or ollama")
	f.StringVar(&wire, "wire", "", "its language: openai, anthropic or ollama")
	f.StringVar(&flags.BaseURL, "url", "", "base `URL`, before /v1 or /api")
	f.StringArrayVar(&flags.Models, "model", nil, "`pattern` of models that it has, such as 'gpt-*'; may be repeated")
	f.StringArrayVar(&prices, "price", nil, "cost of models, as `PATTERN=INPUT/OUTPUT` per million tokens, and behind it what costs otherwise; may be repeated")
	f.StringSliceVar(&flags.Hosted, "allow-hosted", nil,
		"`names` of what it may do by itself for agents: web_search, mcp, fetch, stored and others (default nothing)")
	f.StringVar(&flags.Secret, "secret", "", "`name` of the secret in the vault (default the name of the provider)")
	f.StringVar(&inject, "inject", "", "how the key goes in: bearer, header, query or none (default as the language has it)")
	f.StringVar(&flags.Inject.Name, "inject-name", "", "`name` of the header or the query parameter")
	f.IntVar(&flags.Priority, "priority", 0, "lower first (default 100)")
	f.StringVar(&at, "address", "", "private `address` to connect to; only an admin of the installation may")
	f.StringVar(&flags.Note, "note", "", "a `text` for people")
	f.BoolVar(&asJSON, "json", false, "print the provider as JSON")
	p.completeFlag(cmd, "secret", serviceNames)
	for _, flag := range []string{"preset", "wire"} {
		complete(cmd, flag, string(egress.WireOpenAI), string(egress.WireAnthropic), string(egress.WireOllama))
	}
	complete(cmd, "inject", string(egress.InjectBearer), string(egress.InjectHeader), string(egress.InjectQuery), string(egress.InjectNone))
	return cmd
}

// priceList reads PATTERN=INPUT/OUTPUT.
func priceList(cmd *cobra.Command, texts []string) (out []egress.Price, err error) {
	for _, text := range texts {
		one, err := egress.ParsePrice(text)
		if err != nil {
			return nil, usage(cmd, "--price %q: write models and two amounts, such as 'gpt-4o*=2.50/10', and behind them what costs otherwise: "+
				"'gpt-4o*=2.50/10 cache-read=1.25 audio-output=80 call=0.01 priority=2'", text)
		}
		out = append(out, one)
	}
	return out, nil
}

func newProviderRemove(p *program) *cobra.Command {
	return removal(p, "provider", func(ctx context.Context, c *client.Client, tenant string) (out []entry, err error) {
		all, err := client.Call(ctx, c, op.ListProviders(), op.OfTenant{Tenant: tenant})
		for _, o := range all.Providers {
			out = append(out, entry{o.ID, o.Name, o.Tenant, cmp.Or(o.AgentName, o.Agent)})
		}
		return out, err
	}, func(ctx context.Context, c *client.Client, id string) error {
		return client.Do(ctx, c, op.RemoveProvider(), op.ProviderNamed{ID: id})
	}, providerNames)
}

func providerNames(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListProviders(), op.OfTenant{Tenant: tenant})
	return namesOf(all.Providers, err, func(o op.Provider) (string, string) { return o.Name, string(o.Wire) + " " + o.BaseURL })
}
