package sqlite

import (
	"regexp"
	"testing"

	"github.com/clawjail/clawjail/internal/store/storetest"
)

// TestSchema: a new database has the tables, columns, constraints, indexes and triggers that every database of its version has.
func TestSchema(t *testing.T) {
	db, _ := openHere(t)
	comments, spaces := regexp.MustCompile(`--.*`), regexp.MustCompile(`\s+`)
	inside := regexp.MustCompile(` ?([(),]) ?`)
	storetest.SameSchema(t, db.read, `SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND tbl_name NOT IN ('goose_db_version', 'sqlite_sequence')
		ORDER BY type, name`, func(sql string) string {
		return inside.ReplaceAllString(spaces.ReplaceAllString(comments.ReplaceAllString(sql, ""), " "), "$1")
	})
}
