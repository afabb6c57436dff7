package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func newVaultCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "vault",
		Short: "Look at the key of the vault, and change it",
		Long: "The vault keeps cookie sets and secrets encrypted in the database, with a key that is in a file beside it. " +
			"Whoever has both has the accounts; back them up to different places.",
	})
	cmd.AddCommand(newVaultStatus(p), newVaultRotate(p))
	return cmd
}

func newVaultStatus(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the keys of the vault, and what is encrypted with each",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			status, err := c.Vault(cmd.Context())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				return writeJSON(out, status)
			}
			pairs := [][2]string{{"key file", printable(status.KeyFile)}, {"rotating", ""}, {"unreadable", ""}}
			if status.Rotating {
				pairs[1][1] = "a rotation has not ended; clawjail vault rotate goes on with it"
			}
			if status.Unreadable > 0 {
				pairs[2][1] = count(status.Unreadable, "entry") + " of a key that is not in the file"
			}
			if err := fields(out, pairs); err != nil {
				return err
			}
			rows := [][]string{{"KEY", "MADE", "COOKIE SETS", "SECRETS", "STATE"}}
			for _, k := range status.Keys {
				state := "opens what it has encrypted"
				if k.Primary {
					state = "in use"
				}
				rows = append(rows, []string{k.ID, when(k.CreatedAt, p.now()), strconv.Itoa(k.CookieSets), strconv.Itoa(k.Secrets), state})
			}
			if _, err := fmt.Fprintln(out); err != nil {
				return err
			}
			return table(out, rows)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newVaultRotate(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Encrypt everything with a new key, and destroy the old one",
		Long: "Makes a new key, encrypts every entry with it, and destroys the old key. The vault can be used meanwhile, and a " +
			"rotation that was interrupted goes on when it is asked for again. Backups of the key file from before do not " +
			"open what is stored from now on: make a new one.",
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			done, err := c.RotateVault(cmd.Context())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				return writeJSON(out, done)
			}
			text := fmt.Sprintf("%s encrypted with the new key %s", count(done.Entries, "entry"), done.Key)
			if done.Resumed {
				text = fmt.Sprintf("went on with an earlier rotation: %s encrypted with the key %s", count(done.Entries, "entry"), done.Key)
			}
			if len(done.Destroyed) > 0 {
				text += "; destroyed " + strings.Join(done.Destroyed, ", ")
			}
			_, err = fmt.Fprintln(out, text)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
