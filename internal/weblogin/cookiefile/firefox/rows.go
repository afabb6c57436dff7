package firefox

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// readRows reads the cookies. Columns that older databases do not have are read as zero.
func readRows(ctx context.Context, db *sql.DB, columns map[string]bool) (profile *Profile, err error) {
	column := func(name string) string {
		if columns[name] {
			return "coalesce(" + name + ", 0)"
		}
		return "0"
	}
	text := func(name string) string {
		return fmt.Sprintf("CASE WHEN length(CAST(%[1]s AS BLOB)) > %[2]d THEN substr(CAST(%[1]s AS BLOB), 1, %[2]d) ELSE CAST(coalesce(%[1]s, '') AS BLOB) END",
			name, maxColumn)
	}
	query := "SELECT " + strings.Join([]string{
		text("originAttributes"), text("name"), text("value"), text("host"), text("path"),
		"CAST(coalesce(expiry, 0) AS REAL)", column("isSecure") + " <> 0", column("isHttpOnly") + " <> 0",
		"CAST(" + column("sameSite") + " AS INTEGER)", column("isPartitionedAttributeSet") + " <> 0",
	}, ", ") + fmt.Sprintf(" FROM moz_cookies ORDER BY rowid LIMIT %d", maxRows+1)
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, damaged(ctx, err)
	}
	defer rows.Close()
	out := &Profile{}
	defer func() {
		if err != nil {
			for _, row := range out.Rows {
				clear(row.Value)
			}
		}
	}()
	for count := 0; rows.Next(); count++ {
		if count == maxRows {
			return nil, ErrTooLarge
		}
		var row Row
		var attributes, name, value, host, path sql.RawBytes
		var sameSite int64
		err := rows.Scan(&attributes, &name, &value, &host, &path, &row.Expires, &row.Secure, &row.HTTPOnly, &sameSite, &row.Partitioned)
		if err != nil {
			return nil, damaged(ctx, err)
		}
		in, partition := jarOf(string(attributes))
		switch in {
		case containerJar:
			out.Containers++
			continue
		case otherJar:
			out.Others++
			continue
		}
		row.Partition = partition
		row.Name, row.Value, row.Host, row.Path = string(name), bytes.Clone(value), string(host), string(path)
		row.Expires = seconds(row.Expires)
		row.SameSite = sameSiteOf(sameSite, row.Secure)
		out.Rows = append(out.Rows, row)
	}
	if err := rows.Err(); err != nil {
		return nil, damaged(ctx, err)
	}
	return out, nil
}

// seconds brings an expiry to seconds. Firefox wrote seconds until schema 15, and writes milliseconds since schema 16.
// The number itself is asked, because there are databases whose version says another thing: 1e11 seconds are in the
// year 5138, and as many milliseconds were in 1973.
func seconds(expiry float64) float64 {
	if expiry >= 1e11 {
		return expiry / 1000
	}
	return expiry
}

// sameSiteOf reads Firefox's number. Zero stands for None, and in older versions also for a cookie that does not say:
// where the cookie is not Secure, it can only be that.
func sameSiteOf(n int64, secure bool) string {
	switch n {
	case 0:
		if secure {
			return "None"
		}
	case 1:
		return "Lax"
	case 2:
		return "Strict"
	}
	return ""
}
