package sqldb

import (
	"fmt"
	"time"
)

// moment scans a time: a timestamp, or microseconds.
type moment struct{ to *time.Time }

func (m moment) Scan(value any) error {
	switch v := value.(type) {
	case nil:
		*m.to = time.Time{}
	case int64:
		*m.to = time.UnixMicro(v).UTC()
	case time.Time:
		*m.to = v.UTC()
	default:
		return fmt.Errorf("a time is expected, not %T", value)
	}
	return nil
}

// text is a text as a column has it where an empty one is NULL.
func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// optional scans such a text.
type optional struct{ to *string }

func (o optional) Scan(value any) error {
	switch v := value.(type) {
	case nil:
		*o.to = ""
	case string:
		*o.to = v
	default:
		return fmt.Errorf("a text is expected, not %T", value)
	}
	return nil
}

// Bytes are never NULL.
func Bytes(b []byte) []byte {
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
