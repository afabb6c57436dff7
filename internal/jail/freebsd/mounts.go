//go:build linux || freebsd

package freebsd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
)

// mounted is one line of mount -p: a file system, with the flags of the mount. Sizes and modes are not among them.
type mounted struct {
	source, point, kind string
	options             []string
}

func (m mounted) has(option string) bool { return slices.Contains(m.options, option) }
func (m mounted) readOnly() bool         { return m.has("ro") }

// mounts lists what is mounted, in the order in which it was.
func mounts(ctx context.Context, run hostcmd.Runner) ([]mounted, error) {
	text, err := run.Run(ctx, "mount", "-p")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var out []mounted
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) < 4 {
			return nil, fmt.Errorf("list mounts: mount says %q", line)
		}
		out = append(out, mounted{source: unescape(f[0]), point: unescape(f[1]), kind: f[2], options: strings.Split(f[3], ",")})
	}
	return out, nil
}

// below lists what is mounted at a path and beneath it, deepest first, and of several at one place the latest first.
func below(ctx context.Context, run hostcmd.Runner, path string) ([]mounted, error) {
	all, err := mounts(ctx, run)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(m mounted) bool { return m.point != path && !strings.HasPrefix(m.point, path+"/") })
	slices.Reverse(all)
	slices.SortStableFunc(all, func(a, b mounted) int {
		return cmp.Compare(strings.Count(b.point, "/"), strings.Count(a.point, "/"))
	})
	return all, nil
}

// unescape undoes what fstab(5) asks for: blanks are written as \040.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
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

// unmount unmounts one. ErrBusy when something holds it.
func unmount(ctx context.Context, run hostcmd.Runner, point string, force bool) error {
	args := []string{point}
	if force {
		args = []string{"-f", point}
	}
	_, err := run.Run(ctx, "umount", args...)
	switch {
	case err == nil, hostcmd.Says(err, "not a file system root directory"), hostcmd.Says(err, "not currently mounted"):
		return nil
	case hostcmd.Says(err, "evice busy"), hostcmd.Says(err, "resource busy"): // strerror(EBUSY): "Device busy"
		return errors.Join(jail.ErrBusy, err)
	}
	return err
}
