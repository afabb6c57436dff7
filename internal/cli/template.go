package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/template"
)

func newTemplateCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "template",
		Short: "Build and check what jails are made from",
		Long: "A template is a read-only root filesystem without any credential. Jails are clones of it. These commands need root: " +
			"building runs the scripts of packages.",
	})
	cmd.AddCommand(newTemplateBuild(p), newTemplateList(p), newTemplateVerify(p), newTemplateImage(p), newTemplateImport(p), newTemplateRemove(p))
	return cmd
}

// templates opens the folder of templates.
func (p *program) templates(cmd *cobra.Command) (*template.Store, config.Config, error) {
	if err := needRoot(cmd); err != nil {
		return nil, config.Config{}, err
	}
	c, err := config.LoadTrusted(p.configFile())
	if err != nil {
		return nil, c, err
	}
	store, err := p.templatesOf(c)
	return store, c, err
}

// templatesOf opens the folder of templates of an installation, for root.
func (p *program) templatesOf(c config.Config) (*template.Store, error) {
	trees, err := hostd.Trees(c)
	if err != nil {
		return nil, err
	}
	place, err := templatePlace(c)
	if err != nil {
		return nil, err
	}
	return template.New(template.Config{Dir: c.TemplatesDir, Cache: filepath.Join(c.DataDir, "cache", "debs"), Clock: p.now,
		Trees: trees, Place: place, Owner: c.DataDir,
		Jails: func(ctx context.Context, name string) ([]string, error) { return jailsOf(ctx, c, name) }})
}

// jailsOf asks the host daemon for the jails of a template. While that does not run, jails of it may still do: then its journal
// has records, and nothing is known about them here.
func jailsOf(ctx context.Context, c config.Config, name string) (names []string, err error) {
	jails, err := hostd.NewClient(hostd.SocketPath(c), nil).List(ctx)
	if err == nil {
		for _, j := range jails {
			if j.Spec.Template == name {
				names = append(names, string(j.Name))
			}
		}
		return names, nil
	}
	if problem.CodeOf(err) != problem.HostdUnreachable {
		return nil, err
	}
	records, globErr := filepath.Glob(filepath.Join(c.DataDir, "journal", "*.json"))
	if globErr != nil {
		return nil, globErr
	}
	if len(records) > 0 {
		return nil, problem.Wrap(err, problem.HostdUnreachable, "start it, so that it can say: sudo clawjail up",
			"%d jails may still be running, and the host daemon, which knows, does not answer", len(records))
	}
	return nil, nil
}

func newTemplateBuild(p *program) *cobra.Command {
	var options template.BuildOptions
	var asJSON, ifMissing bool
	cmd := &cobra.Command{
		Use:   "build NAME",
		Short: "Build a template",
		Long: "Build a template: from Debian packages (the templates \"browser\" and \"clawbot\"), an image, a package of npm (beside the template \"clawbot\"), or a folder; on FreeBSD " +
			"from the base system and packages, or from a jail of Bastille's. An interrupted build leaves nothing. " +
			"Sources are trusted: take images and folders from people you would let run programs as root.",
		Example: "  sudo clawjail template build browser\n  sudo clawjail template build mine --from oci:registry.example.com/image:tag",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := template.CheckName(args[0]); err != nil {
				return err // before root is asked for
			}
			if ifMissing && options.Replace {
				return usage(cmd, "--replace and --if-missing exclude each other")
			}
			store, _, err := p.templates(cmd)
			if err != nil {
				return err
			}
			options.Name = args[0]
			t, built, err := buildTemplate(cmd, store, options, ifMissing, p.now)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), t)
			}
			if !built {
				return said(cmd, "the template %s is there already", t.Name)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "built %s: %d files, %s, %s\n", t.Name, t.Files, size(t.Size), t.Digest)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&options.From, "from", "", "`source`: debian (the default), oci:REF, oci-archive:FILE, npm:PACKAGE[@VERSION] or dir:PATH; on FreeBSD base.txz (the "+
		"default), base.txz:FILE, bastille, bastille:JAIL or dir:PATH")
	f.StringSliceVar(&options.With, "with", nil, "`extras` of a template from packages, such as node")
	npmScriptsFlag(cmd, &options.NPMScripts)
	f.BoolVar(&options.Replace, "replace", false, "replace the template when there is one; the old one stays until the new one is complete, and for jails that run from it until they end")
	f.BoolVar(&ifMissing, "if-missing", false, "do nothing when there is a template of that name, however it was built")
	f.BoolVar(&asJSON, "json", false, "print what is known of the template")
	return cmd
}

