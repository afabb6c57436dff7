package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// someLog writes a random log and closes it.
func someLog(t *testing.T, r *rapid.T, w *fixture) {
	if err := os.RemoveAll(w.options.SpillPath); err != nil {
		t.Fatal(err)
	}
	w.store, w.keeper = &memory{}, &keeper{}
	w.options.Store, w.options.Checkpoints = w.store, w.keeper
	w.options.CheckpointRows = rapid.Int64Range(1, 40).Draw(r, "checkpoint rows")
	l, err := Open(context.Background(), w.options)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close(l)
	for i := range rapid.IntRange(2, 30).Draw(r, "actions") {
		action := rapid.SampledFrom([]string{"session.open", "grant.use", "host.denied"}).Draw(r, "action")
		switch rapid.IntRange(0, 3).Draw(r, "what") {
		case 0:
			l.Note(Event{Action: action, Result: Refused, Target: fmt.Sprint(i)})
		case 1:
			l.BeginEnding(Intent{Action: action, Session: fmt.Sprint(i)}).End(Outcome{Result: OK})
		case 2:
			w.begin(l, action)
		default:
			w.begin(l, action).End(Outcome{Result: Failed, Detail: NewDetail(Fields{"n": i})})
		}
	}
}

// rehash makes the rows from index i on a chain again, as somebody does who can write to the database.
func rehash(rows []store.AuditRow, from int) {
	previous := make([]byte, sha256.Size)
	for i := range rows {
		if i >= from {
			rows[i].Seq = int64(i + 1)
			rows[i].PrevHash = previous
			hash, _ := rowHash(&rows[i], nil)
			rows[i].Hash = hash[:]
		}
		previous = rows[i].Hash
	}
}

// edits change one field each. A row that is not changed fails the test.
func edits() map[string]func(*store.AuditRow) {
	text := func(field func(*store.AuditRow) *string) func(*store.AuditRow) {
		return func(r *store.AuditRow) { *field(r) += "x" }
	}
	return map[string]func(*store.AuditRow){
		"time":    func(r *store.AuditRow) { r.Time = r.Time.Add(time.Microsecond) },
		"id":      text(func(r *store.AuditRow) *string { return &r.ID }),
		"ref":     text(func(r *store.AuditRow) *string { return &r.Ref }),
		"phase":   text(func(r *store.AuditRow) *string { return &r.Phase }),
		"action":  text(func(r *store.AuditRow) *string { return &r.Action }),
		"result":  text(func(r *store.AuditRow) *string { return &r.Result }),
		"tenant":  text(func(r *store.AuditRow) *string { return &r.Tenant }),
		"actor":   text(func(r *store.AuditRow) *string { return &r.Actor }),
		"session": text(func(r *store.AuditRow) *string { return &r.Session }),
		"jail":    text(func(r *store.AuditRow) *string { return &r.Jail }),
		"target":  text(func(r *store.AuditRow) *string { return &r.Target }),
		"moved":   func(r *store.AuditRow) { r.Actor, r.Session = r.Actor+r.Session, "s" }, // between neighbouring fields
		"detail":  func(r *store.AuditRow) { r.Detail = append(bytes.Clone(r.Detail), ' ') },
	}
}

