//go:build linux || freebsd

package freebsd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/safepath"
)

// startLimit is how long jexec and chroot may take to become the jail's program.
const startLimit = 5 * time.Second

// Observe reads from the host how the jail is really confined.
//
// Some of it is by construction, because FreeBSD does not show it: a process that is in a jail cannot leave it nor its root,
// so there is no namespace of the host's to share but the network, which is looked at; supplementary groups are those that
// chroot was given; the memory of System V is the jail's own by jail.conf.
func (r *Runtime) Observe(ctx context.Context, p jail.Placement, proc jail.Process) (o jail.Observed, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("observe jail %s: %w", p.Name, err)
		}
	}()
	if err := r.o.check(p.Name); err != nil {
		return o, err
	}
	have, there, err := r.jails.find(ctx, p.Name)
	if err != nil {
		return o, err
	}
	if !there || have.dying {
		return o, errors.New("there is no such jail")
	}
	seen, err := r.arrived(ctx, p, proc, have.jid)
	if err != nil {
		return o, err
	}
	identify(&o, seen, have.jid)
	apart, err := r.network.apart(ctx, p.Name, p.Lease)
	if err != nil {
		return o, err
	}
	if !apart {
		o.SharedNamespaces = append(o.SharedNamespaces, "net")
	}
	if err := r.files(ctx, p, &o); err != nil {
		return o, err
	}
	return o, r.limits.enforced(ctx, p.Name, &o)
}

// arrived waits until a process is in the jail as its user: jexec enters, and chroot takes the user.
func (r *Runtime) arrived(ctx context.Context, p jail.Placement, proc jail.Process, jid int) (seen process, err error) {
	done := waitFor(ctx, startLimit, func() bool {
		seen, err = r.jails.process(ctx, proc.PID)
		return err != nil || seen.jid == jid && seen.svuid == p.Profile.UID
	})
	switch {
	case gone(err):
		return seen, errors.Join(os.ErrProcessDone, errors.New("its first process has ended; see whether the template has /usr/sbin/chroot and /bin/sh"))
	case err == nil && !done && ctx.Err() != nil:
		err = ctx.Err()
	}
	return seen, err // what did not arrive is seen as it is
}

// identify says who a process is, and what it may do.
func identify(o *jail.Observed, p process, jid int) {
	o.UIDs = []uint32{p.ruid, p.uid, p.svuid}
	o.InsideUID, o.InsideGID = p.uid, p.gid
	o.GIDs = []uint32{p.rgid, p.gid, p.svgid}
	o.NoNewPrivileges = p.flags2&noNewPrivs != 0
	if p.jid != jid {
		o.SharedNamespaces = append(o.SharedNamespaces, "jail")
	}
}

// devices are those that our ruleset shows. There are no others in the jail's /dev, nor folders with any but these.
func devices() []string {
	return []string{"fd", "null", "random", "stderr", "stdin", "stdout", "urandom", "zero"}
}

// files looks at what is mounted beneath the jail's root.
func (r *Runtime) files(ctx context.Context, p jail.Placement, o *jail.Observed) error {
	all, err := below(ctx, r.o.Commands, p.Root)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, m := range all { // of several at one place, the latest first: the others are hidden
		if seen[m.point] {
			continue
		}
		seen[m.point] = true
		inside := strings.TrimPrefix(m.point, p.Root)
		tmpfs := slices.ContainsFunc(p.Profile.Tmpfs, func(t jail.Tmpfs) bool { return t.Path == inside })
		bind := slices.ContainsFunc(p.Profile.Binds, func(b jail.Bind) bool { return b.Path == inside })
		switch {
		case inside == "":
			o.ReadOnlyRoot = m.kind == "zfs" && m.readOnly()
		case inside == "/dev" && m.kind == "devfs":
			if err := unexpected(m.point, o); err != nil {
				return err
			}
		case tmpfs && m.kind == "tmpfs":
			t, err := sizeOf(m, inside)
			if err != nil {
				return err
			}
			o.Tmpfs = append(o.Tmpfs, t)
		case bind && m.kind == "nullfs" && m.has("nosuid"):
			o.Binds = append(o.Binds, jail.Bind{Path: inside, ReadOnly: m.readOnly(), NoExec: m.has("noexec")})
		case m.readOnly():
		default:
			o.Writable = append(o.Writable, inside)
		}
	}
	return nil
}

// unexpected lists the devices that a jail must not see: a ruleset that the host does not know hides nothing.
func unexpected(dev string, o *jail.Observed) error {
	dir, err := safepath.OpenPlain(dev)
	if err != nil {
		return err
	}
	names, err := dir.Names(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return err
	}
	for _, n := range names {
		if !slices.Contains(devices(), n) {
			o.Writable = append(o.Writable, "/dev/"+n+" (is our ruleset in /etc/devfs.rules, and was devfs restarted?)")
		}
	}
	return nil
}

// sizeOf reads what mount -p does not say of a tmpfs.
func sizeOf(m mounted, inside string) (jail.Tmpfs, error) {
	t := jail.Tmpfs{Path: inside, NoExec: m.has("noexec")}
	dir, err := safepath.OpenPlain(m.point)
	if err != nil {
		return t, err
	}
	var st unix.Stat_t
	var all unix.Statfs_t
	err = errors.Join(unix.Fstat(dir.FD(), &st), unix.Fstatfs(dir.FD(), &all), dir.Close())
	t.Size, t.Mode = int64(all.Blocks)*int64(all.Bsize), uint32(st.Mode)&0o7777
	return t, err
}
