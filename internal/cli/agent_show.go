package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/jail"
)

func newAgentList(p *program) *cobra.Command {
	var tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List agents, and what their jails do",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			all, err := c.AgentsAndJails(cmd.Context(), tenant)
			if err != nil {
				return err
			}
			jailsUnknown(cmd, all.JailsUnknown)
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), all.Agents)
			}
			return table(cmd.OutOrStdout(), agentRows(all.Agents, p.now()))
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// agentRows are agents as a table. What is about jails is left out where there is none.
func agentRows(agents []api.Agent, now time.Time) [][]string {
	jails := slices.ContainsFunc(agents, func(a api.Agent) bool { return a.Jail != nil || a.Declares })
	heading := []string{"NAME", "TENANT", "STATE", "MADE", "ID"}
	if jails {
		heading = []string{"NAME", "TENANT", "STATE", "DRIVER", "RESTARTS", "SINCE", "MADE", "ID"}
	}
	rows := [][]string{heading}
	for _, a := range agents {
		row := []string{printable(a.Name), a.Tenant, agentState(a, now)}
		if jails {
			driver, restarts, begun := "-", "-", "-"
			if j := a.Jail; j != nil {
				driver, restarts, begun = printable(j.Driver), strconv.Itoa(j.Restarts), since(j.Since, now)
			}
			row = append(row, driver, restarts, begun)
		}
		rows = append(rows, append(row, when(a.CreatedAt, now), a.ID))
	}
	return manyTenants(rows, 1)
}

// since is how long something has been so.
func since(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return age(now.Sub(t))
}

// agentState is in a word how it is with an agent.
func agentState(a api.Agent, now time.Time) string {
	switch {
	case !a.RevokedAt.IsZero():
		return "revoked"
	case a.Jail != nil && a.Jail.Crashes > 0:
		return crashText(*a.Jail)
	case a.Jail != nil:
		return printable(string(a.Jail.Phase))
	case a.Unwatched:
		return agent.StateUnwatched
	case a.Declares:
		return "not running"
	}
	return keyState(a.RevokedAt, time.Time{}, now)
}

// ago is when something was, behind what it was; nothing where that is not known.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return ", " + when(t, now)
}

// crashText is how it is with an agent whose program ends over and over.
func crashText(j api.AgentJail) string {
	text := fmt.Sprintf("crash loop (%d times", j.Crashes)
	if j.Exit != nil {
		text += ", last: " + printable(j.Exit.Words())
	}
	return text + ")"
}

func newAgentShow(p *program) *cobra.Command {
	var tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "show NAME",
		Short:             "Show an agent, its jail, and what is declared of it",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			a, err := c.Agent(cmd.Context(), tenant, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), a)
			}
			return showAgent(cmd.OutOrStdout(), a, p.now())
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func showAgent(w io.Writer, a api.AgentDetails, now time.Time) error {
	pairs := [][2]string{{"name", a.Name}, {"tenant", a.Tenant}, {"id", a.ID}, {"state", agentState(a.Agent, now)}, {"made", when(a.CreatedAt, now)}}
	if !a.RevokedAt.IsZero() {
		pairs = append(pairs, [2]string{"revoked", when(a.RevokedAt, now)})
	}
	if a.Jail != nil {
		pairs = append(pairs, aboutJail(*a.Jail, now)...)
	}
	if a.Processes > 0 {
		pairs = append(pairs, [2]string{"processes", strconv.Itoa(a.Processes)})
	}
	if a.Declared != nil {
		pairs = append(pairs, aboutDeclared(*a.Declared)...)
	}
	if len(a.MCP) > 0 {
		pairs = append(pairs, [2]string{"mcp, by settings", strings.Join(a.MCP, ", ")})
	}
	for _, text := range a.Exposes {
		pairs = append(pairs, [2]string{"exposes", text})
	}
	for n := range pairs {
		pairs[n][1] = printable(pairs[n][1])
	}
	return fields(w, pairs)
}

