// Package zfs keeps the root file systems of jails as clones of ZFS datasets, with the command zfs(8).
//
// It works beneath one dataset that root's configuration names, and never outside of it: every name that its methods
// take is relative to that one and checked, and nothing is ever destroyed recursively. Errors of the command are turned
// into ours in one place (errors.go); a dataset that is busy is jail.ErrBusy, which the caller repeats, and one with
// clones or children jail.ErrHasDependents, which is final.
//
// The command lines are those that OpenZFS 2 and the zfs-fuse of 2011 have in common. The tests run the latter; no host
// with OpenZFS, and no FreeBSD, has run this package yet.
package zfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/problem"
)

// The datasets below the parent that hold others. They are mounted nowhere.
const (
	Templates = "templates" // the trees that templates are built in
	Jails     = "jails"     // clones, by the names of their jails
)

// maxName is what zfs(8) allows for the name of a dataset and of a snapshot, both together.
const maxName = 255

var (
	// A parent is a pool and at least one more element: nothing is made in the root of a pool.
	parentName   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.:-]*(/[A-Za-z0-9][A-Za-z0-9_.:-]*)+$`)
	datasetName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]*(/[A-Za-z0-9][A-Za-z0-9_.:-]*)*$`)
	snapshotName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]*$`)
	propertyName = regexp.MustCompile(`^[a-z][a-z0-9_.:-]*$`)
)

// Datasets are those beneath one parent. Names are relative to it: "jails/bk3x900042". Its methods may be called
// concurrently.
type Datasets struct {
	run    hostcmd.Runner
	parent string
}

// New checks the name of the parent. It runs nothing.
func New(run hostcmd.Runner, parent string) (*Datasets, error) {
	if !parentName.MatchString(parent) || len(parent) > maxName/2 {
		return nil, problem.New(problem.BadConfig, "set zfs_dataset to POOL/NAME, for example zroot/clawjail",
			"%q is not the name of a dataset", parent)
	}
	return &Datasets{run: run, parent: parent}, nil
}

// Parent is the full name of the parent.
func (d *Datasets) Parent() string { return d.parent }

// Full is the full name of a dataset or snapshot, as mount tables have it.
func (d *Datasets) Full(name string) string { return d.parent + "/" + name }

// Open looks whether the parent is there, and makes the datasets that hold others.
func (d *Datasets) Open(ctx context.Context) error {
	entries, err := d.entries(ctx, d.parent, false)
	if errors.Is(err, fs.ErrNotExist) {
		return problem.Wrap(err, problem.BadConfig, "make it: zfs create -o mountpoint=none "+d.parent, "there is no dataset %s", d.parent)
	}
	if err != nil {
		return fmt.Errorf("open dataset %s: %w", d.parent, err)
	}
	if entries[0].kind != kindFilesystem {
		return problem.New(problem.BadConfig, "name a file system in zfs_dataset", "%s is a %s", d.parent, entries[0].kind)
	}
	for _, name := range []string{Templates, Jails} {
		err := d.Create(ctx, name, map[string]string{"mountpoint": "none"})
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// Create makes a dataset. fs.ErrExist when there is one. Unless canmount is off or noauto it is mounted.
func (d *Datasets) Create(ctx context.Context, dataset string, properties map[string]string) error {
	options, err := optionsOf(properties)
	if err == nil {
		err = d.zfs(ctx, append([]string{"create"}, options...), dataset)
	}
	if err != nil {
		return fmt.Errorf("create dataset %s: %w", dataset, err)
	}
	return nil
}

// Snapshot makes a snapshot. That there is one of the name is fine.
func (d *Datasets) Snapshot(ctx context.Context, dataset, snapshot string) error {
	err := d.zfs(ctx, []string{"snapshot"}, dataset+"@"+snapshot)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make snapshot %s@%s: %w", dataset, snapshot, err)
	}
	return nil
}

// Clone makes a dataset out of a snapshot ("templates/x@y"). fs.ErrExist when there is a dataset of that name. Whether
// one with canmount=noauto is mounted afterwards depends on the version: Mount makes sure.
func (d *Datasets) Clone(ctx context.Context, snapshot, dataset string, properties map[string]string) error {
	options, err := optionsOf(properties)
	if err == nil {
		err = d.zfs(ctx, append([]string{"clone"}, options...), snapshot, dataset)
	}
	if err != nil {
		return fmt.Errorf("clone snapshot %s: %w", snapshot, err)
	}
	return nil
}

// Set sets a property. Setting the mountpoint of a mounted dataset mounts it there; ErrBusy when it is in use.
func (d *Datasets) Set(ctx context.Context, dataset, property, value string) error {
	options, err := optionsOf(map[string]string{property: value})
	if err == nil {
		err = d.zfs(ctx, []string{"set", options[1]}, dataset)
	}
	if err != nil {
		return fmt.Errorf("set %s of dataset %s: %w", property, dataset, err)
	}
	return nil
}

// Get reads a property: numbers in bytes, "-" for what a dataset of its kind does not have.
func (d *Datasets) Get(ctx context.Context, dataset, property string) (string, error) {
	full, err := d.checked(dataset)
	if err == nil && !propertyName.MatchString(property) {
		err = fmt.Errorf("%q is not the name of a property", property)
	}
	var out string
	if err == nil {
		out, err = d.output(ctx, "get", "-Hp", "-o", "value", property, full)
	}
	if err != nil {
		return "", fmt.Errorf("get %s of dataset %s: %w", property, dataset, err)
	}
	return strings.TrimSuffix(out, "\n"), nil
}

// Mount mounts a dataset at its mountpoint. It is no error when that is mounted already.
func (d *Datasets) Mount(ctx context.Context, dataset string) error {
	err := d.zfs(ctx, []string{"mount"}, dataset)
	if err != nil && !errors.Is(err, errMounted) {
		return fmt.Errorf("mount dataset %s: %w", dataset, err)
	}
	return nil
}

// Unmount unmounts a dataset; force tries to even when it is in use. It is no error when it is not mounted, or not there.
//
// The effect of force depends on the system: FreeBSD takes the files away from those who have them open; Linux
// may take it out of sight, and keeps it busy until they have closed them.
func (d *Datasets) Unmount(ctx context.Context, dataset string, force bool) error {
	command := []string{"unmount"}
	if force {
		command = append(command, "-f")
	}
	err := d.zfs(ctx, command, dataset)
	if err != nil && !errors.Is(err, errNotMounted) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmount dataset %s: %w", dataset, err)
	}
	return nil
}

// Destroy unmounts and destroys one dataset, or one snapshot. That there is none is fine. ErrBusy while it is in use;
// ErrHasDependents while there is something below it, or a clone of it.
func (d *Datasets) Destroy(ctx context.Context, dataset string) error {
	err := d.zfs(ctx, []string{"destroy"}, dataset)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("destroy dataset %s: %w", dataset, err)
	}
	return nil
}

// zfs runs a command whose last arguments are datasets or snapshots.
func (d *Datasets) zfs(ctx context.Context, command []string, names ...string) error {
	for _, name := range names {
		full, err := d.checked(name)
		if err != nil {
			return err
		}
		command = append(command, full)
	}
	_, err := d.output(ctx, command...)
	return err
}

func (d *Datasets) output(ctx context.Context, args ...string) (string, error) {
	out, err := d.run.Run(ctx, "zfs", args...)
	return out, translate(err)
}

// checked is the full name of a dataset or of a snapshot below the parent. A name that is not surely one is refused.
func (d *Datasets) checked(name string) (string, error) {
	full := d.Full(name)
	dataset, snapshot, isSnapshot := strings.Cut(name, "@")
	if !datasetName.MatchString(dataset) || isSnapshot && !snapshotName.MatchString(snapshot) || len(full) > maxName {
		return "", problem.New(problem.BadName, "", "%q is not the name of a dataset", texts.Clip(name, 80))
	}
	return full, nil
}

// optionsOf are the -o options of properties, in their order.
func optionsOf(properties map[string]string) ([]string, error) {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		value := properties[name]
		if !propertyName.MatchString(name) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return nil, fmt.Errorf("%q cannot be set to %q", name, value)
		}
		out = append(out, "-o", name+"="+value)
	}
	return out, nil
}
