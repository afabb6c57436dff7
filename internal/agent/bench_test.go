package agent

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkSyncUnchanged is a sync of 50 agents that are as they are declared.
func BenchmarkSyncUnchanged(b *testing.B) {
	l := newLand(b)
	var text strings.Builder
	text.WriteString("clawbots:\n")
	for n := range 50 {
		fmt.Fprintf(&text, "  - name: bot-%d\n    workspace: ./w%d\n    allow: [example.com, \"*.example.org\", \"deny: bad.example.org\"]\n    rate: {llm: 9}\n    env: {A: b, C: d}\n", n, n%25)
	}
	_, err := l.sync(text.String())
	l.must(err)
	for b.Loop() {
		p, err := l.sync(text.String())
		if err != nil || p.Changes() {
			b.Fatal(p, err)
		}
	}
}

// BenchmarkSyncNew is a sync of 20 agents that are new, without the time that jails take.
func BenchmarkSyncNew(b *testing.B) {
	l := newLand(b)
	for round := 0; b.Loop(); round++ {
		var text strings.Builder
		text.WriteString("clawbots:\n")
		for n := range 20 {
			fmt.Fprintf(&text, "  - name: bot-%d-%d\n    allow: [example.com]\n    rate: {llm: 9}\n", round, n)
		}
		_, err := l.sync(text.String())
		l.must(err)
		b.StopTimer()
		_, err = l.sync("clawbots: []\n", prune)
		l.must(err)
		b.StartTimer()
	}
}
