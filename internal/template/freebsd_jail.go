package template

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// buildJailPrefix begins the names of the jails of builds. No jail of an installation has such a name.
const buildJailPrefix = "cjbuild"

// insideConf is the jail that programs of a tree run in while it is built: a network without any interface but its own
// loopback, a few devices, nothing that it could mount. The parameters are those of jail(8).
const insideConf = `%s {
	path = "%s";
	host.hostname = "build";
	persist;
	vnet;
	mount.devfs;
	devfs_ruleset = 4711;
	enforce_statfs = 2;
	securelevel = 3;
	children.max = 0;
	allow.noraw_sockets;
	exec.clean;
	exec.timeout = 30;
	stop.timeout = 0;
}
`

// insideFreeBSD runs a program of the tree in a jail of its own, as root or as the jails' user, and returns what it answers.
// It checks itself that the jail is there and is gone: the statuses of the commands do not say.
func (b *build) insideFreeBSD(ctx context.Context, limit time.Duration, asRoot bool, argv ...string) (out string, err error) {
	name := buildJailPrefix + strings.ToLower(rand.Text()[:6])
	conf := filepath.Join(b.dir, name+".conf")
	if strings.ContainsAny(b.rootfs, "\"\\$\n") {
		return "", fmt.Errorf("the path %q cannot stand in a jail.conf", b.rootfs)
	}
	if err := os.WriteFile(conf, fmt.Appendf(nil, insideConf, name, b.rootfs), 0o600); err != nil {
		return "", fmt.Errorf("describe the jail of the build: %w", err)
	}
	defer func() {
		// Also after a cancellation: nothing of the build may run on.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, b.store.letGo(ctx, b.rootfs), os.Remove(conf))
	}()
	_, createErr := b.hostRun(ctx, time.Minute, "jail", "-f", conf, "-c", name)
	if there, err := b.jailNamed(ctx, name); err != nil || !there {
		return "", errors.Join(fmt.Errorf("the jail of the build was not made"), createErr, err)
	}
	args := []string{name}
	if !asRoot {
		uid := strconv.Itoa(jailUser)
		// -n: nothing that it runs gains privileges (chroot(8), since 14.0).
		args = append(args, "/usr/sbin/chroot", "-n", "-G", uid, "-g", uid, "-u", uid, "/")
	}
	return b.hostRun(ctx, limit, "jexec", append(args, argv...)...)
}

// hostJail is a line of jls(8): `jid=3 name=x path=/y nodying`.
type hostJail struct{ jid, name, path string }

func parseJails(text string) (out []hostJail) {
	for line := range strings.Lines(text) {
		var j hostJail
		for _, field := range strings.Fields(line) {
			key, value, _ := strings.Cut(field, "=")
			switch value = strings.Trim(value, `"'`); key {
			case "jid":
				j.jid = value
			case "name":
				j.name = value
			case "path":
				j.path = value
			}
		}
		if j.jid != "" {
			out = append(out, j)
		}
	}
	return out
}

func (s *Store) hostJails(ctx context.Context) ([]hostJail, error) {
	out, err := s.run.Run(ctx, "jls", "-d", "-n", "-q", "jid", "name", "path", "dying")
	if err != nil {
		return nil, fmt.Errorf("list jails: %w", err)
	}
	return parseJails(out), nil
}

// jailNamed reports whether the kernel has a jail of a name, also one that is dying.
func (b *build) jailNamed(ctx context.Context, name string) (bool, error) {
	jails, err := b.store.hostJails(ctx)
	return slices.ContainsFunc(jails, func(j hostJail) bool { return j.name == name }), err
}

// letGo makes a folder free to be removed: whatever runs in it is ended, and what is mounted below is unmounted.
func (s *Store) letGo(ctx context.Context, path string) error {
	if s.goos != freebsd {
		return unmountBelow(path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("look for mounts: %w", err)
	}
	jails, err := s.hostJails(ctx)
	if err != nil {
		return err
	}
	for _, j := range jails {
		if strings.HasPrefix(j.name, buildJailPrefix) && below(j.path, real) {
			if _, err := s.run.Run(ctx, "jail", "-R", j.name); err != nil && ctx.Err() != nil {
				return err // else what is mounted says whether it is gone
			}
		}
	}
	mounts, err := s.freebsdMounts(ctx, real)
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		if m.kind == "zfs" {
			continue // the dataset of the tree, which its maker removes
		}
		if _, err := s.run.Run(ctx, "umount", "-f", m.point); err != nil {
			return fmt.Errorf("unmount %s: %w", m.point, err)
		}
	}
	return nil
}

// mountsIn are the mount points below a folder of a source, without the folder itself.
func (s *Store) mountsIn(ctx context.Context, path string) ([]string, error) {
	if s.goos != freebsd {
		return sourceMounts(path)
	}
	mounts, err := s.freebsdMounts(ctx, path)
	var out []string
	for _, m := range mounts {
		if m.point != path {
			out = append(out, m.point)
		}
	}
	return out, err
}

type mountPoint struct{ point, kind string }

// freebsdMounts are the mounts at or below a path, in the order in which they were made.
func (s *Store) freebsdMounts(ctx context.Context, path string) ([]mountPoint, error) {
	out, err := s.run.Run(ctx, "mount", "-p")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return parseFstab(out, path), nil
}

// parseFstab reads what `mount -p` prints, the format of fstab(5): device, mount point, type, options, two numbers.
func parseFstab(text, path string) (out []mountPoint) {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`)
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) >= 4 && fields[0][0] != '#' {
			if point := unescape.Replace(fields[1]); below(point, path) {
				out = append(out, mountPoint{point, fields[2]})
			}
		}
	}
	return out
}

func below(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }
