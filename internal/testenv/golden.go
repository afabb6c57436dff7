package testenv

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Update is whether golden files are written.
var Update = flag.Bool("update", false, "write golden files and generated pages")

// Golden compares a text with a golden file, which -update writes.
func Golden(t testing.TB, path, got string) {
	t.Helper()
	if *Update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is another one: write it with -update, and look at the change (-want +got):\n%s", path, diff)
	}
}
