package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/clawjail/clawjail/internal/store"
)

// walk collects what WalkAudit yields.
func walk(t *testing.T, s store.Store, node string, from int64) (rows []store.AuditRow) {
	t.Helper()
	for r, err := range s.WalkAudit(t.Context(), node, from) {
		must(t, err)
		rows = append(rows, r)
	}
	return rows
}

func testAuditAppend(t *testing.T, s store.Store) {
	ctx := t.Context()
	_, err := s.LastAudit(ctx, "n1")
	wantError(t, "the last of none", err, store.ErrNotFound)
	check(t, "nodes", []string(nil))(s.AuditNodes(ctx))
	must(t, s.AppendAudit(ctx, nil))

	rows := auditRows("n1", 1, 3)
	rows[1].Ref, rows[1].Session, rows[1].Jail, rows[1].Target, rows[1].Detail, rows[1].Tenant, rows[1].Result = "", "", "", "", nil, "", ""
	must(t, s.AppendAudit(ctx, rows))
	same(t, "what was appended", walk(t, s, "n1", 1), rows)
	// Rows of several nodes, one among the others, go together.
	must(t, s.AppendAudit(ctx, []store.AuditRow{auditRow("n2", 1), auditRow("n1", 4), auditRow("n2", 2), auditRow("m", 1)}))
	check(t, "nodes", []string{"m", "n1", "n2"})(s.AuditNodes(ctx))
	check(t, "the last", auditRow("n2", 2))(s.LastAudit(ctx, "n2"))
	check(t, "by ID", rows[2])(s.FindAudit(ctx, "n1-3"))
	_, err = s.FindAudit(ctx, "n1-9")
	wantError(t, "no such ID", err, store.ErrNotFound)
}

// testAuditOrder: a batch with a row that is there, or that leaves a gap, is refused whole.
func testAuditOrder(t *testing.T, s store.Store) {
	ctx := t.Context()
	must(t, s.AppendAudit(ctx, auditRows("n1", 1, 3)))
	sameID := auditRow("n1", 4)
	sameID.ID = "n1-2"
	twin := auditRow("n1", 5)
	twin.ID = "n1-4"
	for _, tt := range []struct {
		name string
		rows []store.AuditRow
		want error
	}{
		{"the newest again", auditRows("n1", 3, 3), store.ErrExists},
		{"an older one and new ones", auditRows("n1", 2, 6), store.ErrExists},
		{"a gap", auditRows("n1", 5, 6), store.ErrGap},
		{"a gap in the middle", []store.AuditRow{auditRow("n1", 4), auditRow("n1", 6)}, store.ErrGap},
		{"twice in the batch", []store.AuditRow{auditRow("n1", 4), auditRow("n1", 4)}, store.ErrExists},
		{"backwards", []store.AuditRow{auditRow("n1", 5), auditRow("n1", 4)}, store.ErrExists},
		{"a new node that does not begin with 1", auditRows("n2", 2, 2), store.ErrGap},
		{"a good node and a bad one", []store.AuditRow{auditRow("n3", 1), auditRow("n1", 9)}, store.ErrGap},
		{"an ID that exists", []store.AuditRow{sameID}, store.ErrExists},
		{"an ID that exists, after a good row", []store.AuditRow{auditRow("n3", 1), sameID}, store.ErrExists},
		{"an ID twice in the batch", []store.AuditRow{auditRow("n1", 4), twin}, store.ErrExists},
		{"row 0", auditRows("n1", 0, 0), store.ErrInvalid},
	} {
		wantError(t, tt.name, s.AppendAudit(ctx, tt.rows), tt.want)
	}
	same(t, "the log after all that", walk(t, s, "n1", 1), auditRows("n1", 1, 3))
	check(t, "nodes", []string{"n1"})(s.AuditNodes(ctx))
	must(t, s.AppendAudit(ctx, auditRows("n1", 4, 4)))
}

func testAuditRace(t *testing.T, s store.Store) { auditRace(t, []store.Store{s}) }