func aboutJail(j api.AgentJail, now time.Time) [][2]string {
	out := [][2]string{
		{"driver", j.Driver}, {"made of", j.Source}, {"jail", j.Name}, {"address", j.Address}, {"since", since(j.Since, now)},
		{"restarts", strconv.Itoa(j.Restarts)},
	}
	if !j.Next.IsZero() {
		out = append(out, [2]string{"next start", when(j.Next, now)})
	}
	if e := j.Exit; e != nil {
		out = append(out, [2]string{"last exit", printable(e.Words()) + ago(e.At, now)})
	}
	if j.Problem != "" {
		out = append(out, [][2]string{{"problem", j.Problem + " (" + j.Code + ")"}, {"hint", j.Hint}}...)
	}
	memory, tasks := size(j.Limits.Memory), strconv.Itoa(j.Limits.Tasks)
	if u := j.Usage; u != nil {
		memory = size(u.Memory) + " of " + memory + ", at most " + size(u.MemoryPeak) + " so far"
		tasks = strconv.Itoa(u.Tasks) + " of " + tasks
	}
	out = append(out, [][2]string{{"memory", memory}, {"processor", fmt.Sprintf("%g cores", j.Limits.CPU) + usedTime(j.Usage)}, {"tasks", tasks},
		{"/tmp", size(j.Limits.Tmp)}}...)
	if j.Limits.State > 0 {
		out = append(out, [2]string{"/state", size(j.Limits.State)})
	}
	if u := j.Usage; u != nil && len(u.Hit) > 0 {
		out = append(out, [2]string{"limits hit", limitNames(u.Hit)})
	}
	return out
}

func limitNames(hit []jail.LimitName) string {
	names := make([]string, len(hit))
	for n, h := range hit {
		names[n] = string(h)
	}
	return strings.Join(names, ", ")
}

func usedTime(u *api.JailUsage) string {
	if u == nil {
		return ""
	}
	return fmt.Sprintf(", %.1f s used", u.CPUSeconds)
}

func aboutDeclared(d api.Declaration) [][2]string {
	out := [][2]string{
		{"template", d.Template}, {"image", d.Image}, {"command", strings.Join(d.Command, " ")},
		{"workspace", strings.TrimSpace(d.Sharing + " " + d.Workspace + " " + d.WorkspaceMode)}, {"restart", d.Restart}, {"ttl", d.TTL},
		{"env", strings.Join(d.Env, ", ")}, {"env without", strings.Join(d.Without, ", ")},
	}
	if d.Tmp == "exec" {
		out = append(out, [2]string{"tmp", "what is in /tmp can be run"})
	}
	if d.UnixSockets {
		out = append(out, [2]string{"unix sockets", "yes: whoever shares the workspace can be connected with it past the gateway"})
	}
	if d.Webhook {
		out = append(out, [2]string{"webhook", "yes"})
	}
	if d.Browser != "" {
		out = append(out, [2]string{"browser", d.Browser})
	}
	for _, r := range d.Allow {
		verb := "allow"
		if r.Deny {
			verb = "deny"
		}
		out = append(out, [2]string{verb, strings.TrimSpace(strings.Join(r.Methods, ",") + " " + r.Target)})
	}
	if d.Services != nil {
		out = append(out, [2]string{"services", orNone(d.Services)})
	}
	if d.Tools != nil {
		var urls []string
		for _, t := range d.Tools {
			urls = append(urls, strings.TrimSpace(strings.Join(t.Methods, ",")+" "+t.URL))
		}
		out = append(out, [2]string{"tools", orNone(urls)})
	}
	if len(d.MCP) > 0 {
		out = append(out, [2]string{"mcp", strings.Join(d.MCP, ", ")})
	}
	for _, rate := range []struct {
		name string
		n    int
	}{{"proxy", d.Rate.Proxy}, {"execute", d.Rate.Execute}, {"services", d.Rate.Service}, {"llm", d.Rate.LLM}} {
		if rate.n > 0 {
			out = append(out, [2]string{"rate " + rate.name, strconv.Itoa(rate.n) + " a minute"})
		}
	}
	if d.LLM.TokensPerDay > 0 {
		out = append(out, [2]string{"tokens", strconv.FormatInt(d.LLM.TokensPerDay, 10) + " a day"})
	}
	if d.LLM.CostPerDay > 0 {
		out = append(out, [2]string{"cost", fmt.Sprintf("%g a day", d.LLM.CostPerDay)})
	}
	return out
}

func orNone(all []string) string {
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}
