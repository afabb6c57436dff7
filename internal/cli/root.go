// Package cli is the command line of clawjail.
//
// Every command promises this: it exits with 0 when it did what was asked, 1 when it did not, and 2 when the command
// line was not valid. Results go to standard output and nothing else does. Errors are on standard error, in
// lines that begin with "clawjail: error:", followed by one with "clawjail: hint:" where something can be done about
// it, and a last one with its code, as "clawjail: [not_found]", for programs and for docs/codes.md. Listings have --json. A program that is run for the user ends the command with its own status. Nothing asks a
// question where standard input is no terminal. Where it is one, secrets are asked for (`secret set`,
// `session open --grant -`), and acts that cannot be undone are asked about; elsewhere those need --yes.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/controlplane"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// Exit statuses.
const (
	exitDone        = 0
	exitFailure     = 1
	exitUsage       = 2
	exitPartly      = 3   // what was asked for first is done, and not the rest
	exitInterrupted = 130 // as shells say it
)

// program is what all commands share: what was said before the command, and the world around the process.
type program struct {
	version string
	file    string // --config
	getenv  func(string) string
	// lookupEnv also tells a variable that is empty from one that is not set.
	lookupEnv func(string) (string, bool)
	now       func() time.Time
	beside    []controlplane.Beside
}

// configFile is the configuration file to use, empty when there is none.
func (p *program) configFile() string { return config.Find(p.file) }

// config reads the configuration.
func (p *program) config() (config.Config, error) { return config.Load(p.configFile()) }

// New makes the command clawjail. version is what `clawjail version` prints; beside is attached to its control plane.
func New(version string, beside ...controlplane.Beside) *cobra.Command {
	p := &program{version: version, getenv: os.Getenv, lookupEnv: os.LookupEnv, now: time.Now, beside: beside}
	root := &cobra.Command{
		Use:   "clawjail",
		Short: "A jail keeper for AI agents",
		Long: "clawjail gives AI agents disposable computers and browsers, in jails whose only way out is a gateway that enforces policy.\n\n" +
			"Start it with `sudo clawjail up`, then open a browser with `sudo clawjail session open`.",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	root.PersistentFlags().StringVar(&p.file, "config", "",
		"configuration `file` (default $"+config.Variable+", else ~/.config/clawjail/clawjail.yml, else "+config.SystemFile+")")
	group(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if word := cmd.Flags().Arg(0); word != "" && cmd.HasSubCommands() {
			return noCommand(cmd, word) // whose flag it would be
		}
		return usage(cmd, "%s", err)
	})
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return filled(cmd) }
	root.AddCommand(
		newUpCommand(p), newHostdCommand(p), newServeCommand(p), newConsoleCommand(p),
		newSessionCommand(p), newRunTaskCommand(p), newRecordingCommand(p), newTemplateCommand(p), newStatusCommand(p), newReapCommand(p), newSelftestCommand(p), newDemoCommand(p),
		newDoctorCommand(p), newBrowserCommand(p), newMCPCommand(p), newMCPServerCommand(p),
		newCookiesCommand(p), newSecretCommand(p), newVaultCommand(p), newGrantCommand(p), newAuditCommand(p),
		newTenantCommand(p), newNodeCommand(p), newOperatorCommand(p), newAgentCommand(p), newSpawnCommand(p), described(p, op.WhoAmI()),
		newRulesCommand(p), newServiceCommand(p), newProviderCommand(p), newAccessCommand(p), described(p, op.ListUsage()),
		newRelayCommand(p), newBackupCommand(p), newRestoreCommand(p), newUninstallCommand(p), newSupportBundleCommand(p), newVersionCommand(p),
	)
	sayLists(root)
	helpOf(root)
	return root
}

// helpOf has `clawjail help` refuse words that are no commands.
func helpOf(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() != "help" {
			continue
		}
		cmd.Run, cmd.RunE = nil, func(_ *cobra.Command, args []string) error {
			of, rest, err := root.Find(args)
			switch {
			case err != nil:
				return err
			case len(rest) > 0 && of.HasSubCommands():
				return noCommand(of, rest[0])
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		}
	}
}

// sayLists has the help of every flag that takes several values say how: texts that are words are parted by commas as well.
func sayLists(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		how := map[string]string{"stringArray": "; may be repeated", "stringSlice": "; may be repeated, or be a list with commas"}[f.Value.Type()]
		text, rest, found := strings.Cut(f.Usage, " (default ")
		if f.Usage = text + how; found {
			f.Usage += " (default " + rest
		}
	})
	for _, c := range cmd.Commands() {
		sayLists(c)
	}
}

