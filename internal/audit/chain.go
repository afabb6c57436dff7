package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Row is one record as the database has it.
type Row = store.AuditRow

const rowDomain = "clawjail audit row v1"

// rowHash covers every field of a row but itself: each with its length before it, behind the name of the format. The
// format is kept; another one gets another name.
func rowHash(r *store.AuditRow, scratch []byte) ([sha256.Size]byte, []byte) {
	b := checkpoint.Encode(scratch[:0], []byte(rowDomain), r.PrevHash, []byte(r.Node), checkpoint.Number(r.Seq),
		checkpoint.Number(r.Time.UnixMicro()), []byte(r.ID), []byte(r.Ref), []byte(r.Phase), []byte(r.Action), []byte(r.Result),
		[]byte(r.Tenant), []byte(r.Actor), []byte(r.Session), []byte(r.Jail), []byte(r.Target), r.Detail)
	return sha256.Sum256(b), b
}

// head is the end of a chain. The zero head is that of a node without rows.
type head struct {
	seq  int64
	hash [sha256.Size]byte
	time time.Time
}

func headOf(r store.AuditRow) (head, error) {
	if len(r.Hash) != sha256.Size {
		return head{}, fmt.Errorf("the hash of row %d has %d bytes", r.Seq, len(r.Hash))
	}
	return head{seq: r.Seq, hash: [sha256.Size]byte(r.Hash), time: r.Time}, nil
}

func (h head) is(other head) bool { return h.seq == other.seq && h.hash == other.hash }

// lookBack is how many of the newest rows are checked at the start.
const lookBack = 1024

// readHead finds the end of a node's chain, and refuses one that does not hold together: to go on from there would
// make a lie of every row that follows.
func readHead(ctx context.Context, rows store.Audit, node string) (head, error) {
	last, err := rows.LastAudit(ctx, node)
	if errors.Is(err, store.ErrNotFound) {
		return head{}, nil
	}
	if err != nil {
		return head{}, unavailable(err)
	}
	var previous *store.AuditRow
	var scratch []byte
	for row, err := range rows.WalkAudit(ctx, node, max(1, last.Seq-lookBack+1)) {
		if err != nil {
			return head{}, unavailable(err)
		}
		var why string
		if _, why, scratch = checkLink(previous, &row, scratch); why != "" {
			return head{}, broken("rows %d and %d of %s: %s", row.Seq-1, row.Seq, node, why)
		}
		previous = &row
	}
	if previous == nil || previous.Seq != last.Seq || !bytes.Equal(previous.Hash, last.Hash) {
		return head{}, broken("the newest row of %s is not the last of its rows", node)
	}
	return headOf(*previous)
}

// Kind is the kind of a finding: how a log was changed.
type Kind string

// The kinds.
const (
	Edited    Kind = "edited"     // a row is not what its hash says
	Removed   Kind = "removed"    // rows are missing that no tombstone speaks of
	Misplaced Kind = "misplaced"  // a row does not follow the one before it: moved, added or twice
	Rewritten Kind = "rewritten"  // rows hold together, and are not those that a checkpoint speaks of
	Truncated Kind = "truncated"  // a checkpoint speaks of rows behind the last one
	BadNote   Kind = "checkpoint" // a checkpoint or a tombstone was not signed by the log
	SetBack   Kind = "set_back"   // checkpoints go back: an older state of the log was put in place
)

// notBehind is what is wrong between two rows, either of which may be the false one.
const notBehind = "the second does not belong behind the first"

// checkLink compares a row with its own hash and with the row before it; previous is nil for the first one that is
// looked at. Rows that are missing in between are not looked for here.
func checkLink(previous, row *store.AuditRow, scratch []byte) (Kind, string, []byte) {
	hash, scratch := rowHash(row, scratch)
	switch {
	case !bytes.Equal(hash[:], row.Hash):
		return Edited, "it is not what its hash says", scratch
	case row.Seq < 1:
		return Misplaced, "rows are numbered from 1", scratch
	case row.Seq == 1 && !bytes.Equal(row.PrevHash, make([]byte, sha256.Size)):
		return Misplaced, "it is the first one, and claims that one came before it", scratch
	case previous == nil:
		return "", "", scratch
	case row.Seq <= previous.Seq:
		return Misplaced, fmt.Sprintf("it comes behind row %d", previous.Seq), scratch
	case row.Seq == previous.Seq+1 && !bytes.Equal(row.PrevHash, previous.Hash):
		return Misplaced, notBehind, scratch
	case row.Time.Before(previous.Time):
		return Misplaced, "it is older than the row before it", scratch
	}
	return "", "", scratch
}

// unavailable is what callers get when a record cannot be written.
func unavailable(err error) error {
	if problem.CodeOf(err) == problem.DiskFull {
		return problem.Wrap(err, problem.AuditUnavailable, "free some space on the disk of the database; sessions can still be closed",
			"the action was not done, because it cannot be recorded: the disk of the database is full")
	}
	return problem.Wrap(err, problem.AuditUnavailable,
		"every action is recorded before it is done; make the database writable again and try again",
		"the action was not done, because it cannot be recorded")
}

func broken(format string, args ...any) error {
	return problem.Wrap(fmt.Errorf(format, args...), problem.AuditBroken,
		"somebody else changed the log; run `clawjail audit verify`, keep a copy of the database, and restore it or give the node another name",
		"the hash chain of the audit log is broken, so nothing can be recorded in it")
}

func hexHash(hash []byte) string { return hex.EncodeToString(hash) }
