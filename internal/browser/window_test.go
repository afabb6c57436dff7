package browser

import (
	"testing"

	"github.com/chromedp/cdproto/target"
)

// TestPartsOfTheWindowAreNoTabs has what a full Chromium in a jail reports as pages. They come when it likes, so that they are
// not waited for here; the console's login looks at the tabs that a person is shown.
func TestPartsOfTheWindowAreNoTabs(t *testing.T) {
	t.Parallel()
	b := &Browser{}
	b.tabs = newRegistry(b)
	for address, want := range map[string]bool{
		"chrome://omnibox-popup.top-chrome/": false, "chrome://omnibox-popup.top-chrome/omnibox_popup_aim.html": false,
		"chrome://read-later.top-chrome": false, "": true, "about:blank": true, "chrome-error://chromewebdata/": true,
		"https://example.top-chrome/": true, "https://example.com/chrome://a.top-chrome/": true,
	} {
		if got := b.isTab(&target.Info{Type: "page", URL: address}); got != want {
			t.Errorf("%q is a tab: %v", address, got)
		}
	}
	if b.isTab(&target.Info{Type: "worker", URL: "about:blank"}) {
		t.Error("a worker is a tab")
	}
}
