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

// moment scans a time.
type moment struct{ to *time.Time }

func (m moment) Scan(value any) error {
	switch v := value.(type) {
	case nil:
		*m.to = time.Time{}
	case int64:
		*m.to = time.UnixMicro(v).UTC()
	default:
		return fmt.Errorf("a time is an integer, not %T", value)
	}
	return nil
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

// bytes are never NULL.
func bytes(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// blob scans bytes; none are nil.
type blob struct{ to *[]byte }

func (b blob) Scan(value any) error {
	v, ok := value.([]byte)
	if !ok && value != nil {
		return fmt.Errorf("bytes are expected, not %T", value)
	}
	*b.to = nil
	if len(v) > 0 {
		*b.to = append([]byte(nil), v...) // the driver may use its bytes again
	}
	return nil
}
