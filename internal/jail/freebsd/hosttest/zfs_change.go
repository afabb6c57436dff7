//go:build linux

package hosttest

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// newName refuses what no dataset may be called: see zfs(8), and zfs_namecheck.c for the length and the characters.
func (c *command) newName(verb, name string) int {
	if len(name) > nameLength {
		return c.say(1, "cannot %s '%s': name is too long", verb, name)
	}
	for _, part := range strings.FieldsFunc(name, func(r rune) bool { return r == '/' || r == '@' }) {
		if strings.Trim(part, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.: ") != "" {
			return c.say(1, "cannot %s '%s': invalid character '%s' in name", verb, name, strings.Trim(part, "abcdefghijklmnopqrstuvwxyz")[:1])
		}
	}
	if strings.Contains(name, "//") || strings.HasSuffix(name, "/") || strings.HasPrefix(name, "/") || name == "" {
		return c.say(1, "cannot %s '%s': empty component or misplaced '/' in name", verb, name)
	}
	if c.dataset(name) != nil {
		return c.say(1, "cannot %s '%s': dataset already exists", verb, name)
	}
	if at := strings.LastIndex(name, "/"); at < 0 || c.dataset(name[:at]) == nil {
		if at < 0 {
			return c.say(1, "cannot %s '%s': missing dataset name", verb, name)
		}
		return c.say(1, "cannot %s '%s': parent does not exist", verb, name)
	}
	if c.free() < 98304 {
		return c.say(1, "cannot %s '%s': out of space", verb, name)
	}
	return 0
}

// properties reads -o options.
func (c *command) properties(verb, name string, given []string) (map[string]string, int) {
	props := map[string]string{}
	for _, kv := range given {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return nil, c.zfsUsage("missing '=' for property=value argument")
		}
		if good, complaint := settable(k, v); !good {
			return nil, c.say(1, "cannot %s '%s': %s", verb, name, complaint)
		}
		if _, twice := props[k]; twice {
			return nil, c.say(1, "property '%s' specified multiple times", k)
		}
		props[k] = v
	}
	return props, 0
}

func (c *command) zfsCreate(args []string) (int, error) {
	set, rest, bad := c.options(args, "o:pu")
	if bad != 0 {
		return bad, nil
	}
	if len(rest) != 1 {
		return c.zfsUsage("missing filesystem argument"), nil
	}
	name := rest[0]
	if bad := c.newName("create", name); bad != 0 {
		return bad, nil
	}
	props, bad := c.properties("create", name, set['o'])
	if bad != 0 {
		return bad, nil
	}
	d := c.newDataset(name, props)
	if err := os.MkdirAll(c.pool(d.ID, "data"), 0o755); err != nil {
		return broken, err
	}
	c.Datasets = append(c.Datasets, d)
	if set['u'] != nil {
		return 0, nil
	}
	return c.automount(d)
}

func (s *state) newDataset(name string, props map[string]string) *dataset {
	s.NextID++
	return &dataset{Name: name, ID: fmt.Sprintf("d%d", s.NextID), Props: props, Created: time.Now()}
}

// pool is a folder of a dataset's content.
func (s *state) pool(elem ...string) string {
	return filepath.Join(append([]string{s.Dir, "pool"}, elem...)...)
}

func (c *command) zfsSnapshot(args []string) (int, error) {
	set, rest, bad := c.options(args, "o:r")
	if bad != 0 {
		return bad, nil
	}
	if len(rest) != 1 || set['r'] != nil {
		return c.zfsUsage("missing snapshot argument"), nil
	}
	name := rest[0]
	of, _, ok := strings.Cut(name, "@")
	if !ok || strings.Count(name, "@") > 1 {
		return c.say(2, "cannot create snapshot '%s': missing '@' delimiter in snapshot name", name), nil
	}
	from := c.dataset(of)
	if from == nil {
		return c.say(1, "cannot open '%s': dataset does not exist", of), nil
	}
	if c.dataset(name) != nil {
		return c.say(1, "cannot create snapshot '%s': dataset already exists", name), nil
	}
	if len(name) > nameLength {
		return c.say(1, "cannot create snapshot '%s': name is too long", name), nil
	}
	if c.free() < 98304 {
		return c.say(1, "cannot create snapshot '%s': out of space", name), nil
	}
	d := c.newDataset(name, map[string]string{})
	if err := os.MkdirAll(c.pool(d.ID), 0o755); err != nil {
		return broken, err
	}
	source := c.pool(from.ID, "data")
	if from.Mounted != "" {
		source = from.Mounted // a clone's content is only seen where it is mounted
	}
	// Only this file system's files: what is mounted below is not in a snapshot.
	if text, err := exec.Command("cp", "-a", "-x", "--reflink=auto", source+"/.", c.pool(d.ID, "data")).CombinedOutput(); err != nil {
		return broken, fmt.Errorf("copy %s: %v: %s", source, err, text)
	}
	c.Datasets = append(c.Datasets, d)
	return 0, nil
}

func (c *command) zfsClone(args []string) (int, error) {
	set, rest, bad := c.options(args, "o:pu")
	if bad != 0 {
		return bad, nil
	}
	if len(rest) != 2 {
		return c.zfsUsage("missing source dataset argument"), nil
	}
	origin, name := c.dataset(rest[0]), rest[1]
	if origin == nil || !origin.snapshot() {
		return c.say(1, "cannot open '%s': dataset does not exist", rest[0]), nil
	}
	if bad := c.newName("create", name); bad != 0 {
		return bad, nil
	}
	props, bad := c.properties("create", name, set['o'])
	if bad != 0 {
		return bad, nil
	}
	d := c.newDataset(name, props)
	d.Origin = origin.Name
	for _, dir := range []string{"data", "work"} {
		if err := os.MkdirAll(c.pool(d.ID, dir), 0o755); err != nil {
			return broken, err
		}
	}
	c.Datasets = append(c.Datasets, d)
	if set['u'] != nil {
		return 0, nil
	}
	return c.automount(d)
}

