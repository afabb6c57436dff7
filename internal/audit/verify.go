package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/store"
)

// Rows is what is verified: a database, or an [Export].
type Rows interface {
	AuditNodes(ctx context.Context) ([]string, error)
	WalkAudit(ctx context.Context, node string, from int64) iter.Seq2[store.AuditRow, error]
}

// Notes are the checkpoints, in the order in which they were appended: [checkpoint.ReadFile] makes them. They are gone
// through once for every node, and once more.
type Notes = iter.Seq2[checkpoint.Note, error]

// Finding is a place where the log was changed.
type Finding struct {
	Kind Kind   `json:"kind"`
	Node string `json:"node"`
	// Seq is the first bad row. With Until, it is one of Seq to Until: of two rows that do not follow each other
	// either may be the false one, and rows that hold together and are not those of a checkpoint were written anew
	// somewhere behind the last checkpoint that is right.
	Seq   int64  `json:"seq"`
	Until int64  `json:"until,omitempty"`
	ID    string `json:"id,omitempty"` // of row Seq, where there is one
	Why   string `json:"why"`
}

func (f Finding) String() string {
	rows := fmt.Sprintf("row %d", f.Seq)
	if f.Until > f.Seq {
		rows = fmt.Sprintf("rows %d to %d", f.Seq, f.Until)
	}
	return fmt.Sprintf("%s of %s: %s: %s", rows, f.Node, f.Kind, f.Why)
}

// NodeReport is what was found about one node's chain.
type NodeReport struct {
	Node string `json:"node"`
	Rows int64  `json:"rows"`
	// From and To are the first and the last row, Head the hash of the last.
	From int64  `json:"from"`
	To   int64  `json:"to"`
	Head string `json:"head"`
	// Notes is how many checkpoints were compared with a row. Covered is the last row that one vouches for; what
	// comes behind it, Uncovered rows, holds together and could have been added or changed by somebody who calculated the hashes.
	Notes     int64 `json:"notes"`
	Covered   int64 `json:"covered"`
	Uncovered int64 `json:"uncovered"`
	// Trimmed is up to which row retention has removed what was there.
	Trimmed int64 `json:"trimmed,omitempty"`
	// Restores is how often the log was put back from a backup, RestoredAt the row that says so of the last time.
	Restores   int64 `json:"restores,omitempty"`
	RestoredAt int64 `json:"restored_at,omitempty"`
	// Findings counts what is wrong, Bad is the first.
	Findings int64    `json:"findings"`
	Bad      *Finding `json:"bad,omitempty"`
}

// Report is what [Verify] found.
type Report struct {
	Nodes []NodeReport `json:"nodes"`
	// Damaged are the lines of the checkpoints that are none. A machine that loses its power leaves one.
	Damaged []int `json:"damaged_checkpoints,omitempty"`
}

// OK says whether nothing is wrong.
func (r Report) OK() bool { return r.Bad() == nil }

// Bad is the first finding of the first node that has one; nil when all is well.
func (r Report) Bad() *Finding {
	for _, n := range r.Nodes {
		if n.Bad != nil {
			return n.Bad
		}
	}
	return nil
}

// Verify goes through the chains of all nodes, and compares them with the checkpoints. It finds any row that was
// changed, removed, added or moved; behind the last checkpoint only if the hashes were not calculated again. Without
// notes it looks at the chains alone, and then sees neither rows cut off at the end nor a chain that was written anew.
// The keys are those of the checkpoints and of the tombstones that retention leaves. The log may be written to
// meanwhile. An error says that verifying was not possible; what is wrong with the log stands in the report.
func Verify(ctx context.Context, rows Rows, notes Notes, keys checkpoint.Keys) (Report, error) {
	nodes, err := rows.AuditNodes(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("list the nodes of the audit log: %w", err)
	}
	v := &verifier{rows: rows, notes: notes, keys: keys, graves: map[string][]tombstone{}}
	noted, err := v.notedNodes(ctx)
	if err != nil {
		return Report{}, err
	}
	nodes = append(nodes, noted...)
	slices.Sort(nodes)
	var chains []*chain
	for _, node := range slices.Compact(nodes) {
		c := &chain{verifier: v, report: NodeReport{Node: node}}
		if err := c.walk(ctx); err != nil {
			return Report{}, err
		}
		chains = append(chains, c)
	}
	report := Report{Damaged: v.damaged}
	for _, c := range chains { // a tombstone may stand in another node's chain
		c.excuseGaps()
		c.explain()
		report.Nodes = append(report.Nodes, c.report)
	}
	return report, nil
}

