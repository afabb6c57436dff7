//go:build linux

package hosttest

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	poolSize = 1 << 40
	// nameLength is ZFS_MAX_DATASET_NAME_LEN without its NUL.
	nameLength = 255
)

func (c *command) zfs() (int, error) {
	if len(c.args) == 0 {
		return c.zfsUsage("missing command"), nil
	}
	verb, args := c.args[0], c.args[1:]
	switch verb {
	case "list":
		return c.zfsList(args), nil
	case "get":
		return c.zfsGet(args), nil
	case "create":
		return c.zfsCreate(args)
	case "snapshot":
		return c.zfsSnapshot(args)
	case "clone":
		return c.zfsClone(args)
	case "set":
		return c.zfsSet(args)
	case "mount":
		return c.zfsMount(args)
	case "unmount", "umount":
		return c.zfsUnmount(args)
	case "destroy":
		return c.zfsDestroy(args)
	}
	return c.zfsUsage(fmt.Sprintf("unrecognized command '%s'", verb)), nil
}

// zfsUsage is how zfs ends when it does not understand: with status 2.
func (c *command) zfsUsage(format string, args ...any) int {
	return c.say(2, format+"\nusage:\n\tzfs command args ...", args...)
}

// options are the flags of a zfs command, refused in its words.
func (c *command) options(args []string, letters string) (map[byte][]string, []string, int) {
	set, rest, bad := flags(args, letters)
	if bad != 0 {
		return nil, nil, c.zfsUsage("invalid option '%c'", bad)
	}
	return set, rest, 0
}

func (c *command) zfsList(args []string) int {
	set, rest, bad := c.options(args, "Hpro:t:d:s:S:")
	if bad != 0 {
		return bad
	}
	columns := []string{"name", "used", "avail", "refer", "mountpoint"}
	if o := last(set['o']); o != "" {
		columns = strings.Split(o, ",")
	}
	depth := -1
	if d := last(set['d']); d != "" {
		n, err := strconv.Atoi(d)
		if err != nil {
			return c.zfsUsage("invalid depth '%s'", d)
		}
		depth = n
	}
	for _, col := range columns {
		if !slices.Contains(knownProperties(), col) {
			return c.zfsUsage("bad property list: invalid property '%s'", col)
		}
	}
	kind := cmp.Or(last(set['t']), "filesystem")
	if !slices.Contains([]string{"filesystem", "snapshot", "all", "filesystem,snapshot"}, kind) {
		return c.zfsUsage("invalid type '%s'", kind)
	}
	wants := func(d *dataset) bool {
		return kind == "all" || strings.Contains(kind, "snapshot") && d.snapshot() || strings.Contains(kind, "filesystem") && !d.snapshot()
	}
	recursive := set['r'] != nil || depth >= 0 || len(rest) == 0
	status := 0
	var found []*dataset
	for _, d := range c.sorted() {
		if len(rest) == 0 && wants(d) {
			found = append(found, d)
		}
	}
	for _, name := range rest {
		if c.dataset(name) == nil {
			status = c.say(1, "cannot open '%s': dataset does not exist", name)
			continue
		}
		for _, d := range c.sorted() {
			// One that was named is listed whatever kind of it is the default; a kind that was asked for is a filter.
			asked := wants(d) || d.Name == name && set['t'] == nil
			if asked && (d.Name == name || recursive && below(d.Name, name) && (depth < 0 || deep(d.Name, name) <= depth)) {
				found = append(found, d)
			} else if asked && d.snapshot() && set['t'] != nil && !recursive && strings.HasPrefix(d.Name, name+"@") {
				found = append(found, d)
			}
		}
	}
	if len(found) == 0 && status == 0 {
		return c.say(0, "no datasets available")
	}
	if set['H'] == nil {
		fmt.Fprintln(&c.out, strings.ToUpper(strings.Join(columns, "  ")))
	}
	for _, d := range found {
		var row []string
		for _, col := range columns {
			row = append(row, c.property(d, col, set['p'] != nil))
		}
		fmt.Fprintln(&c.out, strings.Join(row, "\t"))
	}
	return status
}

func (c *command) zfsGet(args []string) int {
	set, rest, bad := c.options(args, "Hpro:t:d:s:")
	if bad != 0 {
		return bad
	}
	if len(rest) < 2 {
		return c.zfsUsage("missing dataset argument")
	}
	fields := strings.Split(cmp.Or(last(set['o']), "name,property,value,source"), ",")
	for _, p := range strings.Split(rest[0], ",") {
		if !slices.Contains(knownProperties(), p) && !strings.Contains(p, ":") {
			return c.zfsUsage("bad property list: invalid property '%s'", p)
		}
	}
	status := 0
	for _, name := range rest[1:] {
		d := c.dataset(name)
		if d == nil {
			status = c.say(1, "cannot open '%s': dataset does not exist", name)
			continue
		}
		for _, p := range strings.Split(rest[0], ",") {
			value, source := c.property(d, p, set['p'] != nil), "-"
			if _, local := d.Props[p]; local {
				source = "local"
			}
			row := map[string]string{"name": name, "property": p, "value": value, "source": source}
			var line []string
			for _, f := range fields {
				line = append(line, row[f])
			}
			fmt.Fprintln(&c.out, strings.Join(line, "\t"))
		}
	}
	return status
}

