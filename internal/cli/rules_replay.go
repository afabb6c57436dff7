package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// recorded is a line of a file of requests: a question, and what is to be decided. Without a rule, which one decides does
// not matter.
type recorded struct {
	egress.Question
	Allowed *bool   `json:"allowed"`
	Rule    *string `json:"rule,omitempty"`
}

// Bounds of a file of requests.
const (
	maxRecorded     = 10_000   // requests
	maxRecordedLine = 64 << 10 // bytes
)

func newRulesTest(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "test FILE",
		Short: "Replay recorded requests, and fail when one is decided otherwise",
		Long: "Decides the requests of a file without making them, and ends with 1 when a verdict is not the one that the file has. A line is " +
			"one request in JSON, as `clawjail rules record` writes it: agent, surface, service, method, url and allowed; with rule, that rule has " +
			"to decide. Lines that are empty or begin with # are left out. - is standard input.",
		Example: "  clawjail rules record --since 24h > requests.jsonl\n  clawjail rules test requests.jsonl",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			want, lines, err := readRecorded(cmd, args[0])
			if err != nil {
				return err
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			questions := make([]egress.Question, len(want))
			for n, w := range want {
				questions[n] = w.Question
			}
			var got op.Explanations
			if len(questions) > 0 {
				if got, err = client.Call(cmd.Context(), c, op.ExplainRules(), op.Questions{Body: op.With(op.ExplainRequest{Questions: questions})}); err != nil {
					return err
				}
			}
			if n := len(got.Explanations); n != len(want) {
				return problem.New(problem.ControlPlaneUnreachable, notOurAnswer, "to %d questions the control plane gave %d answers", len(want), n)
			}
			return showReplay(cmd, args[0], lines, want, got.Explanations, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// change is a request that is decided otherwise.
type change struct {
	Line     int                `json:"line"`
	Question egress.Question    `json:"question"`
	Want     verdict            `json:"want"`
	Got      verdict            `json:"got"`
	Why      egress.Explanation `json:"explanation"`
}

// verdict is what a change is about.
type verdict struct {
	Allowed bool   `json:"allowed"`
	Rule    string `json:"rule,omitempty"`
}

func (v verdict) String() string {
	out := "denied"
	if v.Allowed {
		out = "allowed"
	}
	if v.Rule != "" {
		out += " by " + v.Rule
	}
	return out
}

func showReplay(cmd *cobra.Command, file string, lines []int, want []recorded, got []egress.Explanation, asJSON bool) error {
	changes := []change{}
	for n, w := range want {
		e := got[n]
		// In report mode everything passes; what is tested is the verdict.
		now := verdict{Allowed: e.Allowed && !e.Reported, Rule: e.Rule}
		before := verdict{Allowed: *w.Allowed}
		if w.Rule != nil {
			before.Rule = *w.Rule
		}
		if before.Allowed != now.Allowed || w.Rule != nil && before.Rule != now.Rule {
			changes = append(changes, change{Line: lines[n], Question: w.Question, Want: before, Got: now, Why: e})
		}
	}
	out := cmd.OutOrStdout()
	if asJSON {
		if err := writeJSON(out, map[string]any{"requests": len(want), "changed": changes}); err != nil {
			return err
		}
	} else {
		for _, c := range changes {
			q := c.Question
			who := q.Agent
			if who == "" {
				who = "a clean session"
			}
			if _, err := fmt.Fprintf(out, "line %d: %s: %s %s: was %s, is %s: %s\n", c.Line, printable(who), printable(q.Method), printable(q.URL),
				printable(c.Want.String()), printable(c.Got.String()), printable(c.Why.Reason)); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(out, "%s, %d changed\n", count(len(want), "request"), len(changes)); err != nil {
			return err
		}
	}
	if len(changes) > 0 {
		return problem.New(problem.Conflict, "look at the rules with `clawjail rules ls`, or record the requests again: clawjail rules record",
			"%d of %s of %s would be decided otherwise", len(changes), count(len(want), "request"), printable(file))
	}
	return nil
}

// readRecorded reads a file of requests, and says on which line each stands.
func readRecorded(cmd *cobra.Command, path string) (all []recorded, lines []int, err error) {
	in := input(cmd)
	if path != standardInput {
		f, err := os.Open(path)
		if err != nil {
			return nil, nil, fmt.Errorf("read the requests: %w", err)
		}
		defer f.Close() // it was only read
		in = f
	}
	return parseRecorded(in, path)
}

func parseRecorded(in io.Reader, path string) (all []recorded, lines []int, err error) {
	const hint = "write lines as clawjail rules record does"
	scanner := bufio.NewScanner(in)
	scanner.Buffer(make([]byte, 4<<10), maxRecordedLine)
	for n := 1; scanner.Scan(); n++ {
		text := strings.TrimSpace(scanner.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		var one recorded
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&one); err != nil || d.More() {
			return nil, nil, problem.New(problem.BadJSON, hint, "line %d of %s is not a request", n, printable(path))
		}
		if one.URL == "" || one.Method == "" || one.Allowed == nil {
			return nil, nil, problem.New(problem.BadJSON, hint, "line %d of %s does not have method, url and allowed", n, printable(path))
		}
		if len(all) == maxRecorded {
			return nil, nil, problem.New(problem.BadRequest, "split it", "%s has more than %d requests", printable(path), maxRecorded)
		}
		all, lines = append(all, one), append(lines, n)
	}
	if err := scanner.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, nil, problem.New(problem.BadJSON, hint, "%s has a line of more than %d bytes", printable(path), maxRecordedLine)
	} else if err != nil {
		return nil, nil, fmt.Errorf("read the requests: %w", err)
	}
	return all, lines, nil
}

func newRulesRecord(p *program) *cobra.Command {
	var tenant, agent, since string
	var withRules bool
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Write the requests that were made, for rules test",
		Long: "Reads from the audit log what went through the gateway, and writes each kind of request once, with its newest verdict, at most " +
			"10000 of them: the newest. Requests that rates, budgets or addresses decided, and those of sessions with accounts and of MCP servers, are left out. Paths are as in the log: without a query, and cut when they are long.",
		Example: "  clawjail rules record --agent writer --since 168h > requests.jsonl",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := moment(cmd, "since", since, p.now())
			if err != nil {
				return err
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			r := recorder{client: c, tenant: tenant, seen: map[egress.Question]bool{}, withRules: withRules}
			all, err := r.record(cmd.Context(), agent, from)
			if err != nil {
				return err
			}
			if r.cut {
				if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "these are not all: the oldest were left out after %s\n", count(len(all), "request")); err != nil {
					return err
				}
			}
			e := encoder(cmd.OutOrStdout())
			for _, one := range all {
				if err := e.Encode(one); err != nil {
					return err
				}
			}
			return nil
		},
	}
	p.tenantFlag(cmd, &tenant)
	f := cmd.Flags()
	f.StringVar(&agent, "agent", "", "requests of the agent of this `name` only")
	f.StringVar(&since, "since", "24h", "requests from this `time` on")
	f.BoolVar(&withRules, "with-rules", false, "also expect the same rule to decide")
	p.completeFlag(cmd, "agent", agentNames)
	return cmd
}

// recorder makes requests out of audit rows.
type recorder struct {
	client    *client.Client
	tenant    string
	withRules bool
	names     map[string]op.Agent // by id
	seen      map[egress.Question]bool
	out       []recorded // newest first
	cut       bool       // older ones were not looked at
}

// pageRows is how many rows are asked for at once, and maxPages how often.
const (
	pageRows = 1000
	maxPages = 200
)

func (r *recorder) record(ctx context.Context, agent string, since time.Time) ([]recorded, error) {
	agents, err := client.Call(ctx, r.client, op.ListAgents(), op.OfTenant{Tenant: r.tenant})
	if err != nil {
		return nil, err
	}
	r.names = map[string]op.Agent{}
	for _, a := range agents.Agents {
		r.names[a.ID] = a
	}
	query := op.AuditQuery{AuditFilter: op.AuditFilter{Tenant: r.tenant, Action: "gateway."}, Since: since, Limit: pageRows}
	if agent != "" {
		found, err := findAgent(ctx, r.client, r.tenant, agent)
		if err != nil {
			return nil, err
		}
		query.Actor = string(identity.KindAgent) + ":" + found.ID
	}
	r.cut = true
	ids := map[string]bool{} // of the rows of the page before, which end where the next begins
	for range maxPages {
		page, err := client.Call(ctx, r.client, op.ListAudit(), query)
		if err != nil {
			return nil, err
		}
		rows := page.Rows
		fresh := 0
		before := ids
		ids = map[string]bool{}
		for _, row := range slices.Backward(rows) {
			ids[row.Node+row.ID] = true
			if !before[row.Node+row.ID] {
				fresh++
				r.add(row)
			}
		}
		if len(r.out) >= maxRecorded {
			break
		}
		if len(rows) < pageRows || fresh == 0 {
			r.cut = false
			break
		}
		query.Until = rows[0].Time.Add(time.Microsecond) // rows of the same time may be on both pages
	}
	slices.Reverse(r.out)
	return r.out, nil
}

// add makes a request out of a row, if it is one that a policy decided. A row without what a request needs is left out: it may be
// of another version.
func (r *recorder) add(row op.AuditRow) {
	var d struct {
		Surface  string `json:"surface"`
		Method   string `json:"method"`
		Scheme   string `json:"scheme"`
		Agent    string `json:"agent"`
		Path     string `json:"path"`
		Service  string `json:"service"`
		Rule     string `json:"rule"`
		Code     string `json:"code"`
		Allowed  *bool  `json:"allowed"`
		Reported bool   `json:"reported"`
		Confined bool   `json:"confined"`
	}
	surface, ok := map[string]string{"gateway.connect": "", "gateway.forward": "", "gateway.execute": surfaceExecute, "gateway.service": surfaceService}[row.Action]
	port := strings.LastIndexByte(row.Target, ':')
	if !ok || row.Phase == audit.PhaseOutcome || port <= 0 || len(r.out) >= maxRecorded || json.Unmarshal(row.Detail, &d) != nil {
		return
	}
	allowed := row.Result != string(audit.Refused)
	if d.Allowed != nil {
		allowed = *d.Allowed
	}
	if d.Confined || !allowed && !byPolicy(d.Code) { // a grant's domains, or an MCP server's hosts, are over with it
		return
	}
	allowed = allowed && !d.Reported // in report mode everything passes; what counts is the verdict
	if row.Action == "gateway.connect" {
		d.Method, d.Scheme, d.Path = policy.Connect, "https", ""
	}
	if d.Method == "" || d.Scheme == "" {
		return
	}
	q := egress.Question{Tenant: row.Tenant, Surface: surface, Service: d.Service, Method: d.Method}
	id, isAgent := strings.CutPrefix(row.Actor, string(identity.KindAgent)+":")
	if d.Agent != "" {
		id, isAgent = d.Agent, true
	}
	if isAgent {
		found, known := r.names[id]
		if !known {
			return // it has been removed
		}
		q.Agent, q.Tenant = found.Name, found.Tenant
		if row.Session != "" && surface == "" {
			q.Surface = surfaceBrowser // it opened the session
		}
	}
	q.URL = d.Scheme + "://" + hostPort(row.Target[:port], row.Target[port+1:], d.Scheme) + d.Path
	if r.seen[q] {
		return
	}
	r.seen[q] = true
	one := recorded{Question: q, Allowed: &allowed}
	if r.withRules {
		one.Rule = &d.Rule
	}
	r.out = append(r.out, one)
}

// byPolicy says whether a code is one of the policy's. Of a row without one it is not known.
func byPolicy(code string) bool {
	return slices.Contains([]string{"", problem.HostDenied, problem.PortDenied, problem.PathDenied, problem.ToolDenied, string(policy.SchemeDenied),
		string(policy.MethodDenied)}, code)
}

// hostPort writes a host as URLs have it. The usual port is left out.
func hostPort(host, port, scheme string) string {
	host = strings.Trim(host, "[]")
	usual := map[string]string{"http": "80", "ws": "80", "https": "443"}[scheme]
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port == usual {
		if strings.Contains(host, ":") {
			return "[" + host + "]"
		}
		return host
	}
	return net.JoinHostPort(host, port)
}
