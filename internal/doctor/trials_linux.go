package doctor

import (
	"context"
	"crypto/rand"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/docker"
	"github.com/clawjail/clawjail/internal/jail/kubernetes"
	"github.com/clawjail/clawjail/internal/jail/linux"
)

// trials are made with the parts that make jails.
func trials(o Options) Trials {
	t := newTrial(o.Config, o.Log)
	t.pace = o.Pace
	return t.trials()
}

func (t *trial) trials() Trials {
	return Trials{
		Storage:       t.tryStorage,
		State:         t.tryState,
		Engine:        func(ctx context.Context) (docker.Engine, error) { return docker.Ask(ctx, t.c.Docker.Socket) },
		Limits:        t.tryLimits,
		Runtime:       t.tryRuntime,
		Subnet:        trySubnet,
		Port:          t.tryPort,
		Network:       t.tryNetwork,
		Element:       t.tryElement,
		Reach:         t.tryReach,
		Filters:       inputFilters,
		Renderer:      t.tryRenderer,
		UserNamespace: tryUserNamespace,
		Map:           linux.TryMap,
		Cluster:       withAPI(t, func(ctx context.Context, a *kubernetes.API) (kubernetes.Server, error) { return a.Look(ctx) }),
		Missing:       withAPI(t, func(ctx context.Context, a *kubernetes.API) ([]string, error) { return a.Missing(ctx) }),
		Lacking: withAPI(t, func(ctx context.Context, a *kubernetes.API) ([]kubernetes.Right, error) {
			return a.Lacking(ctx, t.c.Kubernetes.Namespace)
		}),
		Pod:  t.tryPod,
		Undo: t.undo,
	}
}

func trySubnet(ctx context.Context, id jail.Installation, configured netip.Prefix) (netip.Prefix, error) {
	if configured.IsValid() {
		return configured, linux.CheckSubnet(ctx, id, configured)
	}
	return linux.FreeSubnet(ctx, id, jail.DefaultSubnets())
}

// tryRuntime is quick after the first time: the runtime that works is remembered.
func (t *trial) tryRuntime(ctx context.Context) (string, error) {
	r, err := t.runtime.get()
	if err != nil {
		return "", err
	}
	return r.Ready(ctx)
}

// fileSystem names the file systems that data directories are on, by the numbers of linux/magic.h and of OpenZFS.
func fileSystem(magic int64) string {
	return map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
		unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.F2FS_SUPER_MAGIC: "f2fs", 0x2fc12fc1: "zfs",
	}[magic]
}

func space(path string) (Space, error) {
	at := existing(path)
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return Space{}, err
	}
	return Space{At: at, Free: st.Bavail * uint64(st.Bsize), Type: fileSystem(int64(st.Type)), ReadOnly: st.Flags&unix.ST_RDONLY != 0}, nil
}

// candidates are small networks, so that the tables of a trial are filled quickly. They are drawn, because two doctors
// at the same time would otherwise look at the same one, find it free, and both take it.
func candidates() []netip.Prefix {
	const small, tries = 24, 32
	var out []netip.Prefix
	for range tries {
		var drawn [2]byte
		rand.Read(drawn[:]) // never fails, see its documentation
		out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 | drawn[0]&127, drawn[1], 0}), small))
	}
	return out
}

// name of the trial's own jails, once there are folders. The browser's gets its name from the lifecycle, and begins with another
// letter.
func (t *trial) name(number int) jail.Name {
	name, _ := jail.NewName(jail.KindAgent, t.id, number) // the id is that of an installation, and the numbers are small
	return name
}
