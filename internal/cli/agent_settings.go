package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// settingsFlags say whose settings they are.
type settingsFlags struct{ op.Whose }

func (s *settingsFlags) add(p *program, cmd *cobra.Command) {
	p.tenantFlag(cmd, &s.Tenant)
	cmd.Flags().BoolVar(&s.AllTenants, "all-tenants", false, "what holds for all agents of all tenants; only an admin of the installation may")
}

// of are the settings of the agent that the command names; without a name, of all agents of the tenant.
func (s settingsFlags) of(cmd *cobra.Command, args []string) (op.Whose, error) {
	out := s.Whose
	if err := exclusive(cmd, "tenant", "all-tenants"); err != nil {
		return out, err
	}
	if len(args) > 0 {
		if out.AllTenants {
			return out, usage(cmd, "--all-tenants is for all agents, and %q is one", args[0])
		}
		out.Agent = args[0]
	}
	return out, nil
}

// changeSettings reads settings, changes them, and stores them, unless somebody else has stored others in between.
func changeSettings(cmd *cobra.Command, c *client.Client, whose op.Whose, change func(*egress.Settings) error) error {
	shown, err := c.Settings(cmd.Context(), whose)
	if err != nil {
		return err
	}
	s := shown.Set
	if err := change(&s); err != nil {
		return err
	}
	_, err = c.PutSettings(cmd.Context(), whose, op.SettingsRequest{Version: s.Version, Mode: s.Mode, Tools: s.Tools, MCP: s.MCP, Rates: s.Rates, Budget: s.Budget,
		Hold: s.Hold, Browser: s.Browser, Note: s.Note})
	return err
}

func newAgentTools(p *program) *cobra.Command {
	var whose settingsFlags
	var set string
	var add, services []string
	var clear, inherit, asJSON bool
	cmd := &cobra.Command{
		Use:   "tools [NAME]",
		Short: "Show or change what an agent may do with execute",
		Long: "Shows what an agent may do with POST /v1/execute: methods and URLs, in which * stands for one segment of a path and ** at the end for " +
			"any number. A tool with --service carries the credential of that service, to that service; a tool without it carries none. An agent with a list of its own has " +
			"that alone; any other has the tenant's, or nothing. Without NAME it is the list of the tenant, for all agents that have none of their own.",
		Example: "  clawjail agent tools writer --add 'GET,POST https://api.github.com/repos/**' --service github\n" +
			"  clawjail agent tools writer --set tools.json\n  clawjail agent tools writer --clear",
		Args:              arguments(0, 1),
		ValidArgsFunction: p.completeFirst(agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			who, err := whose.of(cmd, args)
			if err != nil {
				return err
			}
			if err := errors.Join(exclusive(cmd, "set", "clear", "inherit"), exclusive(cmd, "add", "inherit")); err != nil {
				return err
			}
			added, err := toolsOf(cmd, add, services)
			if err != nil {
				return err
			}
			var whole []egress.Tool
			if set != "" {
				if whole, err = readTools(cmd, set); err != nil {
					return err
				}
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			if set != "" || clear || inherit || len(added) > 0 {
				err := changeSettings(cmd, c, who, func(s *egress.Settings) error {
					switch {
					case set != "":
						s.Tools = whole
					case clear:
						s.Tools = []egress.Tool{}
					case inherit:
						s.Tools = nil
					}
					s.Tools = append(s.Tools, added...)
					return nil
				})
				if err != nil {
					return err
				}
			}
			shown, err := c.Settings(cmd.Context(), who)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), map[string]any{"set": shown.Set.Tools, "effective": shown.Effective.Tools})
			}
			return table(cmd.OutOrStdout(), toolRows(shown))
		},
	}
	whose.add(p, cmd)
	f := cmd.Flags()
	f.StringVar(&set, "set", "", "`file` with the whole list, as JSON: [{url, methods, services}]; - is standard input")
	f.StringArrayVar(&add, "add", nil, "one more tool, as `'METHODS URL'`")
	f.StringSliceVar(&services, "service", nil, "`names` of services whose credentials the tools of --add may use (default none: for requests without a credential)")
	f.BoolVar(&clear, "clear", false, "allow nothing")
	f.BoolVar(&inherit, "inherit", false, "remove the list: what the tenant's agents may")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	p.completeFlag(cmd, "service", namesOfEntries(serviceEntries))
	return cmd
}

