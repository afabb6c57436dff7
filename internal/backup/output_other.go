//go:build !linux

package backup

import "errors"

func newOutput(path string) (*Output, error) { return named(path) }

// link is for files without a name, which there are none of here.
func (*Output) link() error { return errors.ErrUnsupported }
