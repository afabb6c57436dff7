//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/zfs"
	"github.com/clawjail/clawjail/internal/safepath"
)

// datasets are clones that are ZFS datasets: <zfs_dataset>/jails/<name>, mounted at place/rw, and bound from there to
// place/root. They are never mounted by themselves, at boot for example.
type datasets struct {
	o         Options
	templates *safepath.Folder
	zfs       *zfs.Datasets
	tree      *zfs.Trees
}

func newDatasets(o Options, templates *safepath.Folder) (cloner, error) {
	d, err := zfs.New(hostcmd.Runner{}, o.ZFSDataset)
	if err != nil {
		return nil, err
	}
	return &datasets{o: o, templates: templates, zfs: d, tree: zfs.NewTrees(d)}, nil
}

func (d *datasets) kind() string  { return StorageZFS }
func (d *datasets) trees() *Trees { return &Trees{datasets: d.tree} }
func (d *datasets) close() error  { return nil }

// ready mounts the templates, too: they are not mounted at boot.
func (d *datasets) ready(ctx context.Context) error {
	if err := d.zfs.Open(ctx); err != nil {
		return err
	}
	names, err := d.templates.Names(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if jail.ValidTemplateName(name) != nil {
			continue
		}
		tree := filepath.Join(d.templates.Path(), name, rootfsFolder)
		// A template that cannot be cloned says so when it is.
		if err := d.tree.Settle(ctx, tree); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.o.Log.Warn("mount a template", "template", name, "error", err)
		}
	}
	return nil
}

func (d *datasets) clone(ctx context.Context, place *safepath.Folder, name jail.Name, t origin) error {
	if err := place.Make(writeMount, 0o700, -1); err != nil {
		return err
	}
	dataset := datasetOf(name)
	if err := d.tree.Clone(ctx, t.path, dataset, map[string]string{
		"mountpoint": filepath.Join(place.Path(), writeMount), "canmount": "noauto", "atime": "off", "devices": "off", "setuid": "off",
	}); err != nil {
		return err
	}
	mounted, err := isMounted(place, writeMount)
	if err == nil && !mounted {
		if err = d.zfs.Mount(ctx, dataset); err == nil {
			mounted, err = isMounted(place, writeMount)
		}
	}
	if err == nil && !mounted {
		err = fmt.Errorf("mount dataset %s: it is mounted, and not in %s", dataset, place.Path())
	}
	if err != nil {
		return err
	}
	return bindRoot(place, writeMount, place)
}

func (d *datasets) destroy(ctx context.Context, name jail.Name) error {
	return d.zfs.Destroy(ctx, datasetOf(name))
}

func (d *datasets) list(ctx context.Context) ([]jail.HostResource, error) {
	all, err := d.zfs.List(ctx, zfs.Jails)
	if err != nil {
		return nil, err
	}
	var out []jail.HostResource
	for _, c := range all {
		if name := jail.Name(path.Base(c.Name)); c.Name == datasetOf(name) && name.Belongs(d.o.Installation) {
			out = append(out, jail.HostResource{Kind: jail.ResourceClone, Name: name, Index: -1, ID: d.zfs.Full(c.Name)})
		}
	}
	return out, nil
}

func datasetOf(name jail.Name) string { return zfs.Jails + "/" + string(name) }

// isMounted says whether something is mounted on a folder in another.
func isMounted(parent *safepath.Folder, name string) (bool, error) {
	var in, of unix.Stat_t
	err := errors.Join(unix.Fstat(parent.FD(), &of), unix.Fstatat(parent.FD(), name, &in, unix.AT_SYMLINK_NOFOLLOW))
	return in.Dev != of.Dev, err
}