// auditRace: of those that append the same row, one does. None leaves a gap or a fork.
func auditRace(t *testing.T, nodes []store.Store) {
	const rounds, writers = 5, 12
	for seq := 1; seq <= rounds; seq++ {
		var won counter
		race(writers, func(i int) {
			row := auditRow("n1", seq)
			row.ID = fmt.Sprint(seq, "-", i)
			switch err := nodes[i%len(nodes)].AppendAudit(t.Context(), []store.AuditRow{row}); {
			case err == nil:
				won.add()
			case !errors.Is(err, store.ErrExists):
				t.Error(err)
			}
		})
		won.want(t, "writers that appended the row", 1)
	}
	for i, row := range walk(t, nodes[0], "n1", 1) {
		if row.Seq != int64(i+1) {
			t.Errorf("row %d has the seq %d", i+1, row.Seq)
		}
	}
	check(t, "the last", int64(rounds))(seqOf(nodes[0].LastAudit(t.Context(), "n1")))
}

func seqOf(row store.AuditRow, err error) (int64, error) { return row.Seq, err }

func testAuditFilter(t *testing.T, s store.Store) {
	ctx := t.Context()
	var all []store.AuditRow
	add := func(node string, seq, second int, change func(*store.AuditRow)) {
		row := auditRow(node, seq)
		row.Time = at(second)
		change(&row)
		all = append(all, row)
	}
	add("n2", 1, 10, func(r *store.AuditRow) { r.Action = "grant.issue" })
	add("n1", 1, 10, func(r *store.AuditRow) { r.Tenant = "acme" })
	add("n1", 2, 30, func(r *store.AuditRow) { r.Actor = "agent:1" })
	add("n2", 2, 20, func(r *store.AuditRow) { r.Session = "s2" })
	add("n1", 3, 25, func(r *store.AuditRow) { r.Jail = "j2" }) // its clock was set back
	add("n1", 4, 40, func(r *store.AuditRow) { r.Phase, r.Result = "intent", "" })
	add("n1", 5, 50, func(r *store.AuditRow) { r.Phase, r.Result, r.Ref = "outcome", "failed", "n1-4" })
	add("n1", 6, 60, func(r *store.AuditRow) { r.Action = "session_x" })
	must(t, s.AppendAudit(ctx, all))
	ids := func(rows []store.AuditRow, err error) ([]string, error) {
		var out []string
		for _, r := range rows {
			out = append(out, r.ID)
		}
		return out, err
	}
	for _, tt := range []struct {
		name   string
		filter store.AuditFilter
		want   []string
	}{
		{"all, by time, node and seq", store.AuditFilter{}, []string{"n1-1", "n2-1", "n2-2", "n1-3", "n1-2", "n1-4", "n1-5", "n1-6"}},
		{"of a node, by seq", store.AuditFilter{Node: "n1"}, []string{"n1-1", "n1-2", "n1-3", "n1-4", "n1-5", "n1-6"}},
		{"the first", store.AuditFilter{Limit: 2}, []string{"n1-1", "n2-1"}},
		{"the newest", store.AuditFilter{Limit: 2, Newest: true}, []string{"n1-5", "n1-6"}},
		{"the newest of a node", store.AuditFilter{Node: "n2", Limit: 1, Newest: true}, []string{"n2-2"}},
		{"behind a row", store.AuditFilter{Node: "n1", AfterSeq: 4}, []string{"n1-5", "n1-6"}},
		{"behind a row, the newest", store.AuditFilter{Node: "n1", AfterSeq: 1, Limit: 2, Newest: true}, []string{"n1-5", "n1-6"}},
		{"tenant", store.AuditFilter{Tenant: "acme"}, []string{"n1-1"}},
		{"actor", store.AuditFilter{Actor: "agent:1"}, []string{"n1-2"}},
		{"action", store.AuditFilter{Action: "grant.issue"}, []string{"n2-1"}},
		{"prefix", store.AuditFilter{ActionPrefix: "grant."}, []string{"n2-1"}},
		{"prefix without wildcards", store.AuditFilter{ActionPrefix: "session_"}, []string{"n1-6"}},
		{"prefix of a percent sign", store.AuditFilter{ActionPrefix: "%"}, nil},
		{"session", store.AuditFilter{Session: "s2"}, []string{"n2-2"}},
		{"jail", store.AuditFilter{Jail: "j2"}, []string{"n1-3"}},
		{"phase", store.AuditFilter{Phase: "intent"}, []string{"n1-4"}},
		{"result", store.AuditFilter{Result: "failed"}, []string{"n1-5"}},
		{"ref", store.AuditFilter{Ref: "n1-4"}, []string{"n1-5"}},
		{"since", store.AuditFilter{Since: at(40)}, []string{"n1-4", "n1-5", "n1-6"}},
		{"until", store.AuditFilter{Until: at(20)}, []string{"n1-1", "n2-1"}},
		{"between", store.AuditFilter{Since: at(20), Until: at(30)}, []string{"n2-2", "n1-3"}},
		{"several", store.AuditFilter{Node: "n1", Phase: "event", Jail: "j1", Since: at(20)}, []string{"n1-2", "n1-6"}},
		{"none", store.AuditFilter{Actor: "nobody"}, nil},
	} {
		if tt.filter.Limit == 0 {
			tt.filter.Limit = 100
		}
		check(t, tt.name, tt.want)(ids(s.ListAudit(ctx, tt.filter)))
	}
	_, err := s.ListAudit(ctx, store.AuditFilter{})
	wantError(t, "without a limit", err, store.ErrInvalid)
	_, err = s.ListAudit(ctx, store.AuditFilter{AfterSeq: 1, Limit: 1})
	wantError(t, "a seq without a node", err, store.ErrInvalid)
}

