//go:build !linux

package trawl

import (
	"context"
	"errors"
	"fmt"
)

// AllProcesses is for Linux only.
func AllProcesses() ([]int, error) { return nil, errors.ErrUnsupported }

// Processes is for Linux only: elsewhere it says so, instead of finding nothing.
func (s *Set) Processes(context.Context, ProcessOptions) ([]Hit, Stats, error) {
	return nil, Stats{}, fmt.Errorf("search processes: %w", errors.ErrUnsupported)
}
