package store

import (
	"context"
	"time"
)

// Guesses is a Store that several processes share, which counts wrong keys for all of them.
type Guesses interface {
	// AddGuesses has each place wait longer, by its Left. No place waits longer than limit.
	AddGuesses(ctx context.Context, more []Guess, limit time.Duration) error
	// ListGuesses returns those that wait longest, n at most, and none that waits longer than limit: the clock of the database has
	// gone back then.
	ListGuesses(ctx context.Context, n int, limit time.Duration) ([]Guess, error)
}

// Guess says how long it takes until the wrong keys from a place are forgotten.
type Guess struct {
	Place string
	Left  time.Duration
}
