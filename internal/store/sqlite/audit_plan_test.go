package sqlite

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

// TestLogAskedForActionsReadsNoOtherRows: a row that does not match is told by the index alone.
func TestLogAskedForActionsReadsNoOtherRows(t *testing.T) {
	db, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	since := time.Date(2031, 2, 3, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		filter  store.AuditFilter
		covered bool
	}{
		{store.AuditFilter{ActionPrefix: "session.", Limit: 1, Newest: true}, true},
		{store.AuditFilter{Action: "session.open", Limit: 1}, true},
		{store.AuditFilter{ActionPrefix: "session.", Tenant: "acme", Since: since, Until: since.Add(time.Hour), Limit: 1, Newest: true}, true},
		{store.AuditFilter{ActionPrefix: "session.", Actor: "operator:a", Limit: 1, Newest: true}, true},
		{store.AuditFilter{Tenant: "acme", Limit: 1, Newest: true}, true},
		{store.AuditFilter{Tenant: "acme", Actor: "operator:a", Result: "refused", Limit: 1, Newest: true}, true},
		{store.AuditFilter{Tenant: "acme", Jail: "j", Limit: 1, Newest: true}, false}, // the jail is in the table
	} {
		query, args := db.SelectAudit(c.filter)
		rows, err := db.read.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
		if err != nil {
			t.Fatal(err)
		}
		var plan []string
		for rows.Next() {
			var id, parent, unused int
			var step string
			if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, step)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		if covered := strings.Contains(strings.Join(plan, "\n"), "COVERING INDEX audit_time"); covered != c.covered {
			t.Errorf("%+v is read as %q", c.filter, plan)
		}
	}
}

// TestListingsOfTheLogKeepNobodyElseFromReading: those that take their time hold connections that nothing else reads with.
func TestListingsOfTheLogKeepNobodyElseFromReading(t *testing.T) {
	db, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for range listers {
		busy, err := db.listings.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer busy.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := db.ListAudit(ctx, store.AuditFilter{Limit: 1}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a listing finds a connection: %v", err)
	}
	if _, err := db.ListTenants(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := db.LastAudit(t.Context(), "n1"); !errors.Is(err, store.ErrNotFound) {
		t.Error(err)
	}
}
