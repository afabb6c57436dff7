package cli

import (
	"context"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
)

// newSessionOperations are the commands that drive the browser of a session: those of the host browser, with the id of
// the session in front of their arguments.
func newSessionOperations(p *program) (out []*cobra.Command) {
	for _, c := range slices.Concat(browserTabs(), browserLooks(), browserActs()) {
		out = append(out, c.ofSession(p))
	}
	return out
}

// sessionName is the name of a command whose own means something else below `session`.
func sessionName(name string) string {
	switch name {
	case "open", "close", "focus":
		return name + "-tab"
	}
	return name
}

// ofSession is the command for a session.
func (c browserCommand) ofSession(p *program) *cobra.Command {
	was, rest, _ := strings.Cut(c.use, " ")
	name := sessionName(was)
	var asJSON bool
	var file string
	cmd := &cobra.Command{Use: strings.TrimSpace(name + " ID " + rest), Short: c.short, Long: c.long,
		Example: strings.ReplaceAll(c.example, "clawjail browser "+was, "clawjail session "+name+" $id")}
	maximum := c.limit
	if maximum >= 0 {
		maximum++
	}
	cmd.Args = arguments(c.minimum+1, maximum)
	build := c.make(cmd, p)
	cmd.ValidArgsFunction = p.completeDriven(c)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		op, err := build(args[1:])
		if err != nil {
			return err
		}
		if err := pictureFile(cmd, op, file, asJSON); err != nil {
			return err
		}
		if err := op.Validate(); err != nil {
			return err
		}
		if file != "" {
			return p.savePicture(cmd, args[0], op, file)
		}
		return p.drive(cmd, args[0], op, asJSON)
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	if c.file {
		cmd.Flags().StringVarP(&file, "output", "o", "", "`file` to write, - for standard output; without it the address of the picture is printed")
	}
	return cmd
}

// drive does something with the browser of a session, and prints the result.
func (p *program) drive(cmd *cobra.Command, id string, op browser.Operation, asJSON bool) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	base, err := c.SessionURL(id)
	if err != nil {
		return err
	}
	result, err := c.Drive(cmd.Context(), id, op)
	if err != nil {
		return err
	}
	return (&hostBrowser{control: base}).show(cmd, result, asJSON) // as the host browser's are shown
}

// savePicture writes the picture that an operation makes.
func (p *program) savePicture(cmd *cobra.Command, id string, op browser.Operation, file string) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	data, err := c.Picture(cmd.Context(), id, op)
	if err != nil {
		return err
	}
	return save(cmd, file, data)
}

// save writes data to what -o names.
func save(cmd *cobra.Command, file string, data []byte) error {
	_, err := output(cmd, file, 0o644, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	return err
}

// formatOf is the format of a picture that a file's name asks for.
func formatOf(file string) string {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".jpg", ".jpeg":
		return browser.JPEG
	}
	return browser.PNG
}

// completeDriven completes the session, and what follows it: a tab, or a word of the command.
func (p *program) completeDriven(c browserCommand) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0:
			return p.completeSessions(cmd, args, begun)
		case len(args) == 1 && c.words != nil:
			return c.words, cobra.ShellCompDirectiveNoFileComp
		case len(args) == 1 && strings.Contains(c.use, "TAB"):
			return p.completeSessionTabs(cmd, args, begun)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeSessionTabs completes the handles of the open tabs of the session that is the first argument.
func (p *program) completeSessionTabs(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return p.completer(func(ctx context.Context, c *client.Client, _ string) ([]string, error) {
		answer, err := client.As[browser.TabsResult](c.Drive(ctx, first(args), browser.Tabs{}))
		return namesOf(answer.Tabs, err, func(t browser.Tab) (string, string) { return t.TabID, t.Title })
	})(cmd, args, begun)
}
