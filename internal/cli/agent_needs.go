package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/controlplane"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/template"
)

// needs is what root can add to this machine when declared agents cannot be made without it: a template, and the yes to folders
// that lie beside the file. Other users, and root with the control plane of another machine, are told by the control plane what is missing.
type needs struct {
	// source is the name of the file, text what it says, and dir where its relative paths start.
	source string
	text   []byte
	dir    string
	tenant string
	driver string
	only   []string
	// folders says yes to the folders, without a question. noBuild builds no template.
	folders, noBuild bool
}

// flags adds those of what may be added.
func (n *needs) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&n.folders, "allow-folders", false, "as root: let agents be given the folders beside the file that it names, from now on, without being asked")
	noBuildFlag(cmd, &n.noBuild)
}

// meet adds what is missing, and says whether there is anything new, so that it is worth to try again.
func (p *program) meet(cmd *cobra.Command, n needs) (met bool, err error) {
	if !p.isHere() {
		return false, nil
	}
	file, err := clawbots.Parse(n.source, n.text, n.dir)
	if err != nil {
		return false, nil // the control plane has said so
	}
	agents := slices.DeleteFunc(file.Agents, func(a clawbots.Agent) bool { return len(n.only) > 0 && !slices.Contains(n.only, a.Name) })
	c, _, err := p.trusted()
	if err != nil {
		return false, err
	}
	allowed, err := allowFolders(cmd, c, n, agents)
	if err != nil || n.noBuild {
		return allowed, err
	}
	built, err := p.buildMissing(cmd, templatesOf(agents, cmp.Or(n.driver, controlplane.DefaultDriver(c.Agents.Driver))))
	return allowed || built, err
}

// isHere says whether root speaks to the installation of this machine, and can add to it.
func (p *program) isHere() bool { return os.Geteuid() == 0 && p.getenv(urlVariable) == "" }

// withTemplate does something that needs a template. Where that is missing, it is built, if it can be, and the thing is done again.
func (p *program) withTemplate(cmd *cobra.Command, name string, noBuild bool, do func() error) error {
	err := do()
	if noBuild || problem.CodeOf(err) != problem.TemplateMissing || !p.isHere() {
		return err
	}
	built, buildErr := p.buildMissing(cmd, []string{cmp.Or(name, session.DefaultTemplate)})
	if buildErr != nil {
		return buildErr
	}
	if !built {
		return err
	}
	return do()
}

// noBuildFlag adds --no-build.
func noBuildFlag(cmd *cobra.Command, noBuild *bool) {
	cmd.Flags().BoolVar(noBuild, "no-build", false, "build no template that is missing")
}

// canBeMet says whether the refusal of a declaration may be about what can be added, and about nothing else: what is added stays.
func canBeMet(err error) bool {
	p, ok := problem.As(err)
	if !ok || !slices.Contains([]string{problem.TemplateMissing, problem.Forbidden, problem.BadRequest}, p.Code) {
		return false
	}
	flaws, _ := p.Details["errors"].([]problem.Flaw)
	lacks := func(name string) bool {
		return slices.ContainsFunc(flaws, func(f problem.Flaw) bool { return f.Field == name+".workspace" || f.Field == name+".template" })
	}
	if len(flaws) == 1 && p.Code == problem.Forbidden {
		return true // a folder of an agent that was declared with it before
	}
	for _, f := range flaws {
		// The host daemon names no field. Of an agent that lacks something it may be that.
		name, _, _ := strings.Cut(f.Field, ".")
		if !lacks(name) || f.Field != name && f.Field != name+".workspace" && f.Field != name+".template" {
			return false
		}
	}
	return true
}

