package sqlite

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

// stamp is a time as a column has it: microseconds, NULL for none.
func stamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return store.Microsecond(t).UnixMicro()
}

// ago is a [sqldb.Dialect]'s.
func ago(microseconds string) string {
	return "(CAST(round(unixepoch('now', 'subsec') * 1000000) AS INTEGER) - " + microseconds + ")"
}

// texts is a list as a column has it.
func texts(list []string) any {
	if len(list) == 0 {
		return "[]"
	}
	out, err := json.Marshal(list)
	if err != nil { // a list of strings always has a form in JSON
		panic(err)
	}
	return string(out)
}

// listing scans such a list.
type listing struct{ to *[]string }

func (l listing) Scan(value any) error {
	s, ok := value.(string)
	if !ok {
		return fmt.Errorf("a list is a text, not %T", value)
	}
	*l.to = nil
	if s == "[]" {
		return nil
	}
	return json.Unmarshal([]byte(s), l.to)
}
