package jail

import (
	"errors"
	"fmt"
	"os"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// The drivers that make folders of jails on the host itself share these.

// ResourcesIn are the entries of a folder that are names of jails of the installation.
func ResourcesIn(f *safepath.Folder, kind ResourceKind, id Installation) (out []HostResource, err error) {
	names, err := f.Names(-1)
	for _, n := range names {
		if Name(n).Belongs(id) {
			out = append(out, HostResource{Kind: kind, Name: Name(n), Index: -1, ID: f.Path() + "/" + n})
		}
	}
	return out, err
}

// MountPoint opens a folder of a clone, and makes it when it is missing. Links of the template are not followed.
func MountPoint(root *safepath.Folder, target string) (*safepath.Folder, error) {
	point, err := root.Ensure(target, 0o755, -1)
	if errors.Is(err, safepath.ErrPlanted) {
		return nil, problem.Wrap(err, problem.BadTemplate, "make it a folder in the template, or leave it out",
			"nothing can be mounted at %s: something on the way is not a folder", target)
	}
	if err != nil {
		return nil, fmt.Errorf("make a place for %s: %w", target, Shortage(err))
	}
	return point, nil
}

// PutToken puts a jail's token into the folder of its token, which is at a path in another one. A reader sees the one before
// or this one. There is one call at a time.
func PutToken(in *safepath.Folder, path string, name Name, uid int, token []byte) error {
	dir, err := in.Folder(path)
	if errors.Is(err, os.ErrNotExist) {
		return problem.Wrap(err, problem.Conflict, "start the jail again", "jail %s has no place for a token", name)
	}
	if err != nil {
		return fmt.Errorf("deliver the token of jail %s: %w", name, err)
	}
	const fresh = ".new" // a killed process may have left one
	err = errors.Join(dir.Remove(fresh), dir.Create(fresh, token, 0o600, uid))
	if err == nil {
		err = dir.Rename(fresh, TokenName)
	}
	if err != nil {
		err = errors.Join(err, dir.Remove(fresh))
	}
	if err := errors.Join(err, dir.Close()); err != nil {
		return fmt.Errorf("deliver the token of jail %s: %w", name, Shortage(err))
	}
	return nil
}
