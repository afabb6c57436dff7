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

// TooNew is what a database returns that a newer clawjail has changed: this one does not know what its rows mean.
func TooNew(found, known int64) error {
	return problem.New(problem.DatabaseTooNew, "run the newer clawjail, or restore the backup that was made before the update",
		"the database was changed by a newer clawjail: its schema is version %d, and this program knows up to %d", found, known)
}

// Outdated is ErrExists for an entry that somebody else has changed since it was read.
func Outdated(found, known int64) error {
	return fmt.Errorf("it has version %d by now, not %d: %w", found, known, ErrExists)
}