// Main runs the command line and returns the exit status.
func Main(ctx context.Context, version string, args []string, out, errs io.Writer, beside ...controlplane.Beside) int {
	root := New(version, beside...)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	status := exitStatus(errs, root.ExecuteContext(ctx))
	if status == exitFailure && ctx.Err() != nil {
		return exitInterrupted
	}
	return status
}

// exitStatus reports an error, and says with what status it ends the process.
func exitStatus(errs io.Writer, err error) int {
	if err == nil {
		return exitDone
	}
	var status ExitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	if failed := new(fs.PathError); errors.As(err, &failed) && failed.Op == "write" && failed.Path == os.Stdout.Name() {
		err = problem.Wrap(failed.Err, problem.Internal, "what the command makes may be there: list it before you run the command again", "the answer could not be written to standard output")
	}
	report(errs, err)
	if problem.CodeOf(err) == problem.BadUsage {
		return exitUsage
	}
	return exitFailure
}

// report writes an error as people read it.
func report(w io.Writer, err error) {
	say := func(kind, text string) {
		for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
			fmt.Fprintf(w, "clawjail: %s: %s\n", kind, line) // standard error is the last resort: nowhere to report to
		}
	}
	p, ok := problem.As(err)
	if !ok {
		switch problem.CodeOf(err) {
		case problem.Canceled:
			say("error", "interrupted")
		default:
			say("error", err.Error())
		}
		return
	}
	text := p.Message
	if p.Err != nil {
		text = p.Error()
	}
	say("error", text)
	if p.Hint != "" {
		say("hint", p.Hint)
	}
	if p.Code != "" && p.Code != problem.BadUsage { // its status says that
		fmt.Fprintf(w, "clawjail: [%s]\n", p.Code) // as above
	}
}

// usage is an error of the command line, with the command that would have been right.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return problem.New(problem.BadUsage, cmd.UseLine()+"; more: "+cmd.CommandPath()+" --help", format, args...)
}

// arguments checks the number of positional arguments against the names in the command's Use line.
func arguments(minimum, maximum int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < minimum && minimum == 1:
			return usage(cmd, "%s needs an argument", cmd.CommandPath())
		case len(args) < minimum:
			return usage(cmd, "%s needs %d arguments, not %d", cmd.CommandPath(), minimum, len(args))
		case maximum >= 0 && len(args) > maximum:
			return usage(cmd, "%s does not take %q", cmd.CommandPath(), args[maximum])
		}
		return notEmpty(cmd, args)
	}
}

// filled refuses a flag that was given nothing, as by a script whose variable is not set: left out of a request, nothing would mean
// all, or for ever. A flag whose help says what empty means may be that.
func filled(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		empty := f.Value.Type() == "string" && f.Value.String() == ""
		if list, ok := f.Value.(pflag.SliceValue); ok {
			empty = len(list.GetSlice()) == 0 || slices.Contains(list.GetSlice(), "")
		}
		if err == nil && empty && !strings.Contains(f.Usage, "empty") {
			err = usage(cmd, "--%s is empty: leave it out, or say what it is", f.Name)
		}
	})
	return err
}

// notEmpty refuses an argument that is empty: left out of a request, it would mean all. A text that is typed into a page may be empty.
func notEmpty(cmd *cobra.Command, args []string) error {
	if n := slices.Index(args, ""); n >= 0 && !strings.Contains(cmd.Use, "REF…") {
		return usage(cmd, "argument %d is empty", n+1)
	}
	return nil
}

// group makes a command that only has others below it: alone it shows its help, and a word that it does not know is an
// error with the nearest one that it does.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return noCommand(cmd, args[0])
	}
	return cmd
}

func noCommand(group *cobra.Command, word string) error {
	group.SuggestionsMinimumDistance = 2
	hint := "see " + group.CommandPath() + " --help"
	if near := group.SuggestionsFor(word); len(near) > 0 {
		hint = "did you mean: " + group.CommandPath() + " " + near[0]
	}
	return problem.New(problem.BadUsage, hint, "there is no command %q", group.CommandPath()+" "+word)
}

// configured is the configuration, and the log that it asks for.
func (p *program) configured(cmd *cobra.Command) (config.Config, *slog.Logger, error) {
	c, err := p.config()
	if err != nil {
		return c, nil, err
	}
	log, err := logger(c.Log, cmd.ErrOrStderr())
	return c, log, err
}

// logger makes the log of a daemon as the configuration wants it. It writes to standard error.
func logger(c config.Log, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return slog.New(slog.NewTextHandler(w, options)), nil
}

// needRoot refuses to go on as somebody else.
func needRoot(cmd *cobra.Command) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return problem.New(problem.NoRoot, "run it with sudo", "%s needs root", cmd.CommandPath())
}

func newVersionCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "clawjail", p.version)
			return err
		},
	}
}
