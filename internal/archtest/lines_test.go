package archtest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

// tableOfLines has a row for each folder: how many lines of Go that is no test it may have. A row is raised by hand, in the
// commit that needs it; -update lowers rows.
const tableOfLines = "internal/archtest/testdata/lines.txt"

// room is the folder whose row counts a file: one of internal, or one at the top.
func room(path string) string {
	first, rest, _ := strings.Cut(path, "/")
	if second, _, _ := strings.Cut(rest, "/"); first == "internal" {
		return first + "/" + second
	}
	return first
}

// wrongLines says what is wrong with the lines of a folder. A row follows them downwards, so that what was won is not lost again.
func wrongLines(have, row int) string {
	switch {
	case row == 0:
		return "it has no row"
	case have > row:
		return fmt.Sprintf("the %d lines of its row may only become fewer; take some away, or raise the row and say why", row)
	case row-have > 100 && have*102 < row*100:
		return fmt.Sprintf("the row of %d lines can be lower: go test ./internal/archtest -run Lines -update", row)
	}
	return ""
}

func TestLinesBecomeFewer(t *testing.T) {
	path := testenv.Repository(t) + "/" + tableOfLines
	table, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	have, rows := map[string]int{}, map[string]int{}
	for _, f := range sourceFiles(t) {
		if !f.test() {
			have[room(f.path)] += f.lines
		}
	}
	for line := range strings.Lines(string(table)) {
		folder, lines := "", 0
		_, _ = fmt.Sscan(line, &lines, &folder) // what cannot be read is no row
		rows[folder] = lines
	}
	var lowered strings.Builder
	for _, folder := range slices.Sorted(maps.Keys(rows)) {
		have[folder] += 0 // a folder that is gone has none
		if low := min(rows[folder], have[folder]); *testenv.Update && low > 0 {
			fmt.Fprintf(&lowered, "%6d %s\n", low, folder)
			rows[folder] = low
		}
	}
	if *testenv.Update {
		if err := os.WriteFile(path, []byte(lowered.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for folder, lines := range have {
		if wrong := wrongLines(lines, rows[folder]); wrong != "" {
			t.Errorf("%s has %d lines: %s", folder, lines, wrong)
		}
	}
	for _, c := range [][2]int{{1001, 1000}, {899, 1000}, {9799, 10000}, {7, 0}} {
		if wrongLines(c[0], c[1]) == "" || wrongLines(c[1], c[1]+1) != "" {
			t.Errorf("the check takes %d lines in a row of %d, or not as many as it says", c[0], c[1])
		}
	}
}
