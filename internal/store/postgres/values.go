package postgres

import (
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

// stamp is a time as a column has it: NULL for none.
func stamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = store.Microsecond(t)
	return &t
}

// moment scans a time.
type moment struct{ to *time.Time }

func (m moment) Scan(value any) error {
	switch v := value.(type) {
	case nil:
		*m.to = time.Time{}
	case time.Time:
		*m.to = v.UTC()
	default:
		return fmt.Errorf("a time is expected, not %T", value)
	}
	return nil
}

// text is a text as a column has it where an empty one is NULL.
func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
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

// filled is a list as a column has it: empty, never NULL. Bytes are such a list.
func filled[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// orNil makes an empty list that was read nil.
func orNil[T any](list *[]T) {
	if len(*list) == 0 {
		*list = nil
	}
}