// automount mounts what was just made, where it is to be mounted by itself.
func (c *command) automount(d *dataset) (int, error) {
	if at := c.mountpoint(d); at == "none" || at == "legacy" || c.property(d, "canmount", false) != "on" {
		return 0, nil
	}
	return c.attach(d)
}

func (c *command) zfsSet(args []string) (int, error) {
	if len(args) < 2 {
		return c.zfsUsage("missing arguments"), nil
	}
	name := args[len(args)-1]
	d := c.dataset(name)
	if d == nil || d.snapshot() {
		return c.say(1, "cannot open '%s': dataset does not exist", name), nil
	}
	props, bad := c.properties("set property for", name, args[:len(args)-1])
	if bad != 0 {
		return bad, nil
	}
	moved := props["mountpoint"] != "" && props["mountpoint"] != c.mountpoint(d)
	wasMounted := d.Mounted != ""
	if moved && wasMounted {
		if status, err := c.detach(d, false); status != 0 || err != nil {
			return status, err
		}
	}
	maps.Copy(d.Props, props)
	if moved {
		return c.automount(d)
	}
	return 0, c.refresh(d)
}

func (c *command) zfsMount(args []string) (int, error) {
	_, rest, bad := c.options(args, "")
	if bad != 0 {
		return bad, nil
	}
	if len(rest) != 1 {
		return c.zfsUsage("missing filesystem argument"), nil
	}
	d := c.dataset(rest[0])
	switch {
	case d == nil || d.snapshot():
		return c.say(1, "cannot open '%s': dataset does not exist", rest[0]), nil
	case d.Mounted != "":
		return c.say(1, "cannot mount '%s': filesystem already mounted", d.Name), nil
	case c.property(d, "canmount", false) == "off":
		return c.say(1, "cannot mount '%s': 'canmount' property is set to 'off'", d.Name), nil
	case c.mountpoint(d) == "none":
		return c.say(1, "cannot mount '%s': no mountpoint set", d.Name), nil
	case c.mountpoint(d) == "legacy":
		return c.say(1, "cannot mount '%s': legacy mountpoint\nuse mount(8) to mount this filesystem", d.Name), nil
	}
	return c.attach(d)
}

func (c *command) zfsUnmount(args []string) (int, error) {
	set, rest, bad := c.options(args, "fu")
	if bad != 0 {
		return bad, nil
	}
	if len(rest) != 1 {
		return c.zfsUsage("missing filesystem argument"), nil
	}
	name := rest[0]
	i := slices.IndexFunc(c.Datasets, func(d *dataset) bool {
		return d.Name == name || strings.HasPrefix(name, "/") && d.Mounted == filepath.Clean(name)
	})
	if i < 0 {
		if strings.HasPrefix(name, "/") {
			return c.say(1, "cannot unmount '%s': not a ZFS filesystem", name), nil
		}
		return c.say(1, "cannot open '%s': dataset does not exist", name), nil
	}
	if c.Datasets[i].Mounted == "" {
		return c.say(1, "cannot unmount '%s': not currently mounted", name), nil
	}
	return c.detach(c.Datasets[i], set['f'] != nil)
}

func (c *command) zfsDestroy(args []string) (int, error) {
	set, rest, bad := c.options(args, "fnpRrvd")
	if bad != 0 {
		return bad, nil
	}
	if len(rest) != 1 {
		return c.zfsUsage("missing dataset argument"), nil
	}
	for _, dangerous := range []byte{'r', 'R'} {
		if set[dangerous] != nil {
			return broken, fmt.Errorf("destroy -%c is not modelled: nothing that is tested may use it", dangerous)
		}
	}
	name := rest[0]
	d := c.dataset(name)
	if d == nil {
		if of, _, snapshot := strings.Cut(name, "@"); snapshot && c.dataset(of) != nil {
			return c.say(1, "could not find any snapshots to destroy; check snapshot names."), nil
		}
		return c.say(1, "cannot open '%s': dataset does not exist", name), nil
	}
	if d.snapshot() {
		if clones := c.clones(name); len(clones) > 0 {
			return c.say(1, "cannot destroy '%s': snapshot has dependent clones\nuse '-R' to destroy the following datasets:\n%s", name, strings.Join(clones, "\n")), nil
		}
		return 0, c.drop(d)
	}
	var children, clones []string
	for _, other := range c.sorted() {
		if below(other.Name, name) {
			children = append(children, other.Name)
			clones = append(clones, c.clones(other.Name)...)
		}
	}
	if len(clones) > 0 {
		return c.say(1, "cannot destroy '%s': filesystem has dependent clones\nuse '-R' to destroy the following datasets:\n%s", name, strings.Join(append(clones, children...), "\n")), nil
	}
	if len(children) > 0 {
		return c.say(1, "cannot destroy '%s': filesystem has children\nuse '-r' to destroy the following datasets:\n%s", name, strings.Join(children, "\n")), nil
	}
	if d.Mounted != "" {
		if status, err := c.detach(d, set['f'] != nil); status != 0 || err != nil {
			return status, err
		}
	}
	return 0, c.drop(d)
}

// drop removes a dataset and its content.
func (s *state) drop(d *dataset) error {
	s.Datasets = slices.DeleteFunc(s.Datasets, func(o *dataset) bool { return o == d })
	return os.RemoveAll(s.pool(d.ID))
}
