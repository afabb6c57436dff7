//go:build linux

package linux

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// mount is one line of /proc/<pid>/mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	ID, Parent int
	Root       string // the folder of the file system that is mounted
	Point      string // where, as the reading process sees it
	Options    []string
	Shared     bool // mounts made below it appear in other namespaces
	FSType     string
	Super      []string // options of the file system
}

// readMounts reads a mountinfo file.
func readMounts(path string) ([]mount, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseMounts(text)
}

func parseMounts(text []byte) ([]mount, error) {
	var out []mount
	for line := range bytes.Lines(text) {
		m, err := parseMount(string(bytes.TrimRight(line, "\n")))
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// parseMount reads "36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/sda rw,errors=continue". There may be any
// number of optional fields before the dash.
func parseMount(line string) (mount, error) {
	before, after, ok := strings.Cut(line, " - ")
	f, g := strings.Split(before, " "), strings.Split(after, " ")
	if !ok || len(f) < 6 || len(g) < 3 {
		return mount{}, fmt.Errorf("mountinfo line %q is not understood", line)
	}
	id, err1 := strconv.Atoi(f[0])
	parent, err2 := strconv.Atoi(f[1])
	if err1 != nil || err2 != nil {
		return mount{}, fmt.Errorf("mountinfo line %q has no ids", line)
	}
	return mount{
		ID: id, Parent: parent, Root: unescapeMount(f[3]), Point: unescapeMount(f[4]), Options: strings.Split(f[5], ","),
		Shared: slices.ContainsFunc(f[6:], func(s string) bool { return strings.HasPrefix(s, "shared:") }),
		FSType: g[0], Super: strings.Split(g[2], ","),
	}, nil
}

// unescapeMount undoes the kernel's octal escapes of space, tab, newline and backslash.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// readOnly reports whether nothing can be written through the mount.
func (m mount) readOnly() bool {
	return slices.Contains(m.Options, "ro") || slices.Contains(m.Super, "ro")
}

// below reports whether the mount is at dir or beneath it.
func (m mount) below(dir string) bool {
	return m.Point == dir || strings.HasPrefix(m.Point, strings.TrimSuffix(dir, "/")+"/")
}

// mountsBelow lists what is mounted at or beneath dir in this namespace, in an order in which it can be unmounted: what
// is mounted on another mount comes before it, also when it covers others that were there first.
func mountsBelow(dir string) ([]mount, error) {
	all, err := readMounts("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	parents := make(map[int]int, len(all))
	var out []mount
	for _, m := range all {
		parents[m.ID] = m.Parent
		if m.below(dir) {
			out = append(out, m)
		}
	}
	depth := func(m mount) (n int) {
		for id, ok := m.ID, true; ok && n <= len(all); id, ok = parents[id] {
			n++ // the bound is for a root that is its own parent
		}
		return n
	}
	slices.Reverse(out)
	slices.SortStableFunc(out, func(a, b mount) int { return depth(b) - depth(a) })
	return out, nil
}

// MountPoints are where something is mounted at or beneath dir, in the order of mountsBelow.
func MountPoints(dir string) (out []string, err error) {
	all, err := mountsBelow(dir)
	for _, m := range all {
		out = append(out, m.Point)
	}
	return out, err
}
