package sqlite

import (
	"regexp"
	"testing"

	"github.com/clawjail/clawjail/internal/store/storetest"
)

// TestSchema: a new database has the tables, columns, constraints, indexes and triggers that every database of its version has.
func TestSchema(t *testing.T) {
	db, _ := openHere(t)
	lines, err := list(t.Context(), db, "read the schema", scanText,
		`SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND tbl_name NOT IN ('goose_db_version', 'sqlite_sequence') ORDER BY type, name`)
	if err != nil {
		t.Fatal(err)
	}
	comments, spaces := regexp.MustCompile(`--.*`), regexp.MustCompile(`\s+`)
	inside := regexp.MustCompile(` ?([(),]) ?`)
	for i, sql := range lines {
		lines[i] = inside.ReplaceAllString(spaces.ReplaceAllString(comments.ReplaceAllString(sql, ""), " "), "$1")
	}
	storetest.SameSchema(t, lines)
}