// templatesOf are the templates that agents are made of.
func templatesOf(agents []clawbots.Agent, driver string) []string {
	var out []string
	for _, a := range agents {
		if a.Template != "" || a.Image == "" && driver == agent.DriverLinux {
			out = append(out, cmp.Or(a.Template, agent.DefaultTemplate))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// buildMissing builds those of the templates that clawjail knows how to make and that are not there.
func (p *program) buildMissing(cmd *cobra.Command, names []string) (built bool, err error) {
	for _, name := range names {
		if _, known := template.Recipes()[name]; !known {
			continue
		}
		made, err := p.ensureTemplate(cmd.Context(), cmd, name, cmd.ErrOrStderr())
		if err != nil {
			return built, err
		}
		built = built || made
	}
	return built, nil
}

// ensureTemplate builds a template, unless there is one. One that is there and not as it was built is left to the host daemon,
// which refuses to make jails of it: the user did not ask for another.
func (p *program) ensureTemplate(ctx context.Context, cmd *cobra.Command, name string, w io.Writer) (built bool, err error) {
	store, _, err := p.templates(cmd)
	if err != nil {
		return false, err
	}
	if _, there, err := store.Find(ctx, name); err != nil || there {
		return false, err
	}
	if _, err := fmt.Fprintf(w, "there is no template %s yet; it is built once, which takes about two minutes and %s of the disk\n", name,
		size(template.Recipes()[name].NeedBytes)); err != nil {
		return false, err
	}
	t, built, err := buildTemplate(cmd, store, template.BuildOptions{Name: name}, true, p.now)
	if err != nil || !built {
		return err == nil, err // what another has built meanwhile is new as well
	}
	_, err = fmt.Fprintf(w, "built %s: %d files, %s\n", t.Name, t.Files, size(t.Size))
	return true, err
}

// allowFolders asks whether agents may have the folders beside the file that it names and that lie beneath none of the roots, and
// writes a yes down. Folders elsewhere are for the configuration to allow.
func allowFolders(cmd *cobra.Command, c config.Config, n needs, agents []clawbots.Agent) (allowed bool, err error) {
	if cmp.Or(n.tenant, jail.DefaultTenant) != jail.DefaultTenant {
		return false, nil // those of another tenant lie beneath its own folder of a root
	}
	roots, err := jail.RootsFor(jail.DefaultTenant, c.Agents.WorkspaceRoots, func() ([]string, error) { return hostd.UsableRoots(c) })
	if err != nil {
		return false, err
	}
	tops, err := foldersBeside(n.dir, roots, agents)
	if err != nil || len(tops) == 0 {
		return false, err
	}
	fresh := make([]hostd.AddedRoot, len(tops))
	for i, dir := range tops {
		if fresh[i], err = hostd.NewRoot(c, dir); err != nil {
			return false, err
		}
	}
	if !n.folders {
		in, is := cmd.InOrStdin().(*os.File)
		if is {
			_, is = terminal(in)
		}
		if !is || n.source == standardInput {
			return false, problem.New(problem.Forbidden, "run it on a terminal, which asks, or say yes with --allow-folders",
				"%s gives agents folders beneath %s, which are not allowed yet", printable(n.source), printable(strings.Join(tops, ", ")))
		}
		yes, err := ask(cmd, in, folderQuestion(c, n.source, fresh))
		if err != nil {
			return false, err
		}
		if !yes {
			return false, problem.New(problem.Canceled, "use folders beneath "+strings.Join(c.Agents.WorkspaceRoots, ", "), "nothing was changed")
		}
	}
	for _, r := range fresh {
		if err := hostd.AddRoot(c, r); err != nil {
			return false, err
		}
		if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "agents of the tenant default may be given folders beneath %s from now on\n", printable(r.Path)); err != nil {
			return false, err
		}
	}
	return true, nil
}

// foldersBeside are the folders directly beneath the file's own that hold workspaces which lie beneath none of the roots. The
// file's own folder is none: an agent could write the file, and be whatever it likes when root syncs it again.
func foldersBeside(dir string, roots []string, agents []clawbots.Agent) ([]string, error) {
	var out []string
	for _, a := range agents {
		if a.Workspace == "" {
			continue
		}
		if _, err := jail.GrantFor("workspace_roots", roots, jail.DefaultTenant, a.Workspace); err == nil {
			continue
		}
		if dir == a.Workspace || strings.HasPrefix(dir, a.Workspace+"/") {
			return nil, problem.New(problem.Forbidden, "write ./workspaces/"+a.Name, "the workspace of %s would hold the file that declares it", a.Name)
		}
		rest, beside := strings.CutPrefix(a.Workspace, strings.TrimSuffix(dir, "/")+"/")
		if !beside || dir == "/" {
			continue
		}
		first, _, _ := strings.Cut(rest, "/")
		out = append(out, filepath.Join(dir, first))
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// folderQuestion says what a yes means.
func folderQuestion(c config.Config, source string, fresh []hostd.AddedRoot) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s gives agents folders that nobody has allowed yet. With a yes, from now on admins of this installation can\n"+
		"give agents of the tenant default everything beneath\n", printable(source))
	for _, r := range fresh {
		fmt.Fprintf(&b, "  %s", printable(r.Path))
		if r.Owner != 0 {
			fmt.Fprintf(&b, "   of user %d, who can put something else there", r.Owner)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "to read and to change, whatever the file says. It is remembered in %s;\n"+
		"a line that is removed there takes it back.", hostd.WorkspaceRootsFile(c))
	return b.String()
}