// knownProperties are those that are modelled: others are refused, although a real zfs has more.
func knownProperties() []string {
	return []string{"name", "used", "avail", "available", "refer", "referenced", "mountpoint", "mounted", "origin", "clones", "type", "creation", "readonly",
		"canmount", "quota", "refquota", "atime", "setuid", "exec", "devices", "compression", "snapdir", "reservation"}
}

// settable says whether a property may be set, and to this.
func settable(property, value string) (ok bool, complaint string) {
	switch property {
	case "readonly", "atime", "setuid", "exec", "devices":
		if value != "on" && value != "off" {
			return false, fmt.Sprintf("'%s' must be one of 'on | off'", property)
		}
	case "canmount":
		if value != "on" && value != "off" && value != "noauto" {
			return false, "'canmount' must be one of 'on | off | noauto'"
		}
	case "mountpoint":
		if value != "none" && value != "legacy" && !strings.HasPrefix(value, "/") {
			return false, "'mountpoint' must be an absolute path, 'none', or 'legacy'"
		}
	case "quota", "refquota", "reservation":
		if _, good := size(value); !good && value != "none" {
			return false, fmt.Sprintf("bad numeric value '%s'", value)
		}
	case "compression", "snapdir":
	default:
		if strings.Contains(property, ":") {
			return true, "" // a user's own property
		}
		if slices.Contains(knownProperties(), property) {
			return false, fmt.Sprintf("'%s' is readonly", property)
		}
		return false, fmt.Sprintf("invalid property '%s'", property)
	}
	return true, ""
}

// size reads a number with a unit.
func size(text string) (int64, bool) {
	shift := 0
	if at := strings.IndexAny(text, "KMGTkmgt"); at > 0 && at == len(text)-1 {
		shift = 10 * (1 + strings.Index("KMGT", strings.ToUpper(text[at:])))
		text = text[:at]
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n << shift, err == nil && n >= 0
}

// property is what a dataset's property is, its own or inherited.
func (s *state) property(d *dataset, name string, exact bool) string {
	switch name {
	case "name":
		return d.Name
	case "type":
		if d.snapshot() {
			return "snapshot"
		}
		return "filesystem"
	case "origin":
		return cmp.Or(d.Origin, "-")
	case "creation":
		if exact {
			return strconv.FormatInt(d.Created.Unix(), 10)
		}
		return d.Created.Format("Mon Jan _2 15:04 2006")
	case "clones":
		if !d.snapshot() {
			return "-"
		}
		return strings.Join(s.clones(d.Name), ",")
	case "used", "refer", "referenced":
		return strconv.FormatInt(s.size(d), 10)
	case "avail", "available":
		if d.snapshot() {
			return "-"
		}
		return strconv.FormatInt(s.free(), 10)
	}
	if d.snapshot() {
		return "-"
	}
	switch name {
	case "mounted":
		if d.Mounted != "" {
			return "yes"
		}
		return "no"
	case "mountpoint":
		return s.mountpoint(d)
	case "canmount", "quota", "refquota", "reservation":
		// Not inherited.
		fallback := map[string]string{"canmount": "on"}[name]
		if fallback == "" {
			fallback = "none"
			if exact {
				fallback = "0"
			}
		}
		return cmp.Or(d.Props[name], fallback)
	}
	for at := d; at != nil; at = s.parent(at) {
		if v, set := at.Props[name]; set {
			return v
		}
	}
	return map[string]string{"readonly": "off", "atime": "on", "setuid": "on", "exec": "on", "devices": "on", "compression": "on", "snapdir": "hidden"}[name]
}

// mountpoint is where a dataset would be mounted: where it says, or below where its parent says.
func (s *state) mountpoint(d *dataset) string {
	if at, set := d.Props["mountpoint"]; set {
		return at
	}
	up := s.parent(d)
	if up == nil {
		return "none"
	}
	at := s.mountpoint(up)
	if at == "none" || at == "legacy" {
		return at
	}
	return filepath.Join(at, strings.TrimPrefix(d.Name, up.Name+"/"))
}

func (s *state) parent(d *dataset) *dataset {
	at := strings.LastIndexAny(d.Name, "/@")
	if at < 0 {
		return nil
	}
	return s.dataset(d.Name[:at])
}

// below says whether a dataset or snapshot lies under another.
func below(name, parent string) bool {
	return strings.HasPrefix(name, parent+"/") || strings.HasPrefix(name, parent+"@")
}

func deep(name, parent string) int {
	return strings.Count(strings.TrimPrefix(name, parent), "/") + strings.Count(strings.TrimPrefix(name, parent), "@")
}

func (s *state) clones(snapshot string) []string {
	var out []string
	for _, d := range s.Datasets {
		if d.Origin == snapshot {
			out = append(out, d.Name)
		}
	}
	slices.Sort(out)
	return out
}

func (s *state) sorted() []*dataset {
	out := slices.Clone(s.Datasets)
	slices.SortFunc(out, func(a, b *dataset) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// size and used count a little for each dataset: what is in them is not looked at.
func (s *state) size(d *dataset) int64 {
	if d.snapshot() {
		return 0
	}
	return 98304
}

func (s *state) used() int64 { return 98304 * int64(len(s.Datasets)) }

func (s *state) free() int64 { return max(poolSize-s.used()-s.Allocated, 0) }
