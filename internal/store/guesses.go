package store

import (
	"context"
	"time"
)

// Guesses is a Store that several processes share, which counts wrong keys for all of them.
type Guesses interface {
	// AddGuesses has each place wait longer, by its Left. No place waits longer than most.
	AddGuesses(ctx context.Context, more []Guess, most time.Duration) error
	// ListGuesses returns those that wait longest, n at most.
	ListGuesses(ctx context.Context, n int) ([]Guess, error)
}

// Guess says how long it takes until the wrong keys from a place are forgotten.
type Guess struct {
	Place string
	Left  time.Duration
}
