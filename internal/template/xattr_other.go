//go:build !linux

package template

import "golang.org/x/sys/unix"

// missingAttribute are the errors of a file without an attribute, and of systems that do not know its name.
func missingAttribute() []error {
	return []error{unix.ENOATTR, unix.ENOTSUP, unix.EOPNOTSUPP, unix.EPERM}
}
