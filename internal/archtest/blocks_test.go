package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/manual"
	"github.com/clawjail/clawjail/internal/testenv"
)

// allBlocks are the blocks of all pages.
func allBlocks(t *testing.T) (out []manual.Block) {
	t.Helper()
	pages, err := manual.Pages(testenv.Repository(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		blocks, err := page.Blocks()
		if err != nil {
			t.Error(err)
		}
		out = append(out, blocks...)
	}
	return out
}

// pageOfCLI is written from what the commands say of themselves: what stands there are their forms, and examples that go with
// what a reader has.
const pageOfCLI = "docs/cli.md"

// aPrompt begins a line that a reader takes for a command.
var aPrompt = regexp.MustCompile(`(?m)^\s*(?:[$#] +)?(?:sudo|(?:bin/)?clawjail|curl|docker|make) +\S|^\s*\$ `)

// blockProblem says what keeps the commands of a block from being run by TestEveryCommandOfTheDocumentationRuns without a reason.
func blockProblem(b manual.Block, tests map[string]bool) string {
	where := b.Page + "#" + b.Section
	switch {
	case b.Language != "sh" && b.Language != "js" && b.Reason != "":
		return "only blocks of sh and js have a reason after the language"
	case b.Reason != "" && !slices.Contains(manual.Reasons(), b.Reason):
		return b.Reason + " is no reason; there are " + strings.Join(manual.Reasons(), ", ")
	case b.Reason == "elsewhere" && manual.Elsewhere()[where] == "":
		return "no test of manual.Elsewhere runs " + where
	case b.Reason == "elsewhere" && !tests[manual.Elsewhere()[where]]:
		return "there is no " + manual.Elsewhere()[where]
	case b.Language != "sh" && b.Language != "yaml" && b.Page != pageOfCLI && aPrompt.MatchString(b.Text):
		return "it has commands, and is not sh"
	}
	return ""
}

func TestCommandsOfDocumentsAreRunOrSayWhyNot(t *testing.T) {
	tests := testsThereAre(t)
	blocks := allBlocks(t)
	used := map[string]bool{}
	for _, b := range blocks {
		if wrong := blockProblem(b, tests); wrong != "" {
			t.Errorf("%s: %s", b.Where(), wrong)
		}
		if b.Reason == "elsewhere" {
			used[b.Page+"#"+b.Section] = true
		}
	}
	for where := range manual.Elsewhere() {
		if !used[where] {
			t.Errorf("no block of %s is run elsewhere", where)
		}
	}
	for _, planted := range []manual.Block{
		{Language: "sh", Reason: "later"}, {Language: "yaml", Reason: "machine"}, {Language: "sh", Reason: "elsewhere", Page: "docs/x.md"},
		{Text: "sudo clawjail up\n"}, {Language: "console", Text: "a\n$ ls\n"}, {Language: "bash", Text: "  bin/clawjail session ls\n"}, {Language: "text", Text: "clawjail session ls\n"},
	} {
		if blockProblem(planted, tests) == "" {
			t.Errorf("nothing is wrong with %+v", planted)
		}
	}
	for _, right := range []manual.Block{{Language: "sh", Text: "sudo ls\n"}, {Text: "clawjail.yml:3: is not known\n"}, {Language: "sh", Reason: "person"}} {
		if wrong := blockProblem(right, tests); wrong != "" {
			t.Errorf("%+v: %s", right, wrong)
		}
	}
	if len(blocks) < 100 {
		t.Errorf("found %d blocks", len(blocks))
	}
}

// The shell makes a file that others may read, and empties the one that is there before the command is asked: -o does neither.
func TestNoPageHasTheShellWriteAKeyIntoAFile(t *testing.T) {
	redirected := regexp.MustCompile(`clawjail (agent create|agent token rotate|operator create|operator rotate|grant issue|session cdp|mcp --print-config)\b[^|#\n]*[^2\n]>`)
	if !redirected.MatchString("sudo clawjail operator create a --role admin > a.key") || redirected.MatchString("sudo clawjail operator create a -o a.key # > is not for it") {
		t.Fatal("a planted one is not seen")
	}
	for _, b := range allBlocks(t) {
		if found := redirected.FindString(b.Text); found != "" {
			t.Errorf("%s: %s", b.Where(), found)
		}
	}
}

// yamlProblem says what the reader of a file says of a block: of clawbots.yml, or of the configuration. Files of other
// programs are not read.
func yamlProblem(t *testing.T, b manual.Block) (err error, read bool) {
	t.Helper()
	switch {
	case strings.HasPrefix(b.Text, "scrape_configs:"), strings.HasPrefix(b.Text, "groups:"): // Prometheus's
		return nil, false
	case strings.HasPrefix(b.Text, "clawbots:"):
		_, err = clawbots.Parse("clawbots.yml", []byte(b.Text), t.TempDir())
		return err, true
	}
	text := b.Text
	if rest, found := strings.CutPrefix(text, "# values.yaml\n"); found { // of the chart
		_, rest, _ = strings.Cut(rest, "\nconfig:")
		text = strings.ReplaceAll(rest, "\n  ", "\n")
	}
	file := filepath.Join(t.TempDir(), "clawjail.yml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = config.Load(file)
	return err, true
}

func TestYAMLOfDocumentsIsReadByTheStrictReader(t *testing.T) {
	found := 0
	for _, b := range allBlocks(t) {
		if b.Language != "yaml" || strings.HasPrefix(b.Text, "# yaml-language-server") {
			continue
		}
		err, read := yamlProblem(t, b)
		if err != nil {
			t.Errorf("%s: %v", b.Where(), err)
		}
		if read {
			found++
		}
	}
	for _, planted := range []string{"clawbots:\n  - name: x\n    memroy: 1GiB\n", "gateway:\n  private_destination: []\n"} {
		if err, _ := yamlProblem(t, manual.Block{Text: planted}); err == nil {
			t.Errorf("nothing is wrong with\n%s", planted)
		}
	}
	if found < 8 {
		t.Errorf("%d blocks were read", found)
	}
}
