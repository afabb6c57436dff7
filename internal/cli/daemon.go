package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/controlplane"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/template"
)

// newHostdCommand is `clawjail hostd`.
func newHostdCommand(p *program) *cobra.Command {
	var endJails bool
	cmd := &cobra.Command{
		Use:   "hostd",
		Short: "Run the host daemon alone, for service managers",
		Long: `Runs the half of clawjail that makes jails, as root. The control plane, "clawjail serve", is the other half and
runs as its own user. Jails outlive a restart of the host daemon; those of sessions end when the control plane is gone.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, _, err := p.onHost(cmd) // before Harden: the path may be relative
			if err != nil {
				return err
			}
			o.Notify, o.EndJails = hostd.Notifier(os.Getenv("NOTIFY_SOCKET")), endJails
			if err := hostd.Harden(); err != nil {
				return err
			}
			templates, err := p.templatesOf(o.Config)
			if err != nil {
				return err
			}
			o.Templates = func(ctx context.Context) ([]hostd.Template, error) { return listTemplates(ctx, templates) }
			o.VerifyTemplate = func(ctx context.Context, name string) error {
				_, err := templates.Verify(ctx, name, template.VerifyOptions{Quick: true})
				return err
			}
			if kubernetes := o.Config.Kubernetes; kubernetes.On() {
				o.VerifyTemplate = nil // nothing of them is on this machine
				o.Templates = func(context.Context) ([]hostd.Template, error) { return templatesOfImages(kubernetes.Images), nil }
			}
			return hostd.Run(cmd.Context(), o)
		},
	}
	cmd.Flags().BoolVar(&endJails, "end-jails", false, "end every jail when the host daemon ends")
	return cmd
}

// newServeCommand is `clawjail serve`.
func newServeCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the control plane alone, for service managers",
		Long: "Runs the unprivileged half of clawjail: the API, the sessions and the gateway. The host daemon, `clawjail hostd`, is the " +
			"other half. When the control plane ends, so do all sessions.",
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() == 0 {
				return problem.New(problem.Forbidden, "`clawjail up` starts it as the right user; by hand: sudo -u clawjail clawjail serve",
					"the control plane must not run as root")
			}
			c, log, err := p.configured(cmd)
			if err != nil {
				return config.ForService(p.configFile(), err)
			}
			controlplane.BoundMemory(p.lookupEnv, log)
			return controlplane.Run(cmd.Context(), controlplane.Options{Config: c, Version: p.version, Log: log, Now: p.now,
				Notify: hostd.Notifier(p.getenv("NOTIFY_SOCKET")), Beside: p.beside})
		},
	}
}

// listTemplates translates what the store knows into what the host daemon tells.
func listTemplates(ctx context.Context, store *template.Store) ([]hostd.Template, error) {
	all, err := store.List(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]hostd.Template, 0, len(all))
	for _, t := range all {
		out = append(out, hostd.Template{Name: t.Name, Digest: t.Digest, Created: t.CreatedAt, TaskLimit: t.TaskLimit, Programs: programsOf(t), Again: t.Again()})
	}
	return out, nil
}

// templatesOfImages is what is known of templates whose images are in a cluster.
func templatesOfImages(images map[string]string) []hostd.Template {
	out := make([]hostd.Template, 0, len(images))
	for _, name := range slices.Sorted(maps.Keys(images)) {
		t := template.Expected(name)
		sum := sha256.Sum256([]byte(images[name]))
		out = append(out, hostd.Template{Name: name, Digest: "sha256:" + hex.EncodeToString(sum[:]), TaskLimit: t.TaskLimit, Programs: programsOf(t)})
	}
	return out
}

func programsOf(t template.Template) map[string]hostd.TemplateProgram {
	programs := make(map[string]hostd.TemplateProgram, len(t.Programs))
	for name, p := range t.Programs {
		programs[name] = hostd.TemplateProgram{Path: p.Path, Args: p.Args, Version: p.Version}
	}
	return programs
}

// onHost is what a command of root's works with on this machine, and the path of its configuration.
func (p *program) onHost(cmd *cobra.Command) (o hostd.RunOptions, path string, err error) {
	if err := needRoot(cmd); err != nil {
		return o, "", err
	}
	if o.Config, path, err = p.trusted(); err != nil {
		return o, "", err
	}
	o.Substrate, o.Version, o.Now = hostd.ThisHost(), p.version, p.now
	o.Log, err = logger(o.Config.Log, cmd.ErrOrStderr())
	return o, path, err
}

// trusted reads the configuration for a process with root's rights, and says by which path.
func (p *program) trusted() (c config.Config, path string, err error) {
	if path = p.configFile(); path != "" {
		if path, err = filepath.Abs(path); err != nil {
			return c, "", fmt.Errorf("find the configuration: %w", err)
		}
	}
	c, err = config.LoadTrusted(path)
	return c, path, err
}
