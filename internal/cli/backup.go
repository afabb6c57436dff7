package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/backup"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/hostd/supervisor"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxSmallFile bounds keys and passphrases, which are files of a few lines.
const maxSmallFile = 64 << 10

// opening are the flags with which an encrypted backup is opened.
type opening struct{ identity, passphrase string }

func (o *opening) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.identity, "identity", "", "`file` with the private key of age that opens the backup")
	cmd.Flags().StringVar(&o.passphrase, "passphrase-file", "", "`file` with the passphrase of the backup in its first line")
}

func (o opening) keys() (k backup.Keys, err error) {
	if o.identity != "" {
		data, err := smallFile("--identity", o.identity)
		if err != nil {
			return k, err
		}
		k.Identities = bytes.NewReader(data)
	}
	k.Passphrase, err = passphrase(o.passphrase)
	return k, err
}

func passphrase(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	data, err := smallFile("--passphrase-file", path)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	if line = strings.TrimRight(line, "\r"); line == "" {
		return "", problem.New(problem.BadRequest, "write the passphrase into its first line", "%s is empty", printable(path))
	}
	return line, nil
}

func smallFile(flag, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, notReadable(err, flag, path)
	}
	defer f.Close() // only read from
	data, err := io.ReadAll(io.LimitReader(f, maxSmallFile))
	if err != nil {
		return nil, notReadable(err, flag, path)
	}
	return data, nil
}

// backingUp is what was said about a backup.
type backingUp struct {
	options backup.Options
	key     string // the file that the vault's key goes into
	check   bool
	open    opening
}

func newBackupCommand(p *program) *cobra.Command {
	var b backingUp
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Back up the installation into one file",
		Long: "Writes the database, the keys of the control plane, the checkpoints of the audit log and what is declared of agents into one " +
			"file, while clawjail runs. `-` is standard output. The file is a tar in gzip and secret: it has the admin key and the " +
			"tokens of agents. The vault's key, without which nobody reads the accounts in it, is only in it with --with-key; --key " +
			"writes it into a file of its own. Both together open the accounts. With --recipient or --passphrase-file the file is " +
			"encrypted with age.\n\n--agent-state needs clawjail to be stopped. --check reads a backup, and proves that it can be restored.",
		Example: "  sudo clawjail backup --key vault.key clawjail.tar.gz\n" +
			"  sudo clawjail backup --with-key --passphrase-file words clawjail.tar.gz.age\n" +
			"  sudo clawjail backup --check clawjail.tar.gz",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if b.check {
				return p.checkBackup(cmd, args[0], b.open)
			}
			return p.backup(cmd, args[0], b)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&b.options.Recordings, "recordings", false, "with the recordings of sessions")
	f.BoolVar(&b.options.AgentState, "agent-state", false, "with what agents keep in /state; clawjail must be stopped")
	f.BoolVar(&b.options.WithKey, "with-key", false, "with the vault's key; encrypt the file then")
	f.StringVar(&b.key, "key", "", "write the vault's key into this `file`")
	f.StringArrayVar(&b.options.Keys.Recipients, "recipient", nil, "encrypt it for this public `key` of age")
	f.BoolVar(&b.options.WithoutDatabase, "without-database", false, "leave a PostgreSQL database to its own tools")
	f.BoolVar(&b.check, "check", false, "read the backup FILE instead, and verify all that is in it")
	b.open.flags(cmd)
	return cmd
}