func TestEveryChangeOfALogIsFound(t *testing.T) {
	w := newFixture(t)
	w.options.CheckpointEvery = time.Hour
	property.Check(t, func(r *rapid.T) {
		someLog(t, r, w)
		if bad := w.verify().Bad(); bad != nil {
			r.Fatalf("an honest log is said to be bad: %v", bad)
		}
		rows := w.store.all()
		n := len(rows)
		at := rapid.IntRange(0, n-1).Draw(r, "row") // the first row that is not as it was
		clever := rapid.Bool().Draw(r, "calculates the hashes again")
		what := rapid.SampledFrom([]string{"edit", "remove", "remove many", "swap", "truncate", "duplicate", "insert", "node", "hash"}).Draw(r, "mutation")
		switch what {
		case "edit":
			name := rapid.SampledFrom([]string{
				"time", "id", "ref", "phase", "action", "result", "tenant", "actor", "session", "jail", "target", "moved", "detail",
			}).Draw(r, "field")
			edits()[name](&rows[at])
		case "remove":
			rows = slices.Delete(rows, at, at+1)
		case "remove many":
			rows = slices.Delete(rows, at, rapid.IntRange(at+1, n).Draw(r, "to"))
		case "swap":
			at = min(at, n-2)
			other := rapid.IntRange(at+1, n-1).Draw(r, "with")
			rows[at], rows[other] = rows[other], rows[at]
			if rapid.Bool().Draw(r, "numbers too") {
				rows[at].Seq, rows[other].Seq = rows[other].Seq, rows[at].Seq
			}
		case "truncate":
			rows = rows[:at]
		case "duplicate":
			rows = slices.Insert(rows, at, rows[at])
			if at++; !clever {
				rows[at].Seq++
			}
		case "insert":
			forged := rows[at]
			forged.ID, forged.Actor = "forged", "nobody"
			rows = slices.Insert(rows, at, forged)
		case "node":
			rows[at].Node = "n2"
			clever = false
		case "hash":
			rows[at].Hash = bytes.Repeat([]byte{7}, sha256.Size)
			clever = false
		}
		if clever {
			rehash(rows, min(at, max(len(rows)-1, 0)))
		}
		slices.SortStableFunc(rows, func(a, b store.AuditRow) int { return int(a.Seq - b.Seq) })
		if slices.EqualFunc(rows, w.store.all(), sameRow) {
			return // two rows of the same number, side by side, were put where they were
		}
		w.store.set(func(m *memory) { m.rows = rows })
		report := w.verify()
		if report.OK() && clever && at >= n && report.Nodes[0].Uncovered > 0 {
			return // a row behind the last checkpoint: it is said that nothing vouches for it
		}
		if report.OK() {
			r.Fatalf("%s of row %d of %d is not found", what, at+1, n)
		}
		node := report.Nodes[0]
		if what == "edit" && !clever && (node.Bad.Kind != Edited || node.Bad.Seq != int64(at+1)) {
			r.Fatalf("row %d was edited, and the first bad one is %v", at+1, node.Bad)
		}
		if clever && node.Covered > int64(at) && len(rows) > 0 {
			r.Fatalf("row %d is false, and a checkpoint is said to vouch for %d rows", at+1, node.Covered)
		}
		if first := node.Bad; first.Until == 0 && first.Seq < int64(at) {
			r.Fatalf("%s of row %d, and the first bad one is %v", what, at+1, first)
		}
	})
}

func sameRow(a, b store.AuditRow) bool {
	var one, two strings.Builder
	_, _ = WriteRow(&one, a), WriteRow(&two, b) // to memory
	return one.String() == two.String()
}

// Without it, the one above would say nothing about a field that no edit changes.
func TestEveryFieldIsInTheHash(t *testing.T) {
	row := store.AuditRow{
		Node: "n", Seq: 1, Time: day, ID: "i", Ref: "r", Phase: "p", Action: "a", Result: "o", Tenant: "t", Actor: "c", Session: "s",
		Jail: "j", Target: "g", Detail: []byte("{}"), PrevHash: make([]byte, 32),
	}
	before, _ := rowHash(&row, nil)
	changes := edits()
	changes["node"] = func(r *store.AuditRow) { r.Node = "m" }
	changes["seq"] = func(r *store.AuditRow) { r.Seq = 2 }
	changes["previous"] = func(r *store.AuditRow) { r.PrevHash = bytes.Repeat([]byte{1}, 32) }
	for name, change := range changes {
		other := row
		change(&other)
		if after, _ := rowHash(&other, nil); after == before {
			t.Errorf("%s is not in the hash", name)
		}
	}
	// The format is kept: logs are verified years later.
	if got := hexHash(before[:]); got != goldenHash {
		t.Errorf("the hash of a row is %s, and was %s", got, goldenHash)
	}
}

const goldenHash = "a9fe1d2ee51b886ef7dc9f8c508c5f08a48919359bc38b60ecb13f20a8b5f734"
