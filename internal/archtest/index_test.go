package archtest

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

const index = "docs/README.md"

// indexProblems says which pages an index does not list, and which it lists more than once or without an answer. A page is
// listed by a row of a table that begins with a link to it.
func indexProblems(page string, names []string) (out []string) {
	listed := map[string]int{}
	for _, match := range regexp.MustCompile(`(?m)^\| \[[^\]]+\]\(([a-z0-9-]+\.md)\) \| ([^|]*)\|$`).FindAllStringSubmatch(page, -1) {
		listed[match[1]]++
		if !strings.HasSuffix(strings.TrimSpace(match[2]), "?") {
			out = append(out, match[1]+" answers no question")
		}
	}
	for _, name := range names {
		if file := path.Base(name); path.Dir(name) == "docs" && name != index && listed[file] != 1 {
			out = append(out, file+" is not listed once")
		}
	}
	for _, file := range slices.Sorted(maps.Keys(listed)) {
		if !slices.Contains(names, "docs/"+file) {
			out = append(out, file+" is listed, and is not there")
		}
	}
	return out
}

func TestTheIndexListsEveryPage(t *testing.T) {
	pages := documents(t)
	names := slices.Sorted(maps.Keys(pages))
	for _, wrong := range indexProblems(pages[index], names) {
		t.Errorf("%s: %s", index, wrong)
	}
	planted := indexProblems("| [a](a.md) | Why? |\n| [b](b.md) | because |\n| [gone](gone.md) | Where? |\n", []string{"docs/a.md", "docs/b.md", "docs/c.md", index})
	want := []string{"b.md answers no question", "c.md is not listed once", "gone.md is listed, and is not there"}
	if !slices.Equal(planted, want) {
		t.Errorf("the look finds %q in an index with three mistakes", planted)
	}
}

func TestTitlesOfPagesAreQuestions(t *testing.T) {
	for name, page := range documents(t) {
		title, _, _ := strings.Cut(page, "\n")
		if strings.HasPrefix(name, "docs/") && (!strings.HasPrefix(title, "# ") || !strings.HasSuffix(title, "?")) {
			t.Errorf("%s: the title %q is no question", name, title)
		}
	}
}

// aProof is a link to a test, which says the name of the test and leads to its file.
var aProof = regexp.MustCompile(`\[(Test[A-Z][A-Za-z0-9_]*)\]\(([^)\s]+)\)`)

// unproven are the links of a page whose file has no such test. read gets the text of a file, by its path from the page.
func unproven(page string, read func(string) string) (out []string) {
	for _, match := range aProof.FindAllStringSubmatch(page, -1) {
		if !strings.Contains(read(match[2]), "\nfunc "+match[1]+"(t *testing.T)") {
			out = append(out, match[1])
		}
	}
	return out
}

func TestLinksToTestsLeadToTheirFiles(t *testing.T) {
	top := testenv.Repository(t)
	found := 0
	reader := func(name string) func(string) string {
		return func(link string) string {
			text, err := os.ReadFile(filepath.Join(top, filepath.FromSlash(path.Join(path.Dir(name), link))))
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return string(text)
		}
	}
	for name, page := range documents(t) {
		found += len(aProof.FindAllString(page, -1))
		for _, test := range unproven(page, reader(name)) {
			t.Errorf("%s: the file of the link has no %s", name, test)
		}
	}
	planted := unproven("[TestX](a) [TestY](a)", func(string) string { return "package a\n\nfunc TestX(t *testing.T) {}\n" })
	if found < 10 || !slices.Equal(planted, []string{"TestY"}) {
		t.Errorf("%d links to tests were found, and the look finds %q of a page with one wrong link", found, planted)
	}
}

// claims are the cells of clawjail in a page's tables against others: those with a column of that name. The key is what the row is about.
func claims(page string) map[string]string {
	out := map[string]string{}
	column := -1
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		switch {
		case len(cells) < 3:
			column = -1
		case column < 0:
			column = slices.IndexFunc(cells, func(c string) bool { return strings.TrimSpace(c) == "clawjail" })
			if column < 0 {
				column = len(cells) // a table of something else, to its end
			}
		case column < len(cells) && !strings.HasPrefix(cells[1], "---"):
			out[strings.TrimSpace(cells[1])] = strings.TrimSpace(cells[column])
		}
	}
	return out
}

// isUnprovenClaim says whether a cell claims something and names no test that shows it.
func isUnprovenClaim(cell string) bool {
	return regexp.MustCompile(`^(?i:yes|partly)\b`).MatchString(cell) && !aProof.MatchString(cell)
}

func TestWhatWeClaimAgainstOthersNamesItsTest(t *testing.T) {
	yes := 0
	for about, cell := range claims(documents(t)["docs/alternatives.md"]) {
		if strings.HasPrefix(cell, "yes") {
			yes++
		}
		if isUnprovenClaim(cell) {
			t.Errorf("docs/alternatives.md: %q is claimed without a test: %s", about, cell)
		}
	}
	planted := claims("| | x |\n|---|---|\n| no table of ours | yes |\n\n| | clawjail | x |\n|---|---|---|\n| a | yes: [TestA](a_test.go) | no |\n| b | yes | no |\n| c | no | yes |\n")
	if yes < 10 || len(planted) != 3 || isUnprovenClaim(planted["a"]) || !isUnprovenClaim(planted["b"]) || isUnprovenClaim(planted["c"]) || !isUnprovenClaim("Partly: x") {
		t.Errorf("%d claims were found, and the look does not know a claim without a test: %q", yes, planted)
	}
}