type verifier struct {
	rows    Rows
	notes   Notes
	keys    checkpoint.Keys
	graves  map[string][]tombstone // by the node that they speak of
	damaged []int
}

// notedNodes are the nodes that checkpoints speak of: all rows of one may be gone.
func (v *verifier) notedNodes(ctx context.Context) ([]string, error) {
	if v.notes == nil {
		return nil, nil
	}
	seen := map[string]bool{}
	var out []string
	for note, err := range v.notes {
		var line *checkpoint.LineError
		switch {
		case errors.As(err, &line):
			v.damaged = append(v.damaged, line.Line)
		case err != nil:
			return nil, err
		case !seen[note.Node]:
			seen[note.Node] = true
			out = append(out, note.Node)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// gap is rows that are missing; hash is what the row behind them says about the last of them.
type gap struct {
	from, to int64
	hash     []byte
	nextID   string
}

// excuses says whether retention has removed what is missing. It may not have come to its end: then the rows that are
// still there lead up to the one that the tombstone names.
func (t tombstone) excuses(g gap) bool {
	return t.From <= g.from && (g.to < t.To || g.to == t.To && t.Hash == hexHash(g.hash))
}

// chain is the verifying of one node.
type chain struct {
	*verifier
	report   NodeReport
	previous *store.AuditRow
	gaps     []gap
	note     checkpoint.Note // the next one to compare
	more     bool            // whether there is one
	next     func() (checkpoint.Note, bool)
	scratch  []byte
}

func (c *chain) found(f Finding) {
	c.report.Findings++
	f.Node = c.report.Node
	if c.report.Bad == nil || f.Seq < c.report.Bad.Seq {
		c.report.Bad = &f
	}
}

func (c *chain) walk(ctx context.Context) error {
	next, stop := iter.Pull2(c.ofNode())
	defer stop()
	var failed error
	c.next = func() (checkpoint.Note, bool) {
		note, err, ok := next()
		if err != nil {
			failed = err
			return checkpoint.Note{}, false
		}
		return note, ok
	}
	c.note, c.more = c.next()
	for from := int64(1); ; {
		before := c.report.Rows
		for row, err := range c.rows.WalkAudit(ctx, c.report.Node, from) {
			if err != nil {
				return fmt.Errorf("read the audit log: %w", err)
			}
			c.row(row)
			if failed != nil {
				return failed
			}
		}
		// The log may have grown, and with it the checkpoints, while this went on.
		if !c.more || c.report.Rows == before {
			break
		}
		from = c.previous.Seq + 1
	}
	c.end()
	return failed
}

// ofNode are the checkpoints of the node; lines that are none were counted before.
func (c *chain) ofNode() Notes {
	return func(yield func(checkpoint.Note, error) bool) {
		if c.notes == nil {
			return
		}
		for note, err := range c.notes {
			var line *checkpoint.LineError
			if errors.As(err, &line) || err == nil && note.Node != c.report.Node {
				continue
			}
			if !yield(note, err) || err != nil {
				return
			}
		}
	}
}

// row looks at the next row.
func (c *chain) row(row store.AuditRow) {
	bad := func(kind Kind, format string, args ...any) {
		c.found(Finding{Kind: kind, Seq: row.Seq, ID: row.ID, Why: fmt.Sprintf(format, args...)})
	}
	c.report.Rows++
	var kind Kind
	var why string
	if kind, why, c.scratch = checkLink(c.previous, &row, c.scratch); why == notBehind {
		c.found(Finding{Kind: kind, Seq: c.previous.Seq, Until: row.Seq, ID: c.previous.ID, Why: why})
	} else if why != "" {
		bad(kind, "%s", why)
	}
	expected := int64(1)
	if c.previous != nil {
		expected = c.previous.Seq + 1
	} else {
		c.report.From = row.Seq
	}
	if row.Seq > expected {
		c.gaps = append(c.gaps, gap{from: expected, to: row.Seq - 1, hash: row.PrevHash, nextID: row.ID})
	}
	if row.Phase == PhaseTombstone {
		if t, err := readTombstone(row, c.keys); err != nil {
			bad(BadNote, "%v", err)
		} else {
			c.graves[t.Node] = append(c.graves[t.Node], t)
		}
	}
	if row.Action == ActionRestore {
		c.report.Restores++
		c.report.RestoredAt = row.Seq
	}
	c.compare(&row)
	c.previous = &row
	c.report.To, c.report.Head = row.Seq, hexHash(row.Hash)
}

// compare compares a row with the checkpoints of it.
func (c *chain) compare(row *store.AuditRow) {
	for c.more && c.note.Seq <= row.Seq {
		n := c.note
		switch err := c.signature(n); {
		case err != nil:
			c.found(Finding{Kind: BadNote, Seq: n.Seq, Why: fmt.Sprintf("of the checkpoint of this row, %v", err)})
		case n.Seq < row.Seq: // of a row that is missing
		case !bytes.Equal(n.Hash[:], row.Hash):
			c.found(Finding{Kind: Rewritten, Seq: max(c.report.Covered+1, c.report.From), Until: row.Seq, Why: "a checkpoint speaks of other rows"})
		default:
			c.report.Notes++
			c.report.Covered = row.Seq
		}
		c.note, c.more = c.next()
		if c.more && c.note.Seq < n.Seq {
			c.found(Finding{
				Kind: SetBack, Seq: c.note.Seq, Until: n.Seq,
				Why: fmt.Sprintf("a checkpoint of row %d was written before one of row %d", n.Seq, c.note.Seq),
			})
		}
	}
}

// signature checks that of a note, unless the note is of a row before those that are there: nothing is compared with
// it, and there may be years of them.
func (c *chain) signature(n checkpoint.Note) error {
	if n.Seq < c.report.From {
		return nil
	}
	return c.keys.VerifyNote(n)
}

// end looks at the checkpoints that speak of rows which were not there.
func (c *chain) end() {
	c.report.Uncovered = c.report.To - max(c.report.Covered, c.report.From-1)
	var last checkpoint.Note
	for ; c.more; c.note, c.more = c.next() {
		if err := c.keys.VerifyNote(c.note); err != nil {
			c.found(Finding{Kind: BadNote, Seq: c.note.Seq, Why: fmt.Sprintf("of the checkpoint of this row, %v", err)})
		} else if c.note.Seq > last.Seq {
			last = c.note
		}
	}
	switch {
	case last.Seq <= c.report.To:
	case c.report.Rows == 0:
		c.gaps = append(c.gaps, gap{from: 1, to: last.Seq, hash: last.Hash[:]})
	default:
		c.found(Finding{
			Kind: Truncated, Seq: c.report.To + 1, Until: last.Seq,
			Why: fmt.Sprintf("a checkpoint speaks of row %d, and the last one is %d", last.Seq, c.report.To),
		})
	}
}

// explain adds to a finding that a backup was restored, where that may be its whole cause. It stays a finding: the holder of the
// log's key can write such a record, and rows are gone in any case.
func (c *chain) explain() {
	bad := c.report.Bad
	if bad == nil || c.report.Restores == 0 {
		return
	}
	switch bad.Kind {
	case Truncated, Rewritten, SetBack:
		bad.Why += fmt.Sprintf("; row %d says that a backup was restored, so compare the log that it replaced with these checkpoints", c.report.RestoredAt)
	}
}

// excuseGaps finds those missing rows that no tombstone speaks of.
func (c *chain) excuseGaps() {
	for _, g := range c.gaps {
		i := slices.IndexFunc(c.graves[c.report.Node], func(t tombstone) bool { return t.excuses(g) })
		if i >= 0 {
			c.report.Trimmed = max(c.report.Trimmed, g.to)
			continue
		}
		f := Finding{Kind: Removed, Seq: g.from, Until: g.to, Why: "they are missing, and no tombstone says why"}
		if g.nextID == "" {
			f.Kind, f.Why = Truncated, "a checkpoint speaks of them, and the node has no rows"
		}
		c.found(f)
	}
}