// buildTemplate builds a template, always or where there is none of its name, and shows how far it is.
func buildTemplate(cmd *cobra.Command, store *template.Store, options template.BuildOptions, ifMissing bool, now func() time.Time) (t template.Template, built bool, err error) {
	show := newProgress(cmd.ErrOrStderr(), now)
	options.Progress = func(p template.Progress) { show.step(step(p)) }
	if ifMissing {
		t, built, err = store.Ensure(cmd.Context(), options)
	} else {
		t, err = store.Build(cmd.Context(), options)
		built = err == nil
	}
	show.end()
	if err != nil {
		return t, false, withOutput(err)
	}
	return t, built, nil
}

// withOutput shows a tool's last lines in front of the error that they explain.
func withOutput(err error) error {
	p, ok := problem.As(err)
	if !ok {
		return err
	}
	lines, ok := p.Details["output"].([]string)
	if !ok || len(lines) == 0 {
		return err
	}
	shown := problem.New(p.Code, p.Hint, "%s", p.Message)
	shown.Err = errors.New("its last lines were:\n  " + strings.Join(lines, "\n  "))
	return shown
}

func newTemplateList(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List templates",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, _, err := p.templates(cmd)
			if err != nil {
				return err
			}
			// Templates that could be read are shown, also when others could not.
			found, listErr := store.List(cmd.Context())
			if asJSON {
				if found == nil {
					found = []template.Template{}
				}
				err = writeJSON(cmd.OutOrStdout(), found)
			} else {
				err = table(cmd.OutOrStdout(), templateRows(found, p.now()))
				for _, t := range found {
					err = errors.Join(err, sayLacks(cmd, t.Name, t.Lacks(), t.Again()))
				}
			}
			if listErr != nil {
				return listErr
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// sayLacks says that a template was built by an earlier version.
func sayLacks(cmd *cobra.Command, name string, packages []string, again string) error {
	if len(packages) == 0 {
		return nil
	}
	return said(cmd, "an earlier version has built %s, without %s; build it again: %s", name, strings.Join(packages, ", "), again)
}

func templateRows(all []template.Template, now time.Time) [][]string {
	rows := [][]string{{"NAME", "SOURCE", "AGE", "SIZE", "PROGRAMS", "DIGEST"}}
	for _, t := range all {
		var programs []string
		for name := range t.Programs {
			programs = append(programs, name)
		}
		slices.Sort(programs)
		const shown = len("sha256:") + 12
		digest := t.Digest
		if len(digest) > shown {
			digest = digest[:shown]
		}
		rows = append(rows, []string{t.Name, t.Source, age(now.Sub(t.CreatedAt)), size(t.Size), strings.Join(programs, ","), digest})
	}
	return rows
}

func newTemplateVerify(p *program) *cobra.Command {
	var options template.VerifyOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify [NAME]",
		Short: "Verify that a template is as it was built, and free of credentials",
		Args:  arguments(0, 1),

		ValidArgsFunction: p.completeTemplates,
		RunE: func(cmd *cobra.Command, args []string) error {
			store, _, err := p.templates(cmd)
			if err != nil {
				return err
			}
			name := "browser"
			if len(args) == 1 {
				name = args[0]
			}
			began := p.now()
			report, verifyErr := store.Verify(cmd.Context(), name, options)
			switch {
			case asJSON && report.Template != "":
				err = writeJSON(cmd.OutOrStdout(), report)
			case !asJSON && verifyErr == nil:
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is as it was built: %d files, %d read, in %s\n", name, report.Files, report.Read,
					p.now().Sub(began).Round(time.Millisecond))
			}
			if verifyErr != nil || err != nil || asJSON {
				return cmp.Or(verifyErr, err)
			}
			return sayLacks(cmd, name, report.Lacks, report.Again)
		},
	}
	cmd.Flags().BoolVar(&options.Quick, "quick", false, "read only what the file system says has been touched")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newTemplateRemove(p *program) *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME…",
		Aliases: []string{"remove"},
		Short:   "Remove templates",
		Args:    arguments(1, -1),

		ValidArgsFunction: p.completeTemplates,
		RunE: func(cmd *cobra.Command, args []string) error {
			store, _, err := p.templates(cmd)
			if err != nil {
				return err
			}
			return each(cmd, args, func(name string) error { return store.Remove(cmd.Context(), name) })
		},
	}
}
