package postgres

import (
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
	"github.com/clawjail/clawjail/internal/store/storetest"
)

// TestSchema: a new database has the tables, columns, constraints, indexes and triggers that every database of its version has.
func TestSchema(t *testing.T) {
	db, err := Open(t.Context(), pgtest.Start(t).Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	storetest.SameSchema(t, db.plain, `
		WITH ours AS (SELECT oid, relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname !~ 'goose')
		SELECT regexp_replace(line, '\s+', ' ', 'g') FROM (
			SELECT format('TABLE %s (%s)', relname, string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), collname,
				CASE WHEN attnotnull THEN 'NOT NULL' END, pg_get_expr(adbin, adrelid)), ', ' ORDER BY attnum)) AS line
			FROM ours JOIN pg_attribute ON attrelid = ours.oid LEFT JOIN pg_collation ON pg_collation.oid = attcollation
				LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
			WHERE attnum > 0 AND NOT attisdropped GROUP BY relname
			UNION ALL SELECT format('CONSTRAINTS %s %s', relname, string_agg(conname || ' ' || pg_get_constraintdef(pg_constraint.oid), ', ' ORDER BY conname))
			FROM ours JOIN pg_constraint ON conrelid = ours.oid WHERE contype <> 'n' GROUP BY relname
			UNION ALL SELECT pg_get_indexdef(indexrelid) FROM ours JOIN pg_index ON indrelid = ours.oid
			WHERE NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid AND conrelid = indrelid)
			UNION ALL SELECT pg_get_triggerdef(pg_trigger.oid) FROM ours JOIN pg_trigger ON tgrelid = ours.oid WHERE NOT tgisinternal
			UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
		) AS lines ORDER BY line COLLATE "C"`, strings.Clone)
}
