//go:build unix && !linux && !freebsd

package process

import "errors"

// AdoptOrphans is not there: the system has no jails either.
func AdoptOrphans() error { return errors.ErrUnsupported }

// Hide is not there.
func Hide() error { return errors.ErrUnsupported }

// KeepFrom is not there.
func KeepFrom(int) error { return errors.ErrUnsupported }