func (p *program) backup(cmd *cobra.Command, path string, b backingUp) (err error) {
	if b.open.identity != "" {
		return usage(cmd, "--identity goes with --check")
	}
	if b.key != "" && b.options.WithKey {
		return usage(cmd, "--key keeps the vault's key out of the backup, and --with-key puts it in: choose one")
	}
	if b.key != "" && filepath.Clean(b.key) == filepath.Clean(path) {
		return usage(cmd, "--key needs a file of its own")
	}
	if err := needRoot(cmd); err != nil {
		return err
	}
	o := b.options
	if o.Config, err = p.config(); err != nil {
		return err
	}
	o.ConfigFile, o.Version, o.Now = p.configFile(), p.version, p.now
	if o.Keys.Passphrase, err = passphrase(b.open.passphrase); err != nil {
		return err
	}
	var outputs []*backup.Output
	defer func() {
		for _, out := range outputs {
			err = errors.Join(err, out.Close())
		}
	}()
	add := func(path string) (*backup.Output, error) {
		out, err := backup.NewOutput(path)
		if err == nil {
			outputs = append(outputs, out)
		}
		return out, err
	}
	to := cmd.OutOrStdout()
	if path == "-" {
		if _, yes := terminal(to); yes {
			return problem.New(problem.BadRequest, "name a file, or pipe it into another program", "a backup cannot be written to a terminal")
		}
	} else if to, err = add(path); err != nil {
		return err
	}
	if b.key != "" {
		if o.KeyTo, err = add(b.key); err != nil {
			return err
		}
	}
	progress, end := p.backupProgress(cmd)
	o.Progress = progress
	m, err := backup.Create(cmd.Context(), to, o)
	end()
	if err != nil {
		return err
	}
	for _, out := range slices.Backward(outputs) { // the key first: a backup that is there is whole
		if err := out.Keep(); err != nil {
			return err
		}
	}
	lines := []string{fmt.Sprintf("%s of %s in %s", count(len(m.Files), "file"), m.Installation, printable(path))}
	switch {
	case b.key != "":
		lines = append(lines, "the vault's key is in "+printable(b.key)+": whoever has both has the accounts, so keep them apart")
	case m.VaultKey && len(o.Keys.Recipients) == 0 && o.Keys.Passphrase == "":
		lines = append(lines, "the vault's key is in it, and it is not encrypted: whoever has it has the accounts")
	case !m.VaultKey:
		lines = append(lines, "the vault's key is not in it: without a copy of "+printable(backup.VaultKeyPath(o.Config))+" the accounts cannot be restored")
	}
	if !m.Database.Included {
		lines = append(lines, "the database is not in it: make a copy with pg_dump now")
	}
	return noteLines(cmd, lines)
}

// noteLines writes what people should know to standard error: standard output may be the backup.
func noteLines(cmd *cobra.Command, lines []string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintln(cmd.ErrOrStderr(), line); err != nil {
			return err
		}
	}
	return nil
}

// backupProgress shows what is being done, on a terminal alone.
func (p *program) backupProgress(cmd *cobra.Command) (backup.Progress, func()) {
	w := cmd.ErrOrStderr()
	if _, yes := terminal(w); !yes {
		return nil, func() {}
	}
	bar := newProgress(w, p.now)
	return func(stage string, done, total int64) {
		unit := "bytes"
		if stage == "read the files" {
			unit = "files"
		}
		bar.step(step{Stage: stage, Done: done, Total: total, Unit: unit})
	}, bar.end
}

// openBackup opens a backup to be read.
func openBackup(cmd *cobra.Command, path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(input(cmd)), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, notReadable(err, "FILE", path)
	}
	return f, nil
}

func (p *program) checkBackup(cmd *cobra.Command, path string, o opening) error {
	keys, err := o.keys()
	if err != nil {
		return err
	}
	in, err := openBackup(cmd, path)
	if err != nil {
		return err
	}
	defer in.Close() // only read from
	progress, end := p.backupProgress(cmd)
	m, report, permissions, err := backup.Check(cmd.Context(), in, keys, "", progress)
	end()
	if err != nil {
		return err
	}
	yes := map[bool]string{true: "yes", false: "no"}
	pairs := [][2]string{
		{"installation", m.Installation}, {"node", printable(m.Node)}, {"created", m.Created.Format(time.RFC3339)}, {"version", printable(m.Version)},
		{"files", strconv.Itoa(len(m.Files))}, {"database", m.Database.Kind}, {"schema", strconv.FormatInt(m.Database.Schema, 10)},
		{"vault's key", yes[m.VaultKey]}, {"recordings", yes[m.Recordings]}, {"agent state", yes[m.AgentState]},
		{"permissions", fmt.Sprintf("%d for accounts", permissions.Good)}, {"void", ""},
	}
	if permissions.Void > 0 {
		pairs[11][1] = count(permissions.Void, "permission") + ", which the keys in the backup have not signed"
	}
	if !m.Database.Included {
		pairs[5][1], pairs[6][1], pairs[10][1] = "not in it", "", ""
	}
	if err := fields(cmd.OutOrStdout(), pairs); err != nil || report == nil {
		return err
	}
	return reportTable(cmd.OutOrStdout(), *report)
}

