package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/problem"
)

// newSessionFiles are the commands for the folder of a session's browser.
func newSessionFiles(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "files",
		Short: "List, fetch and remove downloads of a session, and put files there for uploads",
		Example: "  clawjail session files ls $id\n  clawjail session files get $id report.pdf\n" +
			"  clawjail session files put $id photo.jpg",
	})
	cmd.AddCommand(newFilesList(p), newFilesGet(p), newFilesPut(p), newFilesRemove(p))
	return cmd
}

func newFilesList(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "ls ID",
		Aliases:           []string{"list"},
		Short:             "List the files of a session",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			found, err := client.As[browser.FilesResult](c.Drive(cmd.Context(), args[0], browser.Files{}))
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

func newFilesGet(p *program) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:               "get ID NAME",
		Short:             "Fetch a file of a session",
		Long:              "Fetch a file of a session, into one of the same name here, or into that of -o. A file that exists is only replaced with -o.",
		Args:              arguments(2, 2),
		ValidArgsFunction: p.completeFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, tty := terminal(cmd.OutOrStdout()); tty && file == standardInput {
				return usage(cmd, "a file is not written to a terminal")
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			content, err := client.As[browser.FileContent](c.Drive(cmd.Context(), args[0], browser.GetFile{Name: args[1]}))
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
			return output(cmd, file, func(w io.Writer) error {
				_, err := w.Write(content.Data)
				return err
			})
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`file` to write, - for standard output")
	return cmd
}

func newFilesPut(p *program) *cobra.Command {
	var name string
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "put ID FILE",
		Short:             "Put a file into the folder of a session, for uploads",
		Args:              arguments(2, 2),
		ValidArgsFunction: p.completeSessionThenFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := readFile(args[1])
			if err != nil {
				return err
			}
			if name == "" {
				name = filepath.Base(args[1])
			}
			return p.drive(cmd, args[0], browser.PutFile{Name: name, Data: data}, asJSON)
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

func newFilesRemove(p *program) *cobra.Command {
	return &cobra.Command{
		Use:               "rm ID NAME…",
		Short:             "Remove files of a session",
		Args:              arguments(2, -1),
		ValidArgsFunction: p.completeFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			return each(cmd, args[1:], func(name string) error {
				_, err := c.Drive(cmd.Context(), args[0], browser.DeleteFile{Name: name})
				return err
			})
		},
	}
}

// completeFiles completes a session, and then the names of its files.
func (p *program) completeFiles(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return p.completeSessions(cmd, args, begun)
	}
	return p.completer(func(ctx context.Context, c *client.Client, _ string) ([]string, error) {
		found, err := client.As[browser.FilesResult](c.Drive(ctx, args[0], browser.Files{}))
		return namesOf(found.Files, err, func(f browser.File) (string, string) { return printable(f.Name), f.Kind })
	})(cmd, args, begun)
}

func (p *program) completeSessionThenFile(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return p.completeSessions(cmd, args, begun)
	}
	return nil, cobra.ShellCompDirectiveDefault
}