// toolsOf reads METHODS URL.
func toolsOf(cmd *cobra.Command, texts, services []string) (out []egress.Tool, err error) {
	if len(services) > 0 && len(texts) == 0 {
		return nil, usage(cmd, "--service goes with --add")
	}
	for _, text := range texts {
		words := strings.Fields(text)
		if len(words) != 2 {
			return nil, usage(cmd, "--add %q: write methods and a URL, such as 'GET https://api.github.com/**'", text)
		}
		out = append(out, egress.Tool{Methods: upper(strings.Split(words[0], ",")), URL: words[1], Services: services})
	}
	return out, nil
}

// maxTools bounds a file of tools, in bytes.
const maxTools = 64 << 10

// readTools reads a list of tools. It is never nil: an empty list is one.
func readTools(cmd *cobra.Command, path string) ([]egress.Tool, error) {
	var data []byte
	var err error
	if path == standardInput {
		data, err = readInput(cmd, maxTools)
	} else if data, err = os.ReadFile(path); err != nil {
		err = fmt.Errorf("read the tools: %w", err)
	}
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	var out []egress.Tool
	if err := d.Decode(&out); err != nil || out == nil || d.More() {
		return nil, problem.New(problem.BadJSON, `write it like [{"url": "https://api.github.com/**", "methods": ["GET"]}]`, "%s is not a list of tools", printable(path))
	}
	return out, nil
}

func toolRows(shown op.SettingsShown) [][]string {
	rows := [][]string{{"METHODS", "URL", "CREDENTIALS"}}
	for _, t := range shown.Effective.Tools {
		services := strings.Join(t.Services, ",")
		if services == "" {
			services = "none"
		}
		rows = append(rows, []string{printable(strings.Join(t.Methods, ",")), printable(t.URL), printable(services)})
	}
	return rows
}

func newAgentLimits(p *program) *cobra.Command {
	var whose settingsFlags
	var new egress.Settings
	var values *given
	var noMCP, asJSON bool
	cmd := &cobra.Command{
		Use:   "limits [NAME]",
		Short: "Show or change the limits of an agent",
		Long: "Shows the limits of an agent: requests a minute by the way they come, tunnels at the same time, and its budget of models a day (UTC). " +
			"What an agent's own settings leave out, or set to 0, is as in its tenant's, then as in those of all tenants. Without NAME they are the settings of " +
			"all agents of the tenant. --mode report lets pass what the rules refuse, and only writes it down. --hold makes a request that no rule " +
			"allows wait for an answer of `clawjail access`. --mcp offers the tools of MCP servers, beside those of servers that an agent declares.",
		Example:           "  clawjail agent limits writer --execute 30 --tokens-per-day 500000\n  clawjail agent limits writer --hold 2m\n  clawjail agent limits writer --mcp files",
		Args:              arguments(0, 1),
		ValidArgsFunction: p.completeFirst(agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			who, err := whose.of(cmd, args)
			if err != nil {
				return err
			}
			if err := errors.Join(values.check(nil, ""), exclusive(cmd, mcpFlag, "no-mcp")); err != nil {
				return err
			}
			if noMCP {
				new.MCP = []string{}
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			if err := knownServers(cmd, c, who.Tenant, new.MCP); err != nil {
				return err
			}
			said := func(l limit) bool { return cmd.Flags().Changed(l.flag) || l.flag == mcpFlag && noMCP }
			if slices.ContainsFunc(limits(), said) {
				err := changeSettings(cmd, c, who, func(s *egress.Settings) error {
					for _, l := range limits() {
						if said(l) {
							l.in(s).Set(l.in(&new))
						}
					}
					return nil
				})
				if err != nil {
					return err
				}
				if text := new.Budget.Warning(); text != "" {
					if _, err := fmt.Fprintln(cmd.ErrOrStderr(), "clawjail: warning: "+text); err != nil {
						return err
					}
				}
			}
			shown, err := c.Settings(cmd.Context(), who)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), shown)
			}
			rows := [][]string{{"LIMIT", "SET", "IN EFFECT"}}
			for _, l := range limits() {
				rows = append(rows, []string{l.flag, l.show(shown.Set, "-"), l.show(shown.Effective, "none")})
			}
			return table(cmd.OutOrStdout(), rows)
		},
	}
	whose.add(p, cmd)
	values = &given{p: p, cmd: cmd}
	for _, l := range limits() {
		values.flag(l.flag, "", op.Field{Tag: l.tag}, l.in(&new))
	}
	cmd.Flags().BoolVar(&noMCP, "no-mcp", false, "offer the tools of no MCP server, whatever the wider setting says")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// mcpFlag names MCP servers whose tools an agent is offered.
