package postgres

import (
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

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

// arrays scans arrays, one at a time.
type arrays struct {
	mu    sync.Mutex
	types *pgtype.Map
}

// listing scans a list.
type listing struct {
	arrays *arrays
	to     *[]string
}

func (l listing) Scan(value any) error {
	l.arrays.mu.Lock()
	defer l.arrays.mu.Unlock()
	if err := l.arrays.types.SQLScanner(l.to).Scan(value); err != nil {
		return err
	}
	if len(*l.to) == 0 {
		*l.to = nil
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
