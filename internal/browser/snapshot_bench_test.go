//go:build unix

package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
)

// largePage has elements of the usual kinds.
func largePage(elements int) string {
	var html strings.Builder
	html.WriteString("<body><main>")
	for i := range elements / 10 {
		fmt.Fprintf(&html, `<section><h3>Title %d</h3><p>Some <b>bold</b> text of paragraph %[1]d.</p>
			<ul><li><a href="/%[1]d">Link %[1]d</a></li></ul>
			<div><button>Do %[1]d</button><input value="%[1]d" aria-label="Field %[1]d"></div></section>`, i)
	}
	return html.String()
}

func BenchmarkSnapshotAI(b *testing.B) {
	for name, s := range map[string]Snapshot{
		"default": {}, "whole": {MaxChars: maxChars}, "efficient": {Mode: efficient}, "whole-urls": {MaxChars: maxChars, URLs: true},
	} {
		b.Run(name, func(b *testing.B) {
			browser, _ := show(b, Shell, largePage(5000))
			take(b, browser, s)
			for b.Loop() {
				take(b, browser, s)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/snapshot")
		})
	}
	b.Run("first", func(b *testing.B) {
		browser, _ := show(b, Shell, largePage(5000))
		var total time.Duration
		for b.Loop() {
			b.StopTimer()
			visit(b, browser, site+"/")
			b.StartTimer()
			started := time.Now()
			take(b, browser, Snapshot{MaxChars: maxChars})
			total += time.Since(started)
		}
		b.ReportMetric(float64(total.Microseconds())/1000/float64(b.N), "ms/snapshot")
	})
}

// BenchmarkSnapshotAria takes the raw tree and the snapshot in turns, so that both see the same machine.
func BenchmarkSnapshotAria(b *testing.B) {
	browser, p := show(b, Shell, largePage(5000))
	var raw, ours time.Duration
	for b.Loop() {
		started := time.Now()
		var tree accessibility.GetFullAXTreeResult
		err := p.session.Call(b.Context(), accessibility.CommandGetFullAXTree, accessibility.GetFullAXTreeParams{}, &tree)
		if err != nil {
			b.Fatal(err)
		}
		raw += time.Since(started)
		started = time.Now()
		if got := take(b, browser, Snapshot{Format: "aria", Max: maxNodes}); got.Truncated {
			b.Fatal("cut")
		}
		ours += time.Since(started)
	}
	b.ReportMetric(float64(raw.Microseconds())/1000/float64(b.N), "ms-raw")
	b.ReportMetric(float64(ours.Microseconds())/1000/float64(b.N), "ms-aria")
	b.ReportMetric(float64(ours)/float64(raw), "x-raw")
}

func BenchmarkSnapshotHuge(b *testing.B) {
	browser, _ := show(b, Shell, largePage(100_000))
	for _, s := range []Snapshot{{}, {Format: formatAria}, {Format: formatDOM}} {
		b.Run(s.format(), func(b *testing.B) {
			for b.Loop() {
				take(b, browser, s)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/snapshot")
		})
	}
}

// BenchmarkSignIn looks whether a page asks to sign in, in turns with a snapshot of it: sessions with accounts do after each.
func BenchmarkSignIn(b *testing.B) {
	for _, elements := range []int{100, 5000} {
		b.Run(fmt.Sprint(elements), func(b *testing.B) {
			browser, _ := show(b, Shell, largePage(elements))
			var look, snapshot time.Duration
			for b.Loop() {
				started := time.Now()
				if at, err := browser.SignIn(b.Context(), ""); err != nil || at.Cut || at.URL == "" {
					b.Fatalf("%+v, %v", at, err)
				}
				look += time.Since(started)
				started = time.Now()
				take(b, browser, Snapshot{})
				snapshot += time.Since(started)
			}
			b.ReportMetric(float64(look.Microseconds())/1000/float64(b.N), "ms/look")
			b.ReportMetric(float64(snapshot.Microseconds())/1000/float64(b.N), "ms/snapshot")
		})
	}
}
