package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/problem"
)

// clawbotsFile is the file that declares agents, where no other is named.
const clawbotsFile = "clawbots.yml"

// syncOptions are what a sync was asked for.
type syncOptions struct {
	file        string
	request     agent.SyncRequest
	needs       needs
	yes, asJSON bool
}

func newAgentSync(p *program) *cobra.Command {
	var o syncOptions
	cmd := &cobra.Command{
		Use:   "sync [NAME…]",
		Short: "Make the machine match clawbots.yml",
		Long: "Reads a file that declares agents, shows how the machine differs, and makes it match: new agents get a jail with a token " +
			"in it, changed ones are changed, with a new jail where needed. With names, only those agents are looked at. Agents that were declared " +
			"before and are missing now stay, unless --prune is given. It can be repeated at any time, also after one that was interrupted.\n\n" +
			"Root is helped on the machine itself: a template that is missing is built, and when the file names folders beside it that no " +
			"configuration allows, root is asked whether agents may have them.",
		Example: "  clawjail agent sync --dry-run\n  clawjail agent sync -f agents/clawbots.yml --prune --yes",
		Args:    arguments(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && o.request.Prune {
				return usage(cmd, "--prune is about the whole file: leave the names out")
			}
			o.request.Only = args
			return p.sync(cmd, o)
		},
		ValidArgsFunction: completeDeclared(&o.file),
	}
	p.tenantFlag(cmd, &o.request.Tenant)
	fileFlag(cmd, &o.file)
	f := cmd.Flags()
	f.BoolVar(&o.request.DryRun, "dry-run", false, "show what would be done, and do nothing")
	f.BoolVar(&o.request.Prune, "prune", false, "remove agents that were declared before and are missing now, with their state")
	f.BoolVar(&o.request.Adopt, "adopt", false, "take over agents of control planes that are lost or have stopped; what they keep on machines of these stays there")
	f.BoolVar(&o.request.KeepState, "keep-state", false, "with --prune: keep what is in /state, for an agent of the same name")
	f.StringVar(&o.request.Driver, "driver", "", "linux or docker, for agents that name neither template nor image")
	complete(cmd, "driver", "linux", "docker")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask before what cannot be undone")
	o.needs.flags(cmd)
	f.BoolVar(&o.asJSON, "json", false, "print the plan as JSON")
	return cmd
}

// fileFlag adds --file, which is the file that declares agents.
func fileFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "file", "f", clawbotsFile, "`file` that declares the agents; - is standard input")
	if err := cmd.MarkFlagFilename("file", "yml", "yaml"); err != nil {
		panic(err) // there is no such flag: a mistake in this package
	}
}

// completeDeclared completes the names of agents in a file.
func completeDeclared(file *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		const nothing = cobra.ShellCompDirectiveNoFileComp
		text, err := readDeclarations(*file, nil)
		if err != nil {
			return nil, nothing
		}
		parsed, err := clawbots.Parse(*file, text, "/")
		if err != nil {
			return nil, nothing
		}
		var names []string
		for _, a := range parsed.Agents {
			if !slices.Contains(args, a.Name) {
				names = append(names, a.Name)
			}
		}
		return names, nothing
	}
}

// exampleFile is the example of all keys: where a package or `make install` has put it, seen from this program, or in the checkout
// that it was built in.
func exampleFile() string {
	program, err := os.Executable()
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		program = "" // then it is found nowhere
	}
	return exampleBeside(filepath.Dir(program))
}

func exampleBeside(programs string) string {
	const name = "clawbots.yml.example"
	for _, dir := range []string{"../share/doc/clawjail", ".."} {
		path := filepath.Join(programs, dir, name)
		if _, err := os.Stat(path); err == nil && filepath.IsAbs(path) {
			return path
		}
	}
	return name
}

// readDeclarations reads a file that declares agents.
func readDeclarations(name string, stdin io.Reader) ([]byte, error) {
	in := stdin
	if name != standardInput {
		f, err := os.Open(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, problem.New(problem.NotFound, "name one with -f, or begin with "+exampleFile(), "there is no file %s", name)
		case err != nil:
			return nil, fmt.Errorf("read the declarations: %w", err)
		}
		defer f.Close() // it was read
		in = f
	}
	if in == nil {
		return nil, problem.New(problem.BadUsage, "name a file", "there is no standard input")
	}
	text, err := io.ReadAll(io.LimitReader(in, clawbots.MaxText+1))
	if err != nil {
		return nil, fmt.Errorf("read the declarations: %w", err)
	}
	if len(text) > clawbots.MaxText {
		return nil, problem.New(problem.BadRequest, "make several files of it", "%s has more than %d bytes", name, clawbots.MaxText)
	}
	return text, nil
}

