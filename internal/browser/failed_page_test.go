//go:build unix

package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// An address that could not be loaded leaves a page, too, and not the one before.
func TestAPageThatCouldNotBeLoadedIsLookedAt(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b, _ := openSite(t, build)
		for _, test := range []struct {
			url string
			op  Operation
		}{
			{"https://refused.test/", Screenshot{}}, {"https://refused.test/", Snapshot{}}, {"https://refused.test/", Query{Selector: "h1"}},
			{"https://refused.test/", Act{Kind: "evaluate", Fn: "document.title"}}, {"https://refused.test/", Act{Kind: "press", Key: "a"}},
			{"https://refused.test/", PDF{}}, {"http://dead.test/", Screenshot{}}, {"http://site.test:6000/", Screenshot{}},
		} {
			if _, err := b.Navigate(within(t, 20*time.Second), site+"/"); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Navigate(within(t, 20*time.Second), test.url); problem.CodeOf(err) != problem.NavigationFailed {
				t.Fatalf("%s: %v", test.url, err)
			}
			out, err := b.Do(within(t, 20*time.Second), test.op)
			if err != nil {
				t.Errorf("%s: %s: %v", test.url, test.op.Tool(), err)
			}
			if text := fmt.Sprintf("%+v", out); test.op.Tool() != "screenshot" && (strings.Contains(text, "hello") || strings.Contains(text, "Tiny")) {
				t.Errorf("%s: %s is of the page before: %s", test.url, test.op.Tool(), text)
			}
		}
	})
}
