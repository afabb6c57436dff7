package store

import (
	"fmt"

	"github.com/clawjail/clawjail/internal/problem"
)

// Unavailable is what a database returns when it cannot be used now: ErrUnavailable for programs, and a problem for
// people. The cause is not shown to agents.
func Unavailable(cause error) error {
	return problem.Wrap(fmt.Errorf("%w: %w", ErrUnavailable, cause), problem.DatabaseUnavailable,
		"try again; the log of the control plane says what the database answered", "the database cannot be used at the moment")
}

// Full is Unavailable for a disk that has no space left.
func Full(cause error) error {
	return problem.Wrap(fmt.Errorf("%w: %w", ErrUnavailable, cause), problem.DiskFull,
		"free some space on the disk of the database; sessions can still be closed", "the disk of the database is full")
}

// CheckSchema refuses the versions of a schema that this program does not know, from the first to the last that it does. An
// empty database has version 0.
func CheckSchema(found, first, last int64) error {
	switch {
	case found > last:
		return problem.New(problem.DatabaseTooNew, "run the newer clawjail, or restore the backup that was made before the update",
			"the database was changed by a newer clawjail: its schema is version %d, and this program knows up to %d", found, last)
	case found > 0 && found < first:
		return problem.New(problem.DatabaseTooOld, "begin with an empty database, or run the clawjail that it was made with",
			"the database was made by a clawjail from before the first release: its schema is version %d, and this program knows none before %d", found, first)
	}
	return nil
}

// Outdated is ErrExists for an entry that another call has changed since it was read.
func Outdated(found, known int64) error {
	return fmt.Errorf("it has version %d by now, not %d: %w", found, known, ErrExists)
}