// whereItStarts is the folder at which the relative paths of a file start.
func whereItStarts(name string) (string, error) {
	if name == standardInput {
		name = clawbotsFile
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return "", fmt.Errorf("find the folder of %s: %w", name, err)
	}
	return filepath.Dir(path), nil
}

func (p *program) sync(cmd *cobra.Command, o syncOptions) error {
	text, err := readDeclarations(o.file, input(cmd))
	if err != nil {
		return err
	}
	if o.request.Dir, err = whereItStarts(o.file); err != nil {
		return err
	}
	o.request.Text, o.request.Source = string(text), o.file
	if o.file == standardInput {
		o.request.Source = "standard input"
	}
	// Mistakes of the file are told without a control plane.
	if _, err := clawbots.Parse(o.request.Source, text, o.request.Dir); err != nil {
		return mistakes(cmd.ErrOrStderr(), o.request.Source, text, err)
	}
	c, err := p.client()
	if err != nil {
		return err
	}
	// The plan is shown before any of it is done.
	look := o.request
	look.DryRun = true
	plan, err := c.SyncAgents(cmd.Context(), look, nil)
	if !o.request.DryRun && canBeMet(err) {
		n := o.needs
		n.source, n.text, n.dir, n.tenant, n.driver, n.only = o.file, text, o.request.Dir, o.request.Tenant, o.request.Driver, o.request.Only
		met, needErr := p.meet(cmd, n)
		if needErr != nil {
			return needErr
		}
		if met {
			plan, err = c.SyncAgents(cmd.Context(), look, nil)
		}
	}
	if err != nil {
		return mistakes(cmd.ErrOrStderr(), o.request.Source, text, err)
	}
	if !o.asJSON {
		if err := showPlan(cmd.OutOrStdout(), plan); err != nil {
			return err
		}
	}
	if !o.request.DryRun && plan.Changes() {
		removes := plan.Removals()
		if err := agreed(cmd, o, removes); err != nil {
			return err
		}
		// Agents that were declared meanwhile are not removed: the caller did not see them.
		o.request.Removes, o.request.Prune = removes, len(removes) > 0
		plan, err = c.SyncAgents(cmd.Context(), o.request, progressTo(cmd.OutOrStdout(), o.asJSON))
		if err != nil {
			return mistakes(cmd.ErrOrStderr(), o.request.Source, text, err)
		}
	}
	if o.asJSON {
		if err := writeJSON(cmd.OutOrStdout(), plan); err != nil {
			return err
		}
	}
	return unfinished(plan)
}

// agreed asks before agents are removed with what they have kept.
func agreed(cmd *cobra.Command, o syncOptions, names []string) error {
	if len(names) == 0 || o.request.KeepState || o.yes {
		return nil
	}
	if o.file == standardInput {
		return problem.New(problem.BadUsage, "give --yes, or --keep-state", "removing agents with their state needs a confirmation, and standard input is the file")
	}
	return confirm(cmd, "this removes "+strings.Join(names, ", ")+", with everything in /state; it cannot be undone")
}

// mistakes shows what is wrong with a file, each with its line.
func mistakes(w io.Writer, source string, text []byte, err error) error {
	p, ok := problem.As(err)
	if !ok {
		return err
	}
	flaws, ok := p.Details["errors"].([]problem.Flaw)
	if !ok || len(flaws) == 0 {
		return err
	}
	many := &problem.ValidationError{Code: p.Code, Source: source, Hint: p.Hint, Flaws: flaws}
	if _, err := fmt.Fprintln(w, clawbots.Explain(many, text)); err != nil {
		return err
	}
	return problem.New(p.Code, "correct it, and try again: nothing was changed", "%s has %s", source, count(len(flaws), "mistake"))
}

