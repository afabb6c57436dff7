package storetest

import (
	"os"
	"strings"
	"testing"
)

// SameSchema compares what a database says of its tables, columns, constraints, indexes and triggers with testdata/schema.txt.
func SameSchema(t *testing.T, lines []string) {
	t.Helper()
	want, err := os.ReadFile("testdata/schema.txt")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "the schema", lines, strings.Split(strings.TrimSuffix(string(want), "\n"), "\n"))
}
