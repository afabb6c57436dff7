package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/task"
)

// maxSchemaFile bounds the file of a schema, in bytes; the control plane takes less.
const maxSchemaFile = 1 << 20

func newRunTaskCommand(p *program) *cobra.Command {
	var request task.Request
	var asJSON, noBuild bool
	var token, schema string
	var dialect string
	cmd := &cobra.Command{
		Use:   "run-task GOAL",
		Short: "Have a model reach a goal in a browser of its own",
		Long: "Open a session, show a model the page as text, do the one thing that it answers, and so on until it has the answer to the goal, which is " +
			"printed. The steps are on standard error, as they are done. Ctrl-C stops it, and so does closing the session; the session is closed in any case.\n\n" +
			"It is done as an agent: with its models, budget, rules and accounts. An agent's token is enough; an operator names one with --agent.",
		Example: "  clawjail run-task --agent shopper --url https://example.com/ 'Which orders are not paid?'\n" +
			"  clawjail run-task --agent shopper --mode operator --domain example.com --schema orders.schema.json --json 'List my orders'",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := p.grantText(cmd, token, request.CredentialMode)
			if err != nil {
				return err
			}
			request.Grant, request.Goal, request.Dialect = grant.ParseToken(text), args[0], task.Dialect(dialect)
			if schema != "" {
				if request.Schema, err = readSchemaFile(schema); err != nil {
					return err
				}
			}
			return p.runTask(cmd, request, asJSON, noBuild)
		},
	}
	f := cmd.Flags()
	f.StringVar(&request.Agent, "agent", "", "`agent` as which it is done; an agent's token needs none")
	f.StringVar(&request.URL, "url", "", "`page` to begin with")
	f.StringVar(&request.Model, "model", "", "`model` to ask, where the agent may use several")
	f.StringVar(&dialect, "dialect", "", "how the model is asked, where its provider does not say: anthropic, openai-chat or openai-responses")
	f.StringVar(&schema, "schema", "", "`file` with a JSON Schema of the answer")
	f.BoolVar(&request.Pictures, "pictures", false, "show the model a picture of each page as well")
	f.IntVar(&request.MaxSteps, "max-steps", 0, fmt.Sprintf("`number` of answers of the model, at most %d (default %d)", task.MaxSteps, task.DefaultSteps))
	f.Int64Var(&request.MaxTokens, "max-tokens", 0, fmt.Sprintf("`number` of tokens, in and out (default %d)", task.DefaultTokens))
	f.StringVar(&request.Timeout, "timeout", "", "how long all of it may take, such as 10m, at most 30m (default 5m)")
	f.StringVar(&request.CredentialMode, "mode", "", "clean (the default), or operator: with accounts")
	f.StringSliceVar(&request.Domains, "domain", nil, "`domain` whose account the session has")
	f.StringVar(&token, "grant", "", "`token` of the grant, - for standard input; better put it into $"+grantVariable)
	f.StringVar(&request.Browser, "browser", "", "`build` of Chromium: shell (the default) or full")
	f.StringVar(&request.Label, "label", "", "`text` to recognise the session by")
	f.StringVar(&request.Record, "record", "", "transient (the default) keeps the last screenshots until it ends, audit every step for a week, off nothing")
	p.tenantFlag(cmd, &request.Tenant)
	noBuildFlag(cmd, &noBuild)
	f.BoolVar(&asJSON, "json", false, "print the answer with what it took")
	complete(cmd, "mode", session.ModeClean, session.ModeOperator)
	complete(cmd, "browser", "shell", "full")
	complete(cmd, "record", "transient", "audit", "off")
	complete(cmd, "dialect", string(task.Anthropic), string(task.Chat), string(task.Responses))
	p.completeFlag(cmd, "domain", domainsOfSets)
	p.completeFlag(cmd, "agent", agentNames)
	if err := cmd.MarkFlagFilename("schema", "json"); err != nil {
		panic(err) // there is no such flag: a mistake in this package
	}
	return cmd
}

// readSchemaFile reads the file of a schema, and refuses one that is not JSON. The control plane checks the rest.
func readSchemaFile(name string) (json.RawMessage, error) {
	info, err := os.Stat(name)
	if err == nil && info.Size() > maxSchemaFile {
		err = fmt.Errorf("it has more than %d bytes", maxSchemaFile)
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, problem.Wrap(err, problem.BadSchema, "name a file with a JSON Schema", "the schema %s cannot be read", printable(name))
	}
	if !json.Valid(text) {
		return nil, problem.New(problem.BadSchema, "name a file with a JSON Schema", "%s is not JSON", printable(name))
	}
	return text, nil
}

func (p *program) runTask(cmd *cobra.Command, request task.Request, asJSON, noBuild bool) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	tell := func(s task.Step) {
		line := fmt.Sprintf("%d/%d %s", s.Number, s.Max, printable(s.Do))
		if s.Number == 0 {
			line = printable(s.Do)
		}
		if s.Do == task.Opened {
			line += " " + printable(s.Session)
		}
		if s.Code != "" {
			line += ": " + printable(s.Code)
		} else if s.URL != "" && !strings.Contains(line, printable(s.URL)) {
			line += "  " + printable(s.URL)
		}
		fmt.Fprintln(cmd.ErrOrStderr(), line) // progress that nobody sees is no reason to stop
	}
	var out task.Result
	if err := p.withTemplate(cmd, request.Template, noBuild, func() (err error) {
		out, err = c.RunTask(cmd.Context(), request, tell)
		return err
	}); err != nil {
		return err
	}
	for _, r := range out.NeedsRefresh {
		fmt.Fprintf(cmd.ErrOrStderr(), "the login of %s is gone: clawjail cookies refresh %[1]s\n", printable(r.Domain)) // likewise
	}
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), out)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), answerText(out.Answer))
	return err
}

// answerText is an answer as people read it: a text line by line, everything else as JSON.
func answerText(answer json.RawMessage) string {
	var text string
	if json.Unmarshal(answer, &text) != nil {
		return printable(string(answer))
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for n, line := range lines {
		lines[n] = printable(line)
	}
	return strings.Join(lines, "\n")
}