// showPlan writes a plan as people read it.
func showPlan(w io.Writer, plan agent.Plan) error {
	rows := [][]string{{"DO", "NAME", "TENANT", "FROM", "WORKSPACE", "WHY"}}
	for _, s := range plan.Steps {
		rows = append(rows, []string{doing(s), printable(s.Name), s.Tenant, strings.TrimSpace(s.Driver + " " + printable(s.Source)), workspaceOf(s),
			printable(strings.Join(s.Why, "; "))})
	}
	if len(rows) > 1 {
		if err := table(w, manyTenants(rows, 2)); err != nil {
			return err
		}
	}
	var b strings.Builder
	for _, s := range plan.Steps {
		if s.Verb == agent.Unchanged || s.Verb == agent.Extra || s.Verb == agent.Remove {
			continue
		}
		for _, text := range s.Exposes {
			fmt.Fprintf(&b, "%s: %s\n", printable(s.Name), printable(text))
		}
	}
	for _, text := range plan.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", printable(text))
	}
	b.WriteString(inAll(plan) + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// doing is a verb in a plan.
func doing(s agent.Step) string {
	if s.Verb == agent.Extra {
		return "keep" // it is not in the file
	}
	return string(s.Verb)
}

func workspaceOf(s agent.Step) string {
	switch {
	case s.Sharing == "" && s.Workspace == "":
		return "-"
	case s.Workspace == "":
		return string(s.Sharing)
	}
	return strings.TrimSpace(string(s.Sharing) + " " + printable(s.Workspace) + " " + string(s.Mode))
}

// inAll counts what a plan does.
func inAll(plan agent.Plan) string {
	n := map[agent.Verb]int{}
	for _, s := range plan.Steps {
		n[s.Verb]++
	}
	var parts []string
	for _, v := range []agent.Verb{agent.Create, agent.Change, agent.Restart, agent.Remove} {
		if n[v] > 0 {
			parts = append(parts, fmt.Sprintf("%d to %s", n[v], v))
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "nothing to do")
	}
	if n[agent.Unchanged] > 0 {
		parts = append(parts, fmt.Sprintf("%d unchanged", n[agent.Unchanged]))
	}
	if n[agent.Extra] > 0 {
		parts = append(parts, fmt.Sprintf("%d not in the file (--prune removes them)", n[agent.Extra]))
	}
	return strings.Join(parts, ", ")
}

// progressTo writes steps as they are done.
func progressTo(w io.Writer, quiet bool) func(agent.Step) {
	if quiet {
		return nil
	}
	return func(s agent.Step) {
		switch {
		case failed(s):
			fmt.Fprintf(w, "%-9s  %s: %s\n", "failed", printable(s.Name), printable(s.Problem)) // that it cannot be written is seen at the end
		case s.Done && s.Verb != agent.Unchanged && s.Verb != agent.Extra:
			fmt.Fprintf(w, "%-9s  %s  %s\n", done(s.Verb), printable(s.Name), took(s.Took))
		}
	}
}

func failed(s agent.Step) bool { return s.Code != "" || s.Problem != "" }

func done(v agent.Verb) string {
	switch v {
	case agent.Create, agent.Change, agent.Remove:
		return string(v) + "d"
	case agent.Restart:
		return "restarted"
	}
	return string(v)
}

// took is how long a step took, in milliseconds.
func took(ms int64) string {
	if ms < 10_000 {
		return fmt.Sprintf("%d ms", max(ms, 0))
	}
	return age(time.Duration(ms) * time.Millisecond)
}

// unfinished is the error of a plan whose steps were not all done.
func unfinished(plan agent.Plan) error {
	var names, hints []string
	code := ""
	for _, s := range plan.Steps {
		if !failed(s) {
			continue
		}
		names = append(names, printable(s.Name))
		if code == "" {
			code = s.Code
		}
		if s.Hint != "" && !slices.Contains(hints, s.Hint) {
			hints = append(hints, printable(s.Hint))
		}
	}
	if len(names) == 0 {
		return nil
	}
	if code == "" || code == problem.BadUsage {
		code = problem.JailFailed
	}
	if len(hints) == 0 {
		hints = []string{"look at why, and sync again: what was done stays"}
	}
	if len(names) > 10 {
		names = append(names[:10], "and others")
	}
	return problem.New(code, strings.Join(hints, "; "), "not everything was done: %s", strings.Join(names, ", "))
}

// confirm asks whether to go on. Off a terminal nobody is asked, and it is not gone on.
func confirm(cmd *cobra.Command, what string) error {
	refused := problem.New(problem.BadUsage, "give --yes to do it without being asked", "%s", what)
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok {
		return refused
	}
	if _, ok := terminal(in); !ok {
		return refused
	}
	yes, err := ask(cmd, in, printable(what)+".")
	switch {
	case err != nil:
		return err
	case !yes:
		return problem.New(problem.Canceled, "", "nothing was removed")
	}
	return nil
}

// ask puts a question to whoever is at the terminal.
func ask(cmd *cobra.Command, in io.Reader, what string) (yes bool, err error) {
	if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s\ngo on? [y/N] ", what); err != nil {
		return false, err
	}
	return answered(cmd.Context(), in)
}

// answered reads yes or no.
func answered(ctx context.Context, in io.Reader) (bool, error) {
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	// Nothing ends a read from a terminal but a line. When the command is interrupted, the process ends with it.
	go func() {
		text, err := bufio.NewReader(io.LimitReader(in, 100)).ReadString('\n')
		read <- line{text, err}
	}()
	select {
	case l := <-read:
		if l.err != nil && !errors.Is(l.err, io.EOF) {
			return false, fmt.Errorf("read from the terminal: %w", l.err)
		}
		text := strings.ToLower(strings.TrimSpace(l.text))
		return text == "y" || text == "yes", nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
