//go:build linux && screenshots

package console

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/test/testkit"
)

// TestScreenshots makes pictures of every page, in the folder that SCREENSHOTS names: make screenshots.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		t.Fatal("SCREENSHOTS names no folder; run `make screenshots`")
	}
	testkit.Clients(t)
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	f := newFurnished(t, "")
	for _, view := range []string{"light", "dark", "phone"} {
		f.script(t, "console_pages.mjs", f.Key(), map[string]string{"VIEW": view, "SCREENSHOTS": dir, "ALIKE": "4"})
	}
}