const mcpFlag = "mcp"

func (p *program) serversFlag(cmd *cobra.Command, names *[]string) {
	cmd.Flags().StringSliceVar(names, mcpFlag, nil, "`name` of an MCP server whose tools are offered")
	p.completeFlag(cmd, mcpFlag, mcpServerNames)
}

// knownServers refuses names of MCP servers that there are not, or that are not for the tenant.
func knownServers(cmd *cobra.Command, c *client.Client, tenant string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	all, err := client.Call(cmd.Context(), c, op.ListMCPServers(), op.OfTenant{Tenant: tenant})
	if err != nil {
		return err
	}
	for _, name := range names {
		at := slices.IndexFunc(all.Servers, func(s op.MCPServer) bool { return s.Name == name })
		if at < 0 {
			return problem.New(problem.NotFound, "list them: clawjail mcp-server ls", "there is no MCP server %q", name)
		}
		if of := all.Servers[at].Tenants; tenant != "" && !slices.Contains(of, tenant) && !slices.Contains(of, "*") {
			return problem.New(problem.NotFound, "list them: clawjail mcp-server ls --tenant "+tenant, "there is no MCP server %q for the tenant %s", name, tenant)
		}
	}
	return nil
}

// limit is one of them: its flag, with the tag of a field of an operation, and its place in settings. One that is zero is left to
// the wider setting.
type limit struct {
	flag string
	tag  reflect.StructTag
	of   func(*egress.Settings) any
}

func (l limit) in(s *egress.Settings) reflect.Value { return reflect.ValueOf(l.of(s)).Elem() }

func (l limit) show(s egress.Settings, none string) string {
	switch v := l.in(&s); {
	case v.IsZero():
		return none
	case v.Kind() == reflect.Slice:
		return printable(cmp.Or(strings.Join(s.MCP, ","), "none"))
	case v.Kind() == reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'f', -1, 64)
	default:
		return printable(fmt.Sprint(v))
	}
}

func limits() []limit {
	return []limit{
		{"execute", `usage:"requests a minute with POST /v1/execute" is:"natural"`, func(s *egress.Settings) any { return &s.Rates.Execute }},
		{"proxy", `usage:"requests and tunnels a minute through the proxy" is:"natural"`, func(s *egress.Settings) any { return &s.Rates.Proxy }},
		{"service", `usage:"requests a minute to services" is:"natural"`, func(s *egress.Settings) any { return &s.Rates.Service }},
		{"llm", `usage:"requests a minute to models" is:"natural"`, func(s *egress.Settings) any { return &s.Rates.LLM }},
		{"tunnels", `usage:"tunnels at the same time" is:"natural"`, func(s *egress.Settings) any { return &s.Rates.Tunnels }},
		{"tokens-per-day", `usage:"tokens of models a day" is:"natural"`, func(s *egress.Settings) any { return &s.Budget.TokensPerDay }},
		{"cost-per-day", `usage:"cost of models a day, in the currency of their prices" is:"natural"`, func(s *egress.Settings) any { return &s.Budget.CostPerDay }},
		{"mode", `usage:"enforce, or report: only write down what would be refused; empty leaves it to the wider setting" enum:"enforce,report" is:"one"`,
			func(s *egress.Settings) any { return &s.Mode }},
		{"browser", `usage:"what the browsers may reach that it opens: rules are its own, open is the public web as well; empty leaves it to the wider setting" enum:"rules,open" is:"one"`,
			func(s *egress.Settings) any { return &s.Browser }},
		{mcpFlag, `usage:"name of an MCP server whose tools are offered" value:"name" complete:"mcp servers"`, func(s *egress.Settings) any { return &s.MCP }},
		{"hold", `usage:"how long a request that no rule allows waits for an operator, such as 2m; 0s does not" is:"duration"`, func(s *egress.Settings) any { return &s.Hold }},
	}
}
