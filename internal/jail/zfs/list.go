package zfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/base/texts"
)

// Dataset is a file system below the parent.
type Dataset struct {
	Name string // relative to the parent
	// Mountpoint is where it is mounted, or would be: a path, "none" or "legacy".
	Mountpoint string
	Origin     string // the snapshot that it is a clone of, relative to the parent; in full when it is outside; empty when it is none
	Mounted    bool
	Used       int64 // bytes
}

// List returns the file systems below a dataset, children's children included, ordered by name; not the dataset
// itself, and no snapshots. A dataset that is not there has none.
func (d *Datasets) List(ctx context.Context, dataset string) ([]Dataset, error) {
	full, err := d.checked(dataset)
	if err != nil {
		return nil, err
	}
	entries, err := d.entries(ctx, full, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list datasets of %s: %w", dataset, err)
	}
	var out []Dataset
	for _, e := range entries {
		if e.kind == kindFilesystem && e.name != full {
			out = append(out, d.dataset(e))
		}
	}
	slices.SortFunc(out, func(a, b Dataset) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Look returns one file system. fs.ErrNotExist when there is none.
func (d *Datasets) Look(ctx context.Context, dataset string) (Dataset, error) {
	full, err := d.checked(dataset)
	if err != nil {
		return Dataset{}, err
	}
	entries, err := d.entries(ctx, full, false)
	if err != nil {
		return Dataset{}, fmt.Errorf("look at dataset %s: %w", dataset, err)
	}
	return d.dataset(entries[0]), nil
}

// Snapshots returns the snapshots of a dataset, without those of its children: "templates/x@y".
func (d *Datasets) Snapshots(ctx context.Context, dataset string) ([]string, error) {
	full, err := d.checked(dataset)
	if err != nil {
		return nil, err
	}
	entries, err := d.entries(ctx, full, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list snapshots of %s: %w", dataset, err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.name, full+"@") {
			out = append(out, d.relative(e.name))
		}
	}
	return out, nil
}

// Clones returns the datasets below the parent that are clones of a snapshot. They are found by their origins: the
// property that lists them is missing in old versions.
func (d *Datasets) Clones(ctx context.Context, snapshot string) ([]string, error) {
	full, err := d.checked(snapshot)
	if err != nil {
		return nil, err
	}
	entries, err := d.entries(ctx, d.parent, true)
	if err != nil {
		return nil, fmt.Errorf("list clones of %s: %w", snapshot, err)
	}
	var out []string
	for _, e := range entries {
		if e.origin == full {
			out = append(out, d.relative(e.name))
		}
	}
	return out, nil
}

func (d *Datasets) dataset(e entry) Dataset {
	out := Dataset{Name: d.relative(e.name), Mountpoint: e.mountpoint, Mounted: e.mounted, Used: e.used}
	if e.origin != none {
		out.Origin = d.relative(e.origin)
	}
	return out
}

func (d *Datasets) relative(full string) string { return strings.TrimPrefix(full, d.parent+"/") }

// entry is a file system, a volume or a snapshot, with its full name.
type entry struct {
	name, kind, mountpoint, origin string
	mounted                        bool
	used                           int64
}

const (
	kindFilesystem = "filesystem"
	kindVolume     = "volume"
	kindSnapshot   = "snapshot"
	none           = "-" // what there is not
)

// properties are asked for with `zfs get`, which prints exact numbers in every version; `zfs list` learned -p late.
const properties = "type,mountpoint,mounted,origin,used"

// entries reads what the command says of a dataset, which comes first, and of everything below it.
func (d *Datasets) entries(ctx context.Context, full string, below bool) ([]entry, error) {
	args := []string{"get", "-Hp"}
	if below {
		args = append(args, "-r")
	}
	out, err := d.output(ctx, append(args, "-o", "name,property,value", properties, full)...)
	if err != nil {
		return nil, err
	}
	entries, err := parseEntries(out)
	if err != nil {
		return nil, err
	}
	for i, e := range entries {
		if i == 0 && e.name != full || i > 0 && !strings.HasPrefix(e.name, full+"/") && !strings.HasPrefix(e.name, full+"@") {
			return nil, fmt.Errorf("read what zfs says of %s: %q was not asked for", full, texts.Clip(e.name, 80))
		}
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("read what zfs says of %s: it says nothing", full)
	}
	return entries, nil
}

// parseEntries reads lines of name, property and value, separated by tabs; a value may have tabs in it. Each name has
// every property, once; what else there is, is refused.
func parseEntries(text string) ([]entry, error) {
	var out []entry
	wanted := strings.Split(properties, ",")
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if text == "" {
		return nil, nil
	}
	if len(lines)%len(wanted) != 0 {
		return nil, fmt.Errorf("read what zfs says: %d lines for %d properties", len(lines), len(wanted))
	}
	seen := map[string]bool{}
	for group := range slices.Chunk(lines, len(wanted)) {
		var e entry
		for i, line := range group {
			fields := strings.SplitN(line, "\t", 3)
			if len(fields) != 3 || fields[0] == "" || fields[1] != wanted[i] || i > 0 && fields[0] != e.name {
				return nil, fmt.Errorf("read what zfs says: the line %q is not the property %s", texts.Clip(line, 80), wanted[i])
			}
			e.name = fields[0]
			if err := e.set(fields[1], fields[2]); err != nil {
				return nil, fmt.Errorf("read what zfs says of %q: %w", texts.Clip(e.name, 80), err)
			}
		}
		if seen[e.name] {
			return nil, fmt.Errorf("read what zfs says: %q comes twice", texts.Clip(e.name, 80))
		}
		seen[e.name] = true
		out = append(out, e)
	}
	return out, nil
}

func (e *entry) set(property, value string) (err error) {
	switch property {
	case "type":
		if e.kind = value; !slices.Contains([]string{kindFilesystem, kindVolume, kindSnapshot}, value) {
			return fmt.Errorf("its type is %q", texts.Clip(value, 80))
		}
	case "mountpoint":
		e.mountpoint = value
	case "mounted":
		if e.mounted = value == "yes"; !slices.Contains([]string{"yes", "no", none}, value) {
			return fmt.Errorf("mounted is %q", texts.Clip(value, 80))
		}
	case "origin":
		if e.origin = value; value == "" {
			return errors.New("its origin is empty")
		}
	case "used":
		if e.used, err = strconv.ParseInt(value, 10, 64); err != nil || e.used < 0 {
			return fmt.Errorf("used is %q", texts.Clip(value, 80))
		}
	}
	return nil
}
