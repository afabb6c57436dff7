package storetest

import (
	"database/sql"
	"os"
	"strings"
	"testing"
)

// SameSchema compares what a database says of its tables, columns, constraints, indexes and triggers with testdata/schema.txt.
func SameSchema(t *testing.T, db *sql.DB, query string, plain func(string) string) {
	t.Helper()
	want, err := os.ReadFile("testdata/schema.txt")
	must(t, err)
	rows, err := db.QueryContext(t.Context(), query)
	must(t, err)
	var lines []string
	for rows.Next() {
		var line string
		must(t, rows.Scan(&line))
		lines = append(lines, plain(line))
	}
	must(t, rows.Err())
	same(t, "the schema", lines, strings.Split(strings.TrimSuffix(string(want), "\n"), "\n"))
}
