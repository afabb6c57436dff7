//go:build linux

package linux

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
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
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	return parseMounts(f)
}

func parseMounts(r io.Reader) ([]mount, error) {
	all, err := mountinfo.GetMountsFromReader(r, nil)
	if err != nil {
		return nil, fmt.Errorf("read mountinfo: %w", err)
	}
	out := make([]mount, 0, len(all))
	for _, m := range all {
		out = append(out, mount{
			ID: m.ID, Parent: m.Parent, Root: m.Root, Point: m.Mountpoint, Options: strings.Split(m.Options, ","),
			Shared: strings.Contains(" "+m.Optional, " shared:"), FSType: m.FSType, Super: strings.Split(m.VFSOptions, ","),
		})
	}
	return out, nil
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
