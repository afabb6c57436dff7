package sqlite_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
)

func BenchmarkUseGrant(b *testing.B) {
	db := open(b, b.TempDir())
	for i := range 1000 { // as many as are alive at most
		if err := db.CreateGrant(b.Context(), grantNamed(fmt.Sprint("other", i))); err != nil {
			b.Fatal(err)
		}
	}
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		id := fmt.Sprint("g", i)
		if err := db.CreateGrant(b.Context(), grantNamed(id)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, used, err := db.UseGrant(b.Context(), id, store.DefaultTenant, "session", noon); err != nil || !used {
			b.Fatal(used, err)
		}
	}
}

func BenchmarkTokenByHash(b *testing.B) {
	db := open(b, b.TempDir())
	r := row("n", 1)
	if err := db.CreateAgent(b.Context(), store.Agent{ID: "a", Tenant: store.DefaultTenant, Name: "bea", CreatedAt: noon}); err != nil {
		b.Fatal(err)
	}
	if err := db.CreateToken(b.Context(), store.Token{ID: "t", Agent: "a", Hash: r.Hash, CreatedAt: noon}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := db.TokenByHash(b.Context(), r.Hash); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppendAudit: one intent alone, and groups as they are committed under load.
func BenchmarkAppendAudit(b *testing.B) {
	for _, group := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint("rows=", group), func(b *testing.B) {
			db := open(b, b.TempDir())
			seq := int64(0)
			rows := make([]store.AuditRow, group)
			for b.Loop() {
				b.StopTimer()
				for i := range rows {
					seq++
					rows[i] = row("node-1", seq)
				}
				b.StartTimer()
				if err := db.AppendAudit(b.Context(), rows); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(group)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

func BenchmarkWalkAudit(b *testing.B) {
	db := open(b, b.TempDir())
	const n = 20_000
	rows := make([]store.AuditRow, n)
	for i := range rows {
		rows[i] = row("node-1", int64(i+1))
	}
	if err := db.AppendAudit(b.Context(), rows); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		seen := 0
		for _, err := range db.WalkAudit(b.Context(), "node-1", 1) {
			if err != nil {
				b.Fatal(err)
			}
			seen++
		}
		if seen != n {
			b.Fatal(seen)
		}
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkChargeUsage: a charge that fits, of one row that all charge, beside a plain insert into another table.
func BenchmarkChargeUsage(b *testing.B) {
	dir := b.TempDir()
	db := open(b, dir)
	b.Run("charge", func(b *testing.B) {
		for b.Loop() {
			if _, charged, err := db.ChargeUsage(b.Context(), oneRequest(), store.UsageLimit{Tokens: 1 << 50}); err != nil || !charged {
				b.Fatal(charged, err)
			}
		}
	})
	b.Run("refuse", func(b *testing.B) {
		for b.Loop() {
			if _, charged, err := db.ChargeUsage(b.Context(), oneRequest(), store.UsageLimit{Tokens: 1}); err != nil || charged {
				b.Fatal(charged, err)
			}
		}
	})
	b.Run("plain insert", func(b *testing.B) {
		plain, err := sql.Open("sqlite", "file:"+filepath.Join(dir, sqlite.FileName)+"?_txlock=immediate&_synchronous=FULL&_pragma=synchronous(FULL)")
		if err != nil {
			b.Fatal(err)
		}
		defer plain.Close()
		plain.SetMaxOpenConns(1)
		if _, err := plain.ExecContext(b.Context(), `CREATE TABLE plain (day TEXT, agent TEXT, tokens INTEGER)`); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := plain.ExecContext(b.Context(), `INSERT INTO plain VALUES ($1, $2, $3)`, "2031-02-03", "a1", 9); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := plain.ExecContext(b.Context(), `DROP TABLE plain`); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkEntries lists 10 000 entries, asks for their revision, and changes one of them.
func BenchmarkEntries(b *testing.B) {
	dir := b.TempDir()
	db := open(b, dir)
	e := store.Entry{ID: "entry77", Kind: "rule", Body: []byte(`{"host":"example.com","methods":["GET","POST"],"path":"/a/b/c"}`), UpdatedAt: noon}
	err := file(dir).Exec(b.Context(), `WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
		INSERT INTO entries SELECT 'entry' || n, 'rule', NULL, NULL, '', CAST('`+string(e.Body)+`' AS BLOB), 1, 1, 1, NULL FROM numbers`)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("list 10000", func(b *testing.B) {
		for b.Loop() {
			if list, err := db.ListEntries(b.Context(), ""); err != nil || len(list) != 10_000 {
				b.Fatal(len(list), err)
			}
		}
	})
	b.Run("revision", func(b *testing.B) {
		for b.Loop() {
			if _, err := db.EntriesRevision(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("update", func(b *testing.B) {
		for b.Loop() {
			e.Version++
			if err := db.UpdateEntry(b.Context(), e); err != nil {
				b.Fatal(err)
			}
		}
	})
}
