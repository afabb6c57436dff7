package hostd

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/freebsd"
	"github.com/clawjail/clawjail/internal/jail/zfs"
	"github.com/clawjail/clawjail/internal/problem"
)

// Assemble makes this host's driver out of its five parts.
func Assemble(ctx context.Context, how AssembleOptions) (Parts, error) {
	c := how.Config
	if c.AppArmor == config.AppArmorRequired {
		return Parts{}, problem.New(problem.BadConfig, "leave apparmor out, or set it to auto", "apparmor is required, and FreeBSD has none")
	}
	if c.Kubernetes.On() {
		return Parts{}, problem.New(problem.BadConfig, "leave kubernetes out, or run clawjail on Linux", "jails cannot be pods from FreeBSD")
	}
	o, err := optionsOf(c, how.Installation, how.Pool, how.Log)
	if err != nil {
		return Parts{}, err
	}
	h, err := freebsd.Open(ctx, o)
	if err != nil {
		return Parts{}, err
	}
	return Parts{Parts: h.Parts(), Close: func(context.Context) error { return h.Close() }}, nil
}

func optionsOf(c config.Config, id jail.Installation, pool *jail.Pool, log *slog.Logger) (freebsd.Options, error) {
	if c.Storage != config.StorageAuto && c.Storage != config.StorageZFS {
		return freebsd.Options{}, problem.New(problem.BadConfig, "use storage: zfs, and set zfs_dataset", "jails on FreeBSD are not made with storage %s", c.Storage)
	}
	return freebsd.Options{Installation: id, Pool: pool, RunDir: c.RunDir, DataDir: c.DataDir, Templates: c.TemplatesDir,
		Dataset: c.ZFSDataset, WorkspaceRoots: c.Agents.WorkspaceRoots, Log: log,
		AddedRoots: func() ([]string, error) { return UsableRoots(c) }}, nil
}

// Uninstall removes what all jails of an installation share. It refuses while there are jails.
func Uninstall(ctx context.Context, c config.Config, id jail.Installation, pool *jail.Pool) error {
	o, err := optionsOf(c, id, pool, nil)
	if err != nil {
		return err
	}
	return freebsd.Uninstall(ctx, o)
}

// trees are the datasets that templates are built in. A build does not stop half-way in one of these.
type trees struct{ *zfs.Trees }

func (t trees) Make(path string) error   { return t.Trees.Make(context.Background(), path) }
func (t trees) Remove(path string) error { return t.Trees.Remove(context.Background(), path) }

// Settle mounts a dataset where it is now, for root.
func (t trees) Settle(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if err := t.Trees.Settle(context.Background(), path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // it is an ordinary folder
}

// Trees makes the folders that templates are built in, so that this host's storage can clone them.
func Trees(c config.Config) (TreeMaker, error) {
	d, err := zfs.New(hostcmd.Runner{}, c.ZFSDataset)
	if err != nil {
		return nil, err
	}
	return trees{zfs.NewTrees(d)}, nil
}
