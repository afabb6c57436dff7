package controlplane

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
)

// nowhere keeps no checkpoint.
type nowhere struct{}

func (nowhere) Append(context.Context, []byte) error { return nil }

// Of nodes that are gone one of those that are there closes the intents, and removes old records once they are not listed any more.
func TestRecordsOfNodesThatAreGoneAreTidied(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := sqlite.Open(ctx, dir)
	must(err)
	now := time.Now()
	open := func(node string, ago time.Duration) *audit.Log {
		t.Helper()
		key, err := checkpoint.LoadKey(filepath.Join(dir, node+".key"))
		must(err)
		log, err := audit.Open(ctx, audit.Options{Store: db, Node: node, SpillPath: filepath.Join(dir, node), Key: key, Checkpoints: nowhere{},
			Now: func() time.Time { return now.Add(-ago) }})
		must(err)
		return log
	}
	const keep = 90 * 24 * time.Hour
	ago := map[string]time.Duration{"alive": time.Minute, "lost": time.Minute, "stopped": 2 * keep, "forgotten": 2 * keep, "older": time.Minute}
	for node, ago := range ago {
		log := open(node, ago)
		for range 3 {
			must(log.Event(ctx, audit.Event{Action: "a"}))
		}
		_, err := log.Begin(ctx, audit.Intent{Action: "under.way"})
		must(err)
		must(log.Event(ctx, audit.Event{Action: "a"}))
		if node == "forgotten" { // has removed old rows itself
			gone, err := log.Trim(ctx, audit.Retention{OlderThan: now, Why: "old", Actor: system})
			must(err)
			if gone.Rows != 3 {
				t.Fatalf("it has removed %+v", gone)
			}
		}
		must(log.Close(ctx)) // which leaves the intent as a crash does
	}
	for node, end := range map[string]func() error{
		"alive":   func() error { return nil },
		"lost":    func() error { return db.LoseNode(ctx, "lost", "run-lost", 0) },
		"stopped": func() error { return db.StopNode(ctx, "stopped", "run-stopped") },
		"self":    func() error { return nil },
	} {
		must(db.StartNode(ctx, store.Node{Name: node, Run: "run-" + node}, "", 0))
		must(end())
	}
	p := &plane{node: "self", nodeRun: "run-self", store: db, audit: open("self", 0)}
	p.Config.Database, p.Config.Audit.Keep, p.Now, p.Log = "postgres://", keep, time.Now, slog.New(slog.DiscardHandler)
	peersOf := func(node string) *peer.Peers {
		peers, err := peer.New(peer.Options{Node: node, Secret: secret.New(make([]byte, 32)), Log: p.Log, Now: time.Now})
		must(err)
		t.Cleanup(peers.Close)
		return peers
	}
	keyOf := func(node string) *checkpoint.Key {
		key, err := checkpoint.LoadKey(filepath.Join(dir, node+".key"))
		must(err)
		return key
	}
	p.key, p.peers = keyOf("self"), peersOf("self")
	check := func(when string, rows map[string]int, underWay map[string]int) {
		t.Helper()
		for node := range ago {
			list, err := db.ListAudit(ctx, store.AuditFilter{Node: node, Limit: 100})
			must(err)
			intents, err := db.OpenIntents(ctx, node)
			must(err)
			if len(list) != rows[node] || len(intents) != underWay[node] {
				t.Errorf("%s: %s has %d records and %d open intents, want %d and %d", when, node, len(list), len(intents), rows[node], underWay[node])
			}
		}
	}
	all := map[string]int{"alive": 5, "lost": 5, "stopped": 5, "forgotten": 3, "older": 5}
	// Another one has the duty.
	_, err = db.TakeDuty(ctx, recordsOfGone, "alive", "run-alive", time.Hour)
	must(err)
	p.tidyGone(ctx, true)
	check("as another one has the duty", all, map[string]int{"alive": 1, "lost": 1, "stopped": 1, "forgotten": 1, "older": 1})

	_, err = db.TakeDuty(ctx, recordsOfGone, "alive", "run-alive", 0)
	must(err)
	p.tidyGone(ctx, false)
	check("after a minute", all, map[string]int{"alive": 1, "older": 1})
	p.tidyGone(ctx, true)
	check("as nobody knows the key of who has removed rows before", all, map[string]int{"alive": 1, "older": 1})
	must(p.peers.ShareKeys(ctx, db, p.key.Keys()))
	must(peersOf("forgotten").ShareKeys(ctx, db, keyOf("forgotten").Keys()))
	p.tidyGone(ctx, true)
	check("after an hour", map[string]int{"alive": 5, "lost": 5, "stopped": 5, "forgotten": 1, "older": 5}, map[string]int{"alive": 1, "older": 1})
	must(p.audit.Close(ctx))
	keys, err := p.auditKeys(ctx)
	must(err)
	if report, err := audit.Verify(ctx, db, nil, p.key.Keys()); err != nil || report.OK() {
		t.Errorf("with the key of one node alone all is well: %v", err)
	}
	if report, err := audit.Verify(ctx, db, nil, keys); err != nil || !report.OK() {
		t.Errorf("the log is %+v, %v", report.Bad(), err)
	}
	must(db.Close())
}
