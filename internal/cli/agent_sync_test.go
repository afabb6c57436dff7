package cli

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTheExampleOfAllKeysIsNamedWhereItIs(t *testing.T) {
	const name = "clawbots.yml.example"
	for _, at := range []string{"share/doc/clawjail/" + name, name, ""} {
		dir := t.TempDir()
		want := name // which the documentation has
		if at != "" {
			want = filepath.Join(dir, at)
			if err := os.MkdirAll(filepath.Dir(want), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(want, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := exampleBeside(filepath.Join(dir, "bin")); got != want {
			t.Errorf("with %q: %s, want %s", at, got, want)
		}
	}
}