func newRestoreCommand(p *program) *cobra.Command {
	var o backup.RestoreOptions
	var open opening
	var key string
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore the installation from a backup",
		Long: "Restores an installation from a file of `clawjail backup`. Everything in the file is verified before anything is changed, and " +
			"a restore that is killed has changed all or nothing. Nothing of clawjail may run. Data that is there is only replaced " +
			"with --replace, which moves it into a folder beside.\n\nTokens and keys that were " +
			"revoked since the backup are valid again, and so are permissions for accounts that were taken back. Grants that were not used " +
			"are void, unless --keep-grants says that none was used since.",
		Example: "  sudo clawjail restore --key vault.key clawjail.tar.gz\n  sudo clawjail restore --replace --passphrase-file words clawjail.tar.gz.age",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := needRoot(cmd); err != nil {
				return err
			}
			if o.Config, err = p.config(); err != nil {
				return err
			}
			if o.Keys, err = open.keys(); err != nil {
				return err
			}
			if key != "" {
				if o.VaultKey, err = smallFile("--key", key); err != nil {
					return err
				}
			}
			in, err := openBackup(cmd, args[0])
			if err != nil {
				return err
			}
			defer in.Close() // only read from
			if o.Control, err = controlOwner(cmd.Context(), o.Config.User, hostd.ControlDir(o.Config)); err != nil {
				return err
			}
			o.Now = p.now
			progress, end := p.backupProgress(cmd)
			o.Progress = progress
			done, err := backup.Restore(cmd.Context(), in, o)
			end()
			if err != nil {
				return err
			}
			return noteLines(cmd, restoredLines(done, o))
		},
	}
	f := cmd.Flags()
	f.StringVar(&key, "key", "", "`file` with the vault's key")
	f.BoolVar(&o.Replace, "replace", false, "move what is there aside")
	f.BoolVar(&o.KeepGrants, "keep-grants", false, "let grants be good that were not used when the backup was made")
	f.BoolVar(&o.BrokenAudit, "accept-broken-audit", false, "restore an audit log that does not hold together, too")
	f.BoolVar(&o.WithoutDatabase, "without-database", false, "leave a PostgreSQL database to its own tools")
	open.flags(cmd)
	return cmd
}

// controlOwner is the user of the control plane, who is made where there is none.
func controlOwner(ctx context.Context, name, home string) (o backup.Owner, err error) {
	if _, err := supervisor.EnsureAccount(ctx, name, home); err != nil {
		return o, err
	}
	u, err := user.Lookup(name)
	if err != nil {
		return o, fmt.Errorf("look up user %s: %w", name, err)
	}
	var errs [2]error
	o.UID, errs[0] = strconv.Atoi(u.Uid)
	o.GID, errs[1] = strconv.Atoi(u.Gid)
	return o, errors.Join(errs[:]...)
}

func restoredLines(r backup.Restored, o backup.RestoreOptions) []string {
	var lines []string
	if r.Finished {
		lines = append(lines, "an earlier restore had been interrupted, and was finished first")
	}
	lines = append(lines, fmt.Sprintf("restored %s as it was at %s", r.Manifest.Installation, r.Manifest.Created.Format(time.RFC3339)))
	if r.Aside != "" {
		lines = append(lines, "what was there is in "+printable(r.Aside))
	}
	vaultKey := printable(backup.VaultKeyPath(o.Config))
	switch r.VaultKey {
	case "":
		lines = append(lines, "there is no vault's key: put it into "+vaultKey+" before the next start, or the accounts cannot be read")
	case "kept":
		lines = append(lines, "the vault's key of before is kept: the backup has none")
	}
	if r.Config != "" {
		lines = append(lines, "the configuration of the backup is in "+printable(r.Config)+", for comparing; the one that is used was not changed")
	}
	if r.StateKept {
		lines = append(lines, "what agents keep in /state stays as it is: the backup has none")
	}
	if !r.Manifest.Database.Included {
		lines = append(lines, "restore the database with pg_restore before the next start")
	}
	if n := r.Permissions.Good; n > 0 {
		lines = append(lines, count(n, "permission")+" for accounts: good, also what was taken back after the backup; look at `clawjail cookies allowed`, and take it back again")
	}
	if n := r.Permissions.Void; n > 0 {
		lines = append(lines, count(n, "permission")+" for accounts: void, as the keys in the backup have not signed them; give them again")
	}
	if !r.Manifest.Database.Included && !o.KeepGrants {
		lines = append(lines, "permissions for accounts are void, as their key is new: give them again")
	}
	lines = append(lines, "tokens, keys and passkeys that were revoked after the backup are good again: look at `clawjail operator ls` and "+
		"`clawjail agent ls`, and revoke them again")
	if o.KeepGrants {
		return append(lines, "grants that were used after the backup can be used again until they expire")
	}
	return append(lines, "grants that had not been used are void, and nobody is signed in to the console")
}