func testAuditWalk(t *testing.T, s store.Store) {
	const n = 1000
	rows := auditRows("n1", 1, n)
	for batch := range slices.Chunk(rows, 300) {
		must(t, s.AppendAudit(t.Context(), batch))
	}
	must(t, s.AppendAudit(t.Context(), auditRows("n2", 1, 3)))
	same(t, "all rows", walk(t, s, "n1", 1), rows)
	same(t, "from the start, and before it", walk(t, s, "n1", -5), rows)
	same(t, "from one on", walk(t, s, "n1", 990), rows[989:])
	same(t, "from behind the last", walk(t, s, "n1", n+1), []store.AuditRow(nil))
	same(t, "of no node", walk(t, s, "n9", 1), []store.AuditRow(nil))
	for stop := range 3 {
		seen := 0
		for _, err := range s.WalkAudit(t.Context(), "n1", 1) {
			must(t, err)
			if seen++; seen > stop {
				break
			}
		}
	}
}

// testAuditWalkSeesOneState: what is appended and trimmed during a walk is not seen by it, so that a check of the
// chain finds no break that is none.
func testAuditWalkSeesOneState(t *testing.T, s store.Store) {
	ctx := t.Context()
	rows := auditRows("n1", 1, 900)
	must(t, s.AppendAudit(ctx, rows))
	var seen []store.AuditRow
	for r, err := range s.WalkAudit(ctx, "n1", 1) {
		must(t, err)
		if len(seen) == 0 {
			must(t, s.AppendAudit(ctx, auditRows("n1", 901, 910)))
			check(t, "removed", 800)(s.TrimAudit(ctx, "n1", 800, store.Duty{}))
		}
		seen = append(seen, r)
	}
	same(t, "what the walk saw", seen, rows)
	same(t, "what the next one sees", walk(t, s, "n1", 1), auditRows("n1", 801, 910))
}

// testAuditWalksStarveNobody: more walks than a pool has connections, each of which uses the store.
func testAuditWalksStarveNobody(t *testing.T, s store.Store) {
	ctx := t.Context()
	must(t, s.AppendAudit(ctx, auditRows("n1", 1, 20)))
	const walks = 12
	var inside atomic.Int64
	all := make(chan struct{})
	race(walks, func(i int) {
		first := true
		for r, err := range s.WalkAudit(ctx, "n1", 1) {
			if err != nil {
				t.Error(err)
				return
			}
			if first {
				first = false
				if inside.Add(1) == walks {
					close(all)
				}
				<-all
			}
			if _, err := s.FindAudit(ctx, r.ID); err != nil {
				t.Error(err)
			}
		}
	})
}

