package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/problem"
)

// folder is the folder of a browser, for the commands that use it.
type folder struct {
	use     string // what the arguments of a command begin with: "ID ", or nothing for the host browser
	named   int    // how many arguments that is
	example string // the same, in an example
	drive   func(ctx context.Context, args []string, op browser.Operation) (any, error)
	// complete completes what the arguments begin with.
	complete cobra.CompletionFunc
	// names completes the names of its files. It may be nil.
	names cobra.CompletionFunc
}

// newSessionFiles are the commands for the folder of a session's browser.
func newSessionFiles(p *program) *cobra.Command {
	return newFiles("session", folder{use: "ID ", named: 1, example: "$id ", complete: p.completeSessions,
		names: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			return p.completer(func(ctx context.Context, c *client.Client, _ string) ([]string, error) {
				found, err := client.As[browser.FilesResult](c.Drive(ctx, args[0], browser.Files{}))
				return namesOf(found.Files, err, func(f browser.File) (string, string) { return printable(f.Name), f.Kind })
			})(cmd, args, begun)
		},
		drive: func(ctx context.Context, args []string, op browser.Operation) (any, error) {
			c, err := p.client()
			if err != nil {
				return nil, err
			}
			return c.Drive(ctx, args[0], op)
		}})
}

// newBrowserFiles are the commands for the folder of the host browser.
func newBrowserFiles(p *program) *cobra.Command {
	return newFiles("browser", folder{drive: func(ctx context.Context, _ []string, op browser.Operation) (any, error) {
		b, err := p.hostBrowser()
		if err != nil {
			return nil, err
		}
		return b.drive(ctx, op)
	}})
}

func newFiles(of string, f folder) *cobra.Command {
	line := "  clawjail " + of + " files "
	cmd := group(&cobra.Command{
		Use:     "files",
		Short:   "List, fetch and remove downloads, and put files there for uploads",
		Example: line + strings.TrimSpace("ls "+f.example) + "\n" + line + "get " + f.example + "report.pdf\n" + line + "put " + f.example + "photo.jpg",
	})
	cmd.AddCommand(newFilesList(f), newFilesGet(f), newFilesPut(f), newFilesRemove(f))
	return cmd
}

func newFilesList(of folder) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               strings.TrimSpace("ls " + of.use),
		Aliases:           []string{"list"},
		Short:             "List the files of the browser",
		Args:              arguments(of.named, of.named),
		ValidArgsFunction: of.completeNothing,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := client.As[browser.FilesResult](of.drive(cmd.Context(), args, browser.Files{}))
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), found)
			}
			rows := [][]string{{"NAME", "KIND", "STATE", "SIZE", "URL"}}
			for _, f := range found.Files {
				rows = append(rows, []string{printable(f.Name), printable(f.Kind), printable(f.State), size(f.Bytes), dash(printable(f.URL))})
			}
			return table(cmd.OutOrStdout(), rows)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newFilesGet(of folder) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:               "get " + of.use + "NAME",
		Short:             "Fetch a file of the browser",
		Long:              "Fetch a file of the browser, into one of the same name here, or into that of -o. A file that exists is only replaced with -o.",
		Args:              arguments(of.named+1, of.named+1),
		ValidArgsFunction: of.completeFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, tty := terminal(cmd.OutOrStdout()); tty && file == standardInput {
				return usage(cmd, "a file is not written to a terminal")
			}
			content, err := client.As[browser.FileContent](of.drive(cmd.Context(), args, browser.GetFile{Name: args[of.named]}))
			if err != nil {
				return err
			}
			if file == "" {
				// The page has chosen the name: only its last part counts, and nothing is replaced by it.
				file = filepath.Base(filepath.Clean("/" + content.Name))
				if _, err := os.Lstat(file); err == nil || file == "/" || file[0] == '.' {
					return problem.New(problem.Conflict, "say where to write it: -o FILE", "the name %q cannot be used here, or is taken", printable(file))
				}
			}
			return save(cmd, file, content.Data)
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`file` to write, - for standard output")
	return cmd
}

func newFilesPut(of folder) *cobra.Command {
	var name string
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "put " + of.use + "FILE",
		Short:             "Put a file into the folder of the browser, for uploads",
		Args:              arguments(of.named+1, of.named+1),
		ValidArgsFunction: of.completeLocal,
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := readFile(args[of.named])
			if err != nil {
				return err
			}
			if name == "" {
				name = filepath.Base(args[of.named])
			}
			put, err := client.As[browser.File](of.drive(cmd.Context(), args, browser.PutFile{Name: name, Data: data}))
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), put)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), printable(put.Name))
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "`name` that it has there; that of the file when it is left out")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// readFile reads a file that is not larger than one of a session may be.
func readFile(path string) (data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the file: %w", err)
	}
	defer f.Close() // it was only read
	if data, err = io.ReadAll(io.LimitReader(f, control.MaxFile+1)); err != nil {
		return nil, fmt.Errorf("read the file: %w", err)
	}
	if len(data) > control.MaxFile {
		return nil, problem.New(problem.BadRequest, "put a smaller one there", "%s has more than %s", path, size(control.MaxFile))
	}
	return data, nil
}

func newFilesRemove(of folder) *cobra.Command {
	return &cobra.Command{
		Use:               "rm " + of.use + "NAME…",
		Short:             "Remove files of the browser",
		Args:              arguments(of.named+1, -1),
		ValidArgsFunction: of.completeFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(cmd, args[of.named:], func(name string) error {
				_, err := of.drive(cmd.Context(), args, browser.DeleteFile{Name: name})
				return err
			})
		},
	}
}

// completeNothing completes what the arguments begin with, and nothing behind it.
func (f folder) completeNothing(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) < f.named {
		return f.complete(cmd, args, begun)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeFiles completes the names of files of the browser.
func (f folder) completeFiles(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) < f.named {
		return f.complete(cmd, args, begun)
	}
	if f.names == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f.names(cmd, args, begun)
}

// completeLocal completes the names of files here.
func (f folder) completeLocal(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) < f.named {
		return f.complete(cmd, args, begun)
	}
	return nil, cobra.ShellCompDirectiveDefault
}
