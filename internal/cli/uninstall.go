package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/hostd/supervisor"
)

func newUninstallCommand(p *program) *cobra.Command {
	var data, dryRun, yes, asJSON bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take clawjail off this machine",
		Long: "Ends every jail of this installation, those of agents too, and removes what it has made on this machine: the bridge, the firewall's " +
			"tables, control groups, mounts, loop devices, and the folder of its sockets. What is on the disk stays: keys, database, recordings, what " +
			"agents have kept, templates and the configuration; it says where. --data removes that as well, the folder workspaces in data_dir too, and the user of the control plane if " +
			"clawjail made it. It refuses while clawjail runs. The program itself, and the files of a package, are removed in the way in which they were installed.",
		Example: "  sudo clawjail uninstall --dry-run\n  sudo clawjail uninstall\n  sudo clawjail uninstall --data --yes",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, path, err := p.onHost(cmd)
			if err != nil {
				return err
			}
			if data && !dryRun && !yes {
				if err := confirm(cmd, "this removes "+host.Config.DataDir+" with all keys, accounts, recordings, what agents have kept and their workspaces in it; it cannot be undone"); err != nil {
					return err
				}
			}
			found, uninstallErr := supervisor.Uninstall(cmd.Context(), supervisor.UninstallOptions{
				Host: host, ConfigPath: path, RemoveTemplates: func(ctx context.Context) error { return p.removeTemplates(ctx, cmd) }, Data: data, DryRun: dryRun,
			})
			if uninstallErr != nil && len(found.Removed) == 0 {
				return uninstallErr
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), found)
			} else {
				err = showUninstalled(cmd, found)
			}
			return errors.Join(uninstallErr, err)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&data, "data", false, "remove what is kept on the disk as well")
	f.BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask before what cannot be undone")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// removeTemplates removes every template, each the way in which it was made.
func (p *program) removeTemplates(ctx context.Context, cmd *cobra.Command) error {
	store, _, err := p.templates(cmd)
	if err != nil {
		return err
	}
	all, err := store.List(ctx)
	if err != nil {
		return err
	}
	for _, t := range all {
		if err := store.Remove(ctx, t.Name); err != nil {
			return err
		}
	}
	return nil
}

func showUninstalled(cmd *cobra.Command, u supervisor.Uninstalled) error {
	w := cmd.OutOrStdout()
	done := "removed"
	if u.DryRun {
		done = "would be removed"
	}
	if len(u.Removed)+len(u.Kept) == 0 {
		_, err := fmt.Fprintln(w, "nothing of clawjail is on this machine")
		return err
	}
	rows := [][]string{{"WHAT", "NAME", "DONE"}}
	for _, t := range u.Removed {
		rows = append(rows, []string{t.Kind, printable(t.ID), done})
	}
	for _, k := range u.Kept {
		rows = append(rows, []string{k.Kind, printable(k.ID), "kept: " + printable(k.Why)})
	}
	return table(w, rows)
}