func testOpenIntents(t *testing.T, s store.Store) {
	ctx := t.Context()
	rows := auditRows("n1", 1, 6)
	for i, change := range []struct{ phase, ref string }{
		{"intent", ""}, {"intent", ""}, {"outcome", "n1-1"}, {"event", "n1-2"}, {"intent", ""}, {"intent", "n1-2"},
	} {
		rows[i].Phase, rows[i].Ref = change.phase, change.ref
	}
	must(t, s.AppendAudit(ctx, rows))
	intent := auditRow("n2", 1)
	intent.Phase = "intent"
	must(t, s.AppendAudit(ctx, []store.AuditRow{intent}))
	check(t, "without an outcome, the oldest first", []store.AuditRow{rows[1], rows[4], rows[5]})(s.OpenIntents(ctx, "n1"))
	check(t, "of another node", []store.AuditRow{intent})(s.OpenIntents(ctx, "n2"))
	check(t, "of no node", []store.AuditRow(nil))(s.OpenIntents(ctx, "n3"))
	// Another node may write the outcome of one that is gone.
	outcome := auditRow("n2", 2)
	outcome.Phase, outcome.Ref = "outcome", "n1-2"
	must(t, s.AppendAudit(ctx, []store.AuditRow{outcome}))
	check(t, "closed by another node", []store.AuditRow{rows[4], rows[5]})(s.OpenIntents(ctx, "n1"))
}

// testAuditSizes: what is kept beside the rows is what a count of them says, also after rows have gone, and of a batch that
// was refused there is nothing.
func testAuditSizes(t *testing.T, s store.Store) {
	ctx := t.Context()
	check(t, "sizes of none", []store.AuditSize(nil))(s.AuditSizes(ctx))
	rows := auditRows("n1", 1, 40)
	for i := range rows {
		r := &rows[i]
		r.Tenant = []string{"", "acme", "other"}[i%3]
		r.Actor = []string{"agent:a", "operator:a", "agent:ü", "system"}[i%4]
		r.Target, r.Detail = strings.Repeat("ü", i), []byte(`{"a":"`+strings.Repeat("x", i)+`"}`)
	}
	rows[7].Detail = nil
	must(t, s.AppendAudit(ctx, rows[:3]))
	must(t, s.AppendAudit(ctx, rows[3:]))
	check(t, "sizes", store.SizesOf(rows))(s.AuditSizes(ctx))
	wantError(t, "a gap", s.AppendAudit(ctx, auditRows("n1", 60, 60)), store.ErrGap)
	must(t, s.AppendAudit(ctx, auditRows("n2", 1, 2)))
	check(t, "removed", 17)(s.TrimAudit(ctx, "n1", 17, store.Duty{}))
	check(t, "sizes after some have gone", store.SizesOf(append(slices.Clone(rows[17:]), auditRows("n2", 1, 2)...)))(s.AuditSizes(ctx))
	check(t, "removed", 22)(s.TrimAudit(ctx, "n1", 39, store.Duty{}))
	check(t, "sizes after most have gone", store.SizesOf(append(slices.Clone(rows[39:]), auditRows("n2", 1, 2)...)))(s.AuditSizes(ctx))
}

func testAuditTrim(t *testing.T, s store.Store) {
	ctx := t.Context()
	must(t, s.AppendAudit(ctx, append(auditRows("n1", 1, 10), auditRows("n2", 1, 3)...)))
	check(t, "removed", 4)(s.TrimAudit(ctx, "n1", 4, store.Duty{}))
	check(t, "removed again", 0)(s.TrimAudit(ctx, "n1", 4, store.Duty{}))
	check(t, "removed of nothing", 0)(s.TrimAudit(ctx, "n9", 4, store.Duty{}))
	check(t, "removed before the start", 0)(s.TrimAudit(ctx, "n1", -1, store.Duty{}))
	for _, upTo := range []int64{10, 11, 1 << 62} {
		_, err := s.TrimAudit(ctx, "n1", upTo, store.Duty{})
		wantError(t, fmt.Sprint("the newest row, by trimming to ", upTo), err, store.ErrInvalid)
	}
	same(t, "what is left", walk(t, s, "n1", 1), auditRows("n1", 5, 10))
	same(t, "the other node", walk(t, s, "n2", 1), auditRows("n2", 1, 3))
	wantError(t, "a removed row again", s.AppendAudit(ctx, auditRows("n1", 4, 4)), store.ErrExists)
	check(t, "removed", 5)(s.TrimAudit(ctx, "n1", 9, store.Duty{}))
	must(t, s.AppendAudit(ctx, auditRows("n1", 11, 12)))
	same(t, "the log goes on", walk(t, s, "n1", 1), auditRows("n1", 10, 12))
}
