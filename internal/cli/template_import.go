package cli

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/template"
)

func newTemplateImport(p *program) *cobra.Command {
	var replace, asJSON bool
	cmd := &cobra.Command{
		Use:   "import FILE [NAME]",
		Short: "Make a template of a file that another machine has written",
		Long: "For a machine that reaches no mirror of Debian: `clawjail template image NAME --output FILE` writes the file on a machine with a " +
			"processor of the same kind, and this command makes the same template of it. Everything in it is checked against the checksums of the file. " +
			"Take files from people you would let run programs as root. Without NAME the template keeps the name that it has in the file.",
		Example: "  sudo clawjail template image browser --output browser.tar    # on a machine with a network\n" +
			"  sudo clawjail template import browser.tar                    # on this one",
		Args: arguments(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := filepath.Abs(args[0])
			if err != nil {
				return fmt.Errorf("find %s: %w", args[0], err)
			}
			name := ""
			if len(args) == 2 {
				name = args[1]
				err = template.CheckName(name)
			} else {
				name, err = template.Exported(cmd.Context(), file)
			}
			if err != nil {
				return err // before root is asked for
			}
			store, _, err := p.templates(cmd)
			if err != nil {
				return err
			}
			t, _, err := buildTemplate(cmd, store, template.BuildOptions{Name: name, From: "oci-archive:" + file, Replace: replace}, false, p.now)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), t)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "imported %s: %d files, %s, %s\n", t.Name, t.Files, size(t.Size), t.Digest)
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&replace, "replace", false, "replace the template when there is one; the old one stays until the new one is complete")
	f.BoolVar(&asJSON, "json", false, "print what is known of the template")
	return cmd
}
