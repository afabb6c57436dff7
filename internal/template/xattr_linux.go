package template

import "golang.org/x/sys/unix"

// missingAttribute are the errors of a file without an attribute.
func missingAttribute() []error {
	return []error{unix.ENODATA, unix.ENOTSUP, unix.EOPNOTSUPP}
}
