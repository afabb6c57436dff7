package manual

import (
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

func TestBlocksAreWhatReadersSee(t *testing.T) {
	page := Page{"docs/x.md", "# Title\n\n```sh\none\n  two\n```\n\n## Part\n\ntext ```not``` one\n\n1. a list\n\n   ```sh freebsd\n   three\n     four\n   ```\n\n" +
		"````text\n```sh\nfive\n```\n````\n~~~yaml\n# six\n~~~\n```\nplain\n```\n"}
	got, err := page.Blocks()
	want := []Block{
		{"docs/x.md", 3, "sh", "", "Title", "one\n  two\n"},
		{"docs/x.md", 14, "sh", "freebsd", "Part", "three\n  four\n"},
		{"docs/x.md", 19, "text", "", "Part", "```sh\nfive\n```\n"},
		{"docs/x.md", 24, "yaml", "", "Part", "# six\n"},
		{"docs/x.md", 27, "", "", "Part", "plain\n"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	if _, err := (Page{"y.md", "a\n```sh\nfor ever\n"}).Blocks(); err == nil || !strings.Contains(err.Error(), "y.md:2") {
		t.Errorf("a block that does not end: %v", err)
	}
}

func TestPagesAreAllThereAre(t *testing.T) {
	pages, err := Pages(testenv.Repository(t))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range pages {
		names = append(names, p.Path)
	}
	for _, want := range []string{"README.md", "docs/agents.md", "examples/pi/README.md"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not among %q", want, names)
		}
	}
}
