package template

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

// TestBrowserTemplate holds the template that this machine has been given to the promises of the package.
func TestBrowserTemplate(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := testenv.Template(t)
	s := testStore(t, func(c *Config) { c.Dir = filepath.Dir(dir) })
	ctx := context.Background()
	b, err := s.Get(ctx, "browser")
	if err != nil {
		t.Fatal(err)
	}
	report, err := s.Verify(ctx, "browser", VerifyOptions{Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	if report.Read > 0 {
		t.Errorf("a quick look has read %d files of an untouched template", report.Read)
	}
	if _, err := s.Verify(ctx, "browser", VerifyOptions{}); err != nil {
		t.Error(err)
	}
	if b.TaskLimit != 512 || b.Programs[ProgramShell].Version == "" || b.Programs[ProgramFull].Version == "" {
		t.Errorf("it is described as %+v", b)
	}
	for _, name := range []string{"chromium", "chromium-headless-shell", "libnss3-tools", "ca-certificates", "fonts-liberation"} {
		if b.Packages[name] == "" {
			t.Errorf("the package %s is not in it", name)
		}
	}
	wantFinished(t, b.RootFS())
	fonts, err := filepath.Glob(filepath.Join(b.RootFS(), "var/cache/fontconfig/*.cache-*"))
	if err != nil || len(fonts) == 0 {
		t.Errorf("the cache of fonts is cold: %v, %v", fonts, err)
	}
	// The cache has to be one that programs in a read-only clone believe.
	lines, err := runIn(ctx, b.RootFS(), "/usr/bin/fc-cache", "--system-only", "--verbose")
	if err != nil {
		t.Fatal(err)
	}
	wantLine(t, lines, "/usr/share/fonts/truetype/liberation: skipping, existing cache is valid")
}

func BenchmarkVerify(b *testing.B) {
	testenv.Need(b, testenv.Root)
	dir := testenv.Template(b)
	s := testStore(b, func(c *Config) { c.Dir = filepath.Dir(dir) })
	for name, options := range map[string]VerifyOptions{"quick": {Quick: true}, "full": {}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Verify(context.Background(), "browser", options); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
