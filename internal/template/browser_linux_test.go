package template

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
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
	for name, want := range Expected("browser").Programs {
		if got := b.Programs[name].Path; got != want.Path {
			t.Errorf("the program %s is %q, and was expected at %q", name, got, want.Path)
		}
	}
	for _, name := range []string{"chromium", "chromium-headless-shell", "libnss3-tools", "ca-certificates", "fonts-liberation", "fonts-noto-core"} {
		if b.Packages[name] == "" {
			t.Errorf("the package %s is not in it", name)
		}
	}
	if lacks := b.Lacks(); lacks != nil {
		t.Errorf("it lacks %v", lacks)
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
	// A letter of each script that many write is no box, and what has no letters of them looks as it did.
	for script, letter := range map[string]rune{
		"Latin": 'A', "Cyrillic": 'Ж', "Greek": 'Ω', "Arabic": 'ع', "Hebrew": 'א', "Han": '漢', "Hiragana": 'ひ', "Hangul": '한', "emoji": '😀',
		"Devanagari": 'क', "Bengali": 'ক', "Gurmukhi": 'ਕ', "Gujarati": 'ક', "Odia": 'କ', "Tamil": 'க', "Telugu": 'క', "Kannada": 'ಕ',
		"Malayalam": 'ക', "Sinhala": 'ක', "Thai": 'ก', "Lao": 'ກ', "Tibetan": 'ཀ', "Burmese": 'က', "Khmer": 'ក', "Ethiopic": 'አ',
		"Georgian": 'ქ', "Armenian": 'Հ', "Mongolian": 'ᠮ', "Cherokee": 'Ꭰ', "Thaana": 'ހ', "Syriac": 'ܐ', "Tifinagh": 'ⴰ', "Javanese": 'ꦗ',
	} {
		if fonts, err := runIn(ctx, b.RootFS(), "/usr/bin/fc-list", fmt.Sprintf(":charset=%x", letter)); err != nil || len(fonts) == 0 {
			t.Errorf("%s has no font: %v", script, err)
		}
	}
	for family, file := range map[string]string{
		"sans-serif": "DejaVuSans.ttf", "serif": "DejaVuSerif.ttf", "monospace": "DejaVuSansMono.ttf", "Arial": "LiberationSans-Regular.ttf",
	} {
		if lines, err := runIn(ctx, b.RootFS(), "/usr/bin/fc-match", family); err != nil || !strings.HasPrefix(strings.Join(lines, ""), file+":") {
			t.Errorf("%s is drawn with %v, %v", family, lines, err)
		}
	}
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
