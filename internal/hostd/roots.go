package hostd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// Root can let agents have folders beneath further ones than workspace_roots of the configuration, with a yes on a terminal. They
// stand in a file beside the data, which belongs to root as the configuration does, and which only root can write: one on a line,
// after the number of the user whose it is.

// WorkspaceRootsFile is the file of the folders that were added.
func WorkspaceRootsFile(c config.Config) string {
	return filepath.Join(c.DataDir, workspaceRootsName)
}

const (
	workspaceRootsName = "workspace-roots"
	workspaceRootsLock = workspaceRootsName + ".lock"
	workspaceRootsHead = "# Folders beneath which agents of the tenant default may be given folders, beside workspace_roots of the\n" +
		"# configuration. Root said yes to each, for the user with the number in front. Remove a line to take one back.\n"
	maxAddedRoots    = 64
	maxAddedRootsLen = 64 << 10
)

// AddedRoot is a folder that was added. Only its owner and root could replace it.
type AddedRoot struct {
	Path  string
	Owner uint32
}

// Check says why a folder is not used: what was said yes to has another owner by now, can be replaced by others, is a link, or
// holds or lies in what is clawjail's own.
func (r AddedRoot) Check(c config.Config) error {
	return errors.Join(config.CheckWorkspaceRoot(c, r.Path), config.CheckOwnedBy(r.Path, r.Owner))
}

// AddedRoots are the folders that were added, whether they can be used or not.
func AddedRoots(c config.Config) ([]AddedRoot, error) {
	path := WorkspaceRootsFile(c)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = config.CheckOwnership(path)
	}
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxAddedRootsLen) {
		err = problem.New(problem.BadConfig, "remove it: the next sync asks again", "%s is not a file of at most %d bytes", path, maxAddedRootsLen)
	}
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path) // only root can have replaced it meanwhile
	if err != nil {
		return nil, fmt.Errorf("read which folders agents may have: %w", err)
	}
	bad := func(n int, why string) error {
		return problem.New(problem.BadConfig, "correct it, or remove the file: the next sync asks again", "%s, line %d: %s", path, n, why)
	}
	var out []AddedRoot
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		number, dir, _ := strings.Cut(line, " ")
		owner, err := strconv.ParseUint(number, 10, 32)
		switch {
		case err != nil || !filepath.IsAbs(dir) || filepath.Clean(dir) != dir:
			return nil, bad(i+1, "it is not the number of a user and the path of a folder")
		case len(out) == maxAddedRoots:
			return nil, bad(i+1, fmt.Sprintf("there are more than %d folders", maxAddedRoots))
		}
		out = append(out, AddedRoot{dir, uint32(owner)})
	}
	return out, nil
}

// UsableRoots are the paths of those that pass their check. The others are left out: what lies beneath them is refused.
func UsableRoots(c config.Config) ([]string, error) {
	all, err := AddedRoots(c)
	var out []string
	for _, r := range all {
		if r.Check(c) == nil {
			out = append(out, r.Path)
		}
	}
	return out, err
}

// PathsOfAddedRoots are the paths of all that were added, for a caller that cannot look at the folders. The host daemon decides
// whether one can be used.
func PathsOfAddedRoots(c config.Config) ([]string, error) {
	all, err := AddedRoots(c)
	var out []string
	for _, r := range all {
		out = append(out, r.Path)
	}
	return out, err
}

// NewRoot says whose a folder would be that is added, and why it cannot be. One that is not there yet is its parent's owner's.
func NewRoot(c config.Config, dir string) (AddedRoot, error) {
	r := AddedRoot{Path: dir}
	if err := config.CheckWorkspaceRoot(c, dir); err != nil {
		return r, err
	}
	at := dir
	info, err := os.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) {
		at = filepath.Dir(dir)
		info, err = os.Lstat(at)
	}
	if err != nil {
		return r, fmt.Errorf("look at %s: %w", at, err)
	}
	owner, ok := ownerOf(info)
	if !ok || !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
		return r, problem.New(problem.BadConfig, "move away what is there, or name another folder", "%s is not a folder", at)
	}
	r.Owner = owner
	return r, config.CheckOwnedBy(at, owner)
}

// AddRoot makes a folder, if it is missing, for the owner of the one that it is in, and writes down that agents may be given what
// lies beneath it.
func AddRoot(c config.Config, r AddedRoot) (err error) {
	data, err := safepath.OpenTrusted(c.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	unlock, err := data.Lock(workspaceRootsLock)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	all, err := AddedRoots(c)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(one AddedRoot) bool { return one.Path == r.Path }) // a yes to how it was then
	var text strings.Builder
	text.WriteString(workspaceRootsHead)
	for _, one := range append(all, r) {
		fmt.Fprintf(&text, "%d %s\n", one.Owner, one.Path)
	}
	if len(all) == maxAddedRoots || text.Len() > maxAddedRootsLen {
		return problem.New(problem.Conflict, "name a folder above them in workspace_roots of the configuration",
			"%d folders were added already, the most there may be", maxAddedRoots)
	}
	parent, err := safepath.OpenPlain(filepath.Dir(r.Path))
	if err != nil {
		return err
	}
	dir, err := parent.Give(filepath.Base(r.Path), 0o755, int(r.Owner))
	if err == nil {
		err = dir.Close()
	}
	if err := errors.Join(err, parent.Close()); err != nil {
		return fmt.Errorf("make %s: %w", r.Path, err)
	}
	if err := r.Check(c); err != nil {
		return err
	}
	const fresh = workspaceRootsName + ".new"
	if err = data.Remove(fresh); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = data.Create(fresh, []byte(text.String()), 0o644, -1)
	}
	if err == nil {
		err = data.Rename(fresh, workspaceRootsName)
	}
	if err != nil {
		return fmt.Errorf("write down that agents may have folders beneath %s: %w", r.Path, err)
	}
	return nil
}
