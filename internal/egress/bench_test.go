package egress

import (
	"fmt"
	"hash/maphash"
	"log/slog"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/store"
)

// tenThousand are entries with as many rules of a tenant.
func tenThousand(b *testing.B) []store.Entry {
	b.Helper()
	var out []store.Entry
	for i := range maxRules {
		r := rule(policy.Allow, fmt.Sprintf("h%d.example", i))
		r.Meta = Meta{ID: fmt.Sprintf("rule_%d", i), Tenant: "acme", CreatedAt: time.Unix(1, 0), UpdatedAt: time.Unix(1, 0), Version: 1}
		r.Priority = 1 + i%999
		e, err := r.entry()
		if err != nil {
			b.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

func BenchmarkView(b *testing.B) {
	w := newFixture(b)
	entries := tenThousand(b)
	w.store.alter = func([]store.Entry) []store.Entry { return entries }
	other := w.another()
	bot := agent(w.bot)
	b.Run("hit", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			other.View(bot)
		}
	})
	b.Run("hit-parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				other.View(bot)
			}
		})
	})
	b.Run("hit-used", func(b *testing.B) {
		for b.Loop() {
			other.Used(w.ctx, "github")
		}
	})
	b.Run("build-10000", func(b *testing.B) {
		d := other.state.Load().decisions
		for b.Loop() {
			clear(d.views)
			clear(d.rulesets)
			if other.View(bot).Proxy() == nil {
				b.Fatal("no policy")
			}
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	entries := tenThousand(b)
	r := reader{log: slog.New(slog.DiscardHandler)}
	r.seed = maphash.MakeSeed()
	before := r.next(nil, 1, entries)
	b.Run("all-10000", func(b *testing.B) {
		for b.Loop() {
			r.next(nil, 1, entries)
		}
	})
	b.Run("nothing-changed-10000", func(b *testing.B) {
		for b.Loop() {
			r.next(before, 2, entries)
		}
	})
	changed := append([]store.Entry{}, entries...)
	changed[0].Version++
	b.Run("one-changed-10000", func(b *testing.B) {
		for b.Loop() {
			r.next(before, 2, changed)
		}
	})
}
