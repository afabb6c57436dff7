package zfs

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// marker, after the path of a tree, is a file that names its dataset. It moves with the folder that both are in: a
	// build is renamed when it is done, and a dataset is not.
	marker = ".dataset"
	// description is the file beside a tree that says which template it is, with its digest.
	description = "template.json"
	// snapshotPrefix begins the names of the snapshots that clones are made of.
	snapshotPrefix = "clawjail"
	// busyLimit is how long the removal of a tree waits while processes use it.
	busyLimit = 5 * time.Second
)

// Trees are the datasets that templates are built in: templates/<random>, each mounted where its template is.
//
// They are not mounted by themselves at boot (canmount=noauto), because a template may have been renamed since: Settle
// mounts it where it is now. Paths are root's, below the folder of templates.
type Trees struct{ datasets *Datasets }

// NewTrees makes Trees of what New made. It runs nothing.
func NewTrees(d *Datasets) *Trees { return &Trees{datasets: d} }

// Make makes an empty tree with mode 0755. Its parent must exist, and it must not. Remains of an interruption are
// removed by Remove.
func (t *Trees) Make(ctx context.Context, path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make tree: %w", err)
		}
	}()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, &os.PathError{Op: "make", Path: path, Err: fs.ErrExist})
	}
	if err := t.datasets.Open(ctx); err != nil {
		return err
	}
	name := Templates + "/" + strings.ToLower(rand.Text()[:12])
	f, err := os.OpenFile(path+marker, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Remove(context.WithoutCancel(ctx), path))
		}
	}()
	_, err = f.WriteString(name + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	if err := t.datasets.Create(ctx, name, map[string]string{"mountpoint": path, "canmount": "noauto"}); err != nil {
		return err
	}
	if err := t.datasets.Mount(ctx, name); err != nil {
		return err
	}
	return os.Chmod(path, 0o755) // whatever the umask is
}

// Remove removes a tree with everything in it, and its snapshots. That there is none is fine. While there are clones of
// it the code is template_in_use, the error is ErrHasDependents, and it stays.
func (t *Trees) Remove(ctx context.Context, path string) error {
	name, err := t.Dataset(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = untilFree(ctx, func() error { return t.destroy(ctx, name) })
	}
	if err != nil {
		return fmt.Errorf("remove tree %s: %w", path, err)
	}
	for _, left := range []string{path, path + marker} {
		if err := os.Remove(left); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove tree: %w", err)
		}
	}
	return nil
}

// untilFree repeats what says ErrBusy: after what was mounted there it may be for a moment, and unlike a jail's, the
// removal of a tree is not tried again by anybody.
func untilFree(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, busyLimit)
	defer cancel()
	return wake.Retry(ctx, 10*time.Millisecond, 250*time.Millisecond, jail.IsBusy, f)
}

func (t *Trees) destroy(ctx context.Context, name string) error {
	snapshots, err := t.datasets.Snapshots(ctx, name)
	if err != nil {
		return err
	}
	for _, s := range snapshots {
		clones, err := t.datasets.Clones(ctx, s)
		if err != nil {
			return err
		}
		err = t.datasets.Destroy(ctx, s)
		if len(clones) > 0 && err != nil {
			return problem.Wrap(err, problem.TemplateInUse, "end them first: `clawjail session ls`, `clawjail reap`",
				"jails still run from this template: %s", strings.Join(clones, ", "))
		}
		if err != nil {
			return err
		}
	}
	return t.datasets.Destroy(ctx, name)
}

// Dataset says which dataset the tree at a path is: what the file beside it names or, where there is none, that of the
// operator's with the template's name, templates/NAME/rootfs. fs.ErrNotExist when the path is no dataset's.
func (t *Trees) Dataset(ctx context.Context, path string) (string, error) {
	text, err := os.ReadFile(path + marker)
	if err == nil {
		name := strings.TrimSuffix(string(text), "\n")
		if _, err := t.datasets.checked(name); err != nil || !strings.HasPrefix(name, Templates+"/") {
			return "", fmt.Errorf("%s%s does not name a dataset of a template", path, marker)
		}
		return name, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	name := Templates + "/" + filepath.Base(filepath.Dir(path)) + "/" + filepath.Base(path)
	if _, err := t.datasets.checked(name); err != nil {
		return "", fmt.Errorf("%s is not a dataset: %w", path, fs.ErrNotExist)
	}
	_, err = t.datasets.Look(ctx, name)
	return name, err
}

// Settle makes the tree at a path mounted there, wherever it was when it was made. ErrBusy when it has to be moved and
// is in use.
func (t *Trees) Settle(ctx context.Context, path string) error {
	name, err := t.Dataset(ctx, path)
	if err != nil {
		return err
	}
	d, err := t.datasets.Look(ctx, name)
	if err != nil {
		return err
	}
	if d.Mountpoint != path {
		if err := t.datasets.Set(ctx, name, "mountpoint", path); err != nil {
			return err
		}
	}
	if d.Mounted {
		return nil
	}
	return t.datasets.Mount(ctx, name)
}

// Clone makes a dataset out of the template at a path. The first clone of a template takes the snapshot that all of them
// are made of. The code is bad_template when the template is not a dataset.
//
// A template that was changed by hand is cloned as it was, until its description names another digest.
func (t *Trees) Clone(ctx context.Context, path, dataset string, properties map[string]string) error {
	name, err := t.Dataset(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return problem.Wrap(err, problem.BadTemplate, "build the template again; with storage: zfs its root file system is made a dataset",
			"the template is not a ZFS dataset")
	}
	if err != nil {
		return err
	}
	snapshot, err := snapshotOf(path)
	if err != nil {
		return err
	}
	err = t.datasets.Clone(ctx, name+"@"+snapshot, dataset, properties)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The missing one is the snapshot, mostly; else the second attempt says which. A snapshot needs no mounted dataset.
	if err := t.datasets.Snapshot(ctx, name, snapshot); err != nil {
		return err
	}
	return t.datasets.Clone(ctx, name+"@"+snapshot, dataset, properties)
}

// snapshotOf is the name of the snapshot of a template: with the first twelve digits of the digest that its description
// has, when there is one.
func snapshotOf(path string) (string, error) {
	file := filepath.Join(filepath.Dir(path), description)
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return snapshotPrefix, nil
	}
	if err != nil {
		return "", err
	}
	var template struct {
		Digest string `json:"digest"`
	}
	if err := json.Unmarshal(data, &template); err != nil {
		return "", problem.Wrap(err, problem.TemplateChanged, "build the template again", "%s is damaged", file)
	}
	digits := strings.TrimPrefix(template.Digest, "sha256:")
	if len(digits) < 12 || !snapshotName.MatchString(digits[:12]) {
		return snapshotPrefix, nil
	}
	return snapshotPrefix + "-" + digits[:12], nil
}
