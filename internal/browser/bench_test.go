//go:build unix

package browser

import (
	"testing"
	"time"
)

// BenchmarkStart is from the start of the process to its first reply, to a controlled page, to a small page that has
// loaded, to a picture of it, and to the exit.
func BenchmarkStart(b *testing.B) {
	for _, build := range []Build{Shell, Full} {
		b.Run(string(build), func(b *testing.B) {
			g := newGateway(b, tinySite(nil))
			var total [5]time.Duration
			for b.Loop() {
				conn, process, _ := launch(b, build, g.URL)
				var at [5]time.Duration
				step := func(i int, err error) {
					if err != nil {
						b.Fatal(err)
					}
					at[i] = time.Since(process.Started)
				}
				browser, err := Open(b.Context(), conn)
				step(0, err)
				_, err = browser.Page(b.Context())
				step(1, err)
				_, err = browser.Navigate(b.Context(), site+"/")
				step(2, err)
				_, err = browser.Do(b.Context(), Screenshot{})
				step(3, err)
				err = browser.Close(within(b, 10*time.Second))
				step(4, err)
				for i := range at {
					total[i] += at[i]
				}
			}
			for i, name := range []string{"ms-ready", "ms-page", "ms-loaded", "ms-picture", "ms-exit"} {
				b.ReportMetric(float64(total[i].Microseconds())/1000/float64(b.N), name)
			}
		})
	}
}

func BenchmarkNavigate(b *testing.B) {
	for _, build := range []Build{Shell, Full} {
		b.Run(string(build), func(b *testing.B) {
			browser := open(b, build, newGateway(b, tinySite(nil)).URL)
			for b.Loop() {
				if _, err := browser.Navigate(b.Context(), site+"/"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkScreenshot(b *testing.B) {
	for _, build := range []Build{Shell, Full} {
		b.Run(string(build), func(b *testing.B) {
			browser := open(b, build, newGateway(b, tinySite(nil)).URL)
			if _, err := browser.Navigate(b.Context(), site+"/"); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := browser.Do(b.Context(), Screenshot{Type: JPEG}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
