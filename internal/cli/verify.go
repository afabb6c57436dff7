package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// verifying is what was said about a verification.
type verifying struct {
	export      string // a file to verify here; empty asks the control plane about its database
	checkpoints string
	keys        []string
	asOf        string // when the export was begun
	asJSON      bool
}

func newAuditVerify(p *program) *cobra.Command {
	var v verifying
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify that the audit log was not changed",
		Long: "Goes through the whole log: every row must be what its hash says, follow the one before it, and be the one that " +
			"the signed checkpoints speak of. It ends with 1 and names the first bad row when something is not as it was " +
			"written. Rows after the last checkpoint are only checked against each other, so that somebody who recalculates the hashes could have " +
			"changed them; it says how many they are.\n\nThe control plane does this with its own database. Whoever does not " +
			"trust it verifies a file of `clawjail audit export` with --export: then the control plane is not asked, and the checkpoints " +
			"and public keys are files. A log that has grown since it was exported has checkpoints of rows that the file " +
			"does not have; --as-of says when the export was begun, and leaves later ones out.",
		Example: "  clawjail audit verify\n" +
			"  sudo clawjail audit verify --export audit.jsonl --as-of 2026-01-02T15:04:05Z\n" +
			"  clawjail audit verify --export audit.jsonl --checkpoints copy/checkpoints --key old.pub --key audit.key.pub",
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := p.verifyAudit(cmd, v)
			if err != nil {
				return err
			}
			return showReport(cmd.OutOrStdout(), report, v.export != "", v.asJSON)
		},
	}
	f := cmd.Flags()
	f.StringVar(&v.export, "export", "", "`file` of clawjail audit export to verify here, without asking the control plane")
	f.StringVar(&v.checkpoints, "checkpoints", "", "`file` of checkpoints (default that of the host daemon)")
	f.StringArrayVar(&v.keys, "key", nil, "`file` with a public key of the log, and of older ones (default that of the control plane)")
	f.StringVar(&v.asOf, "as-of", "", "`time` at which the export was begun, such as 2026-01-02T15:04:05Z; later checkpoints are left out")
	f.BoolVar(&v.asJSON, "json", false, "print JSON")
	return cmd
}

func (p *program) verifyAudit(cmd *cobra.Command, v verifying) (audit.Report, error) {
	if v.export != "" {
		asOf, err := moment(cmd, "as-of", v.asOf, p.now())
		if err != nil {
			return audit.Report{}, err
		}
		return p.verifyExport(cmd.Context(), v, asOf)
	}
	for _, flag := range []string{"checkpoints", "key", "as-of"} {
		if cmd.Flags().Changed(flag) {
			return audit.Report{}, usage(cmd, "--%s goes with --export: the control plane takes its own", flag)
		}
	}
	c, err := p.client()
	if err != nil {
		return audit.Report{}, err
	}
	return client.Call(cmd.Context(), c, op.VerifyAudit(), op.None{})
}

// verifyExport verifies a file here.
func (p *program) verifyExport(ctx context.Context, v verifying, asOf time.Time) (audit.Report, error) {
	if v.checkpoints == "" || len(v.keys) == 0 {
		c, err := p.config()
		if err != nil {
			return audit.Report{}, err
		}
		if v.checkpoints == "" {
			v.checkpoints = hostd.CheckpointsPath(c)
		}
		if len(v.keys) == 0 {
			v.keys = []string{filepath.Join(hostd.ControlDir(c), "audit.key.pub")}
		}
	}
	file, err := os.Open(v.export)
	if err != nil {
		return audit.Report{}, notReadable(err, "--export", v.export)
	}
	defer file.Close() // only read
	keys, err := checkpoint.LoadKeys(v.keys...)
	if err != nil {
		return audit.Report{}, problem.Wrap(withoutPath(err), problem.BadRequest, "name the public keys of the log with "+
			"--key, and read them as who may",
			"the keys of the log cannot be read (%s)", printable(fmt.Sprint(v.keys)))
	}
	// The file is opened again for every node, so whether it is there is asked first.
	if _, err := os.Stat(v.checkpoints); err != nil {
		return audit.Report{}, notReadable(err, "--checkpoints", v.checkpoints)
	}
	report, err := audit.Verify(ctx, audit.Export{File: file}, notesUntil(checkpoint.ReadFile(v.checkpoints), asOf), keys)
	if err != nil && ctx.Err() == nil {
		err = problem.Wrap(err, problem.BadRequest, "give a file that clawjail audit export has written, and its checkpoints",
			"%s cannot be verified", printable(v.export))
	}
	return report, err
}

