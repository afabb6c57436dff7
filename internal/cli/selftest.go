package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/selftest"
	"github.com/clawjail/clawjail/internal/template"
)

func newSelftestCommand(p *program) *cobra.Command {
	var cycles int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Try on this machine that everything works and nothing is left behind",
		Long: `Runs a private instance of clawjail beside the machine's own, opens browsers in jails, loads an HTTPS page that it
serves itself through the gateway, takes screenshots, kills everything while a browser runs, and compares the host with
what it was before. It needs root, and the template "browser".`,
		Example: "  sudo clawjail selftest --cycles 10",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := p.selftestOptions(cmd)
			if err != nil {
				return err
			}
			o.Cycles = cycles
			o.Say = func(text string) { sayProgress(cmd.ErrOrStderr(), text) }
			report, err := selftest.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), report)
			} else {
				err = report.Write(cmd.OutOrStdout())
			}
			if err == nil && !report.OK {
				err = problem.New(problem.JailFailed, "`clawjail doctor` shows what this host can do", "the self-test did not pass")
			}
			return err
		},
	}
	cmd.Flags().IntVar(&cycles, "cycles", 10, "`number` of sessions that are opened, used and closed")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newDemoCommand(p *program) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "demo [URL]",
		Short: "Open a jailed browser, load a page, take a screenshot, and leave nothing behind",
		Long: `Runs a private instance of clawjail, and shows the main job step by step. Without a URL it loads an HTTPS page that
it serves itself; with one it needs the public web. It needs root, and the template "browser".`,
		Args: arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := p.selftestOptions(cmd)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			o.Say = func(text string) { fmt.Fprintln(out, text) } // a reader who left is noticed at the end
			address := ""
			if len(args) == 1 {
				address = args[0]
			}
			return selftest.Demo(cmd.Context(), o, address, file)
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "clawjail-demo.png", "`file` for the screenshot")
	return cmd
}

// selftestOptions are for the machine's own installation.
func (p *program) selftestOptions(cmd *cobra.Command) (selftest.Options, error) {
	if err := needRoot(cmd); err != nil {
		return selftest.Options{}, err
	}
	c, _, err := p.trusted()
	if err != nil {
		return selftest.Options{}, err
	}
	binary, err := os.Executable()
	if err != nil {
		return selftest.Options{}, fmt.Errorf("find this program: %w", err)
	}
	if binary, err = filepath.EvalSymlinks(binary); err != nil {
		return selftest.Options{}, fmt.Errorf("find this program: %w", err)
	}
	store, err := template.New(template.Config{Dir: c.TemplatesDir, Clock: p.now})
	if err != nil {
		return selftest.Options{}, err
	}
	return selftest.Options{
		Binary: binary, Config: c, Now: p.now, Pace: p.pace(cmd.Context()),
		Verify: func(ctx context.Context) error {
			_, err := store.Verify(ctx, "browser", template.VerifyOptions{})
			return err
		},
	}, nil
}

// sayProgress writes one line: over the last one on a terminal, below it elsewhere.
func sayProgress(w io.Writer, text string) {
	if _, tty := terminal(w); tty {
		fmt.Fprintf(w, "\r\x1b[K%s", text) // progress is not a result: a failure to show it changes nothing
		return
	}
	fmt.Fprintln(w, text)
}
