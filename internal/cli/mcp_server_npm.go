package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/template"
)

// npmServer is an MCP server that is a package of npm.
type npmServer struct{ what, bin, scripts string }

func (n *npmServer) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&n.what, "npm", "", "as root: run a program of this `package` of npm, as PACKAGE or PACKAGE@VERSION")
	f.StringVar(&n.bin, "bin", "", "with --npm: which of its `programs`, where there are several")
	npmScriptsFlag(cmd, &n.scripts)
}

func npmScriptsFlag(cmd *cobra.Command, scripts *string) {
	cmd.Flags().StringVar(scripts, "install-scripts", "", "with a package of npm: run or skip what its packages want to run when they are installed")
	complete(cmd, "install-scripts", template.NPMScriptsRun, template.NPMScriptsSkip)
}

// fromNPM makes a server of a package, where one is asked for: its template, and its command. keep is called when it is known
// whether the server was added. A template that was built for one that was not is removed.
func (p *program) fromNPM(cmd *cobra.Command, of npmServer, r *op.MCPServerRequest) (keep func(added bool) error, err error) {
	keep = func(bool) error { return nil }
	if of.what == "" {
		if of.bin != "" || of.scripts != "" {
			return keep, usage(cmd, "--bin and --install-scripts go with --npm")
		}
		return keep, nil
	}
	if r.Place != "" || r.Agent != "" {
		return keep, usage(cmd, "--npm makes a template: leave --template and --agent out")
	}
	if p.getenv(urlVariable) != "" {
		return keep, problem.New(problem.BadUsage, "run it on the machine of the control plane, without "+urlVariable, "--npm builds a template on this machine")
	}
	store, _, err := p.templates(cmd)
	if err != nil {
		return keep, err
	}
	found, err := store.FindNPM(cmd.Context(), of.what)
	if err != nil {
		return keep, withOutput(err)
	}
	bin, err := found.Program(of.bin)
	if err != nil {
		return keep, err
	}
	checked := *r
	checked.Place, checked.Command = "npm", append([]string{"/program"}, r.Command...)
	if err := checked.Validate(); err != nil {
		return keep, err
	}
	if _, err := p.buildMissing(cmd, []string{"clawbot"}); err != nil {
		return keep, err
	}
	name, source, err := store.NPMTemplate(cmd.Context(), found, of.scripts)
	if err != nil {
		return keep, err
	}
	t, err := store.Get(cmd.Context(), name)
	if err != nil || t.Source != source {
		t, _, err = buildTemplate(cmd, store, template.BuildOptions{Name: name, From: "npm:" + found.Name + "@" + found.Version, NPMScripts: of.scripts}, false, p.now)
		if err != nil {
			return keep, err
		}
		keep = func(added bool) error {
			if added {
				return nil
			}
			if err := store.Remove(context.WithoutCancel(cmd.Context()), name); err != nil {
				return fmt.Errorf("the template %s was built for it and is left; remove it with `clawjail template rm %s`: %w", name, name, err)
			}
			return nil
		}
	}
	start, ok := t.NPMCommand(bin)
	if !ok {
		err := problem.New(problem.BadTemplate, "take another version of it", "the package %s@%s does not have its program %s", found.Name, found.Version, printable(bin))
		return keep, errors.Join(err, keep(false))
	}
	r.Place, r.Command = name, append(start, r.Command...)
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s %s, with Node %s, is the template %s\n", found.Name, found.Version, t.Programs[template.ProgramNode].Version, name)
	return keep, err
}