// notesUntil leaves out the checkpoints that were signed after a time; none when it is zero. A cut in the log before
// that time is found all the same.
func notesUntil(all audit.Notes, at time.Time) audit.Notes {
	return func(yield func(checkpoint.Note, error) bool) {
		for n, err := range all {
			if err == nil && !at.IsZero() && n.Time.After(at) {
				continue
			}
			if !yield(n, err) {
				return
			}
		}
	}
}

func notReadable(err error, flag, path string) error {
	hint := "check the path"
	if errors.Is(err, fs.ErrPermission) {
		hint = "run it as a user who may read it"
	} else if flag == "--checkpoints" {
		hint = "name the file of the checkpoints with --checkpoints"
	}
	return problem.Wrap(withoutPath(err), problem.BadRequest, hint, "%s cannot be read", printable(path))
}

// withoutPath is the cause of an error of a file: the message names the file already.
func withoutPath(err error) error {
	var inner *fs.PathError
	if errors.As(err, &inner) {
		return inner.Err
	}
	return err
}

// showReport prints what was found. The first finding is its error.
func showReport(w io.Writer, r audit.Report, exported, asJSON bool) error {
	var err error
	if asJSON {
		err = writeJSON(w, r)
	} else {
		err = reportTable(w, r)
	}
	if err != nil {
		return err
	}
	bad := r.Bad()
	if bad == nil {
		return nil
	}
	findings := int64(0)
	for _, n := range r.Nodes {
		findings += n.Findings
	}
	message := printable(bad.String())
	if findings > 1 {
		message += fmt.Sprintf(" (the first of %d findings)", findings)
	}
	if bad.Kind == audit.Truncated && exported {
		return problem.New(problem.AuditBroken, "if the log has grown since it was exported, say when that was: --as-of; "+
			"else keep the file, and find out who has cut it off",
			"the export lacks rows that there were: %s", message)
	}
	return problem.New(problem.AuditBroken, "keep a copy of the database and of the checkpoints before anything else is "+
		"done, and find out who can write to them",
		"the audit log is not as it was written: %s", message)
}

func reportTable(w io.Writer, r audit.Report) error {
	rows := [][]string{{"NODE", "ROWS", "FROM", "TO", "CHECKPOINTS", "COVERED", "UNCOVERED", "TRIMMED", "FINDINGS"}}
	decimal := func(n int64) string { return strconv.FormatInt(n, 10) }
	var uncovered int64
	for _, n := range r.Nodes {
		uncovered += n.Uncovered
		trimmed := "-"
		if n.Trimmed > 0 {
			trimmed = decimal(n.Trimmed)
		}
		rows = append(rows, []string{printable(n.Node), decimal(n.Rows), decimal(n.From), decimal(n.To), decimal(n.Notes), decimal(n.Covered),
			decimal(n.Uncovered), trimmed, decimal(n.Findings)})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	var lines []string
	if len(r.Nodes) == 0 {
		lines = append(lines, "there are no rows")
	}
	for _, line := range r.Damaged {
		if len(lines) > maxNamed {
			lines = append(lines, "and more")
			break
		}
		lines = append(lines, fmt.Sprintf("line %d of the checkpoints cannot be read: a machine that loses power while it writes leaves such a line", line))
	}
	for _, n := range r.Nodes {
		if n.Restores > 0 {
			lines = append(lines, fmt.Sprintf("the log of %s was restored from a backup %s; row %d is of the last time", printable(n.Node),
				count(int(n.Restores), "time"), n.RestoredAt))
		}
	}
	if r.OK() {
		text := "nothing is wrong"
		if uncovered > 0 {
			text += fmt.Sprintf("; %s behind the last checkpoint could have been changed by somebody who calculated the hashes",
				count(int(uncovered), "row"))
		}
		lines = append(lines, text)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}
