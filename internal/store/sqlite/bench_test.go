package sqlite_test

import (
	"fmt"
	"testing"

	"github.com/clawjail/clawjail/internal/store"
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
