//go:build linux

package linux

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Options configure Storage, Limiter and Runtime. They come from the root-owned configuration.
type Options struct {
	Installation jail.Installation
	// RunDir holds what does not outlive the host: mount points, bundles, runtime state. A tmpfs such as
	// /run/clawjail. It is made when it is missing.
	RunDir string
	// DataDir holds what outlives it: templates and, on btrfs, clones. It is made when it is missing.
	DataDir string
	// Templates is the folder of templates: <Templates>/<name>/rootfs. Default <DataDir>/templates.
	Templates string
	// Storage is auto, overlay, btrfs or zfs. Default auto: btrfs where DataDir is on btrfs, else overlay.
	Storage string
	// ZFSDataset is the dataset beneath which templates and clones are, for storage zfs.
	ZFSDataset string
	// Runtime is auto, crun, runc, runsc or the absolute path of one of them. Default auto: crun when a container
	// really runs with it, else runc.
	Runtime string
	// Gateway is the address that the jails know as "gateway" and "hermit_shell".
	Gateway netip.Addr
	// CgroupParent is the control group, below the root of the hierarchy, that the installation's own is made in.
	// Default the root itself.
	CgroupParent string
	// Share is how much of a whole a tenant's jails may take together, until Limiter.Divide says otherwise. Default all of it.
	Share func(whole int64) int64
	// WorkspaceRoots are the folders beneath which agents' jails may have folders of the host, JailRoots those beneath
	// which there may be root file systems that are no template's. Both are absolute paths without links. None by default.
	WorkspaceRoots, JailRoots []string
	// AddedRoots are further WorkspaceRoots, of the tenant default, asked for each time. May be nil.
	AddedRoots func() ([]string, error)
	// StageDir is where programs that are started in running jails find their launch.sh: an absolute path inside the jail.
	// Default .cache/clawjail/stage in the home directory of the jail's user.
	StageDir string
	// AppArmor is set when LoadAppArmor has loaded the profiles: then every jail is under one of them, or does not start.
	AppArmor bool
	Log      *slog.Logger // default: discarded
}

// The values of Options.Storage.
const (
	StorageAuto    = "auto"
	StorageOverlay = "overlay"
	StorageBtrfs   = "btrfs"
	StorageZFS     = "zfs"
)

// The values of Options.Runtime that are not paths.
const (
	RuntimeAuto  = "auto"
	RuntimeCrun  = "crun"
	RuntimeRunc  = "runc"
	RuntimeRunsc = "runsc"
)

// Folders below RunDir and DataDir. The reaper removes only entries with a jail's name in them.
const (
	jailsFolder   = "jails"   // <name>/{rw,root}: mount points of the clones; <name>/token
	bundlesFolder = "bundles" // <name>/: what the runtime and the program read
	stateFolder   = "runtime" // <name>/: the runtime's own state
	clonesFolder  = "clones"  // <name>: snapshots, below DataDir
	volumesFolder = "state"   // <agent>.img: what agents keep, below DataDir
	rootfsFolder  = "rootfs"  // of a template
)

// Validate fills in defaults and reports everything that is wrong at once.
func (o *Options) Validate() error {
	var errs []error
	bad := func(hint, format string, a ...any) {
		errs = append(errs, problem.New(problem.BadConfig, hint, format, a...))
	}
	if _, err := jail.ParseInstallation(string(o.Installation)); err != nil {
		errs = append(errs, err)
	}
	for what, dir := range map[string]string{"run_dir": o.RunDir, "data_dir": o.DataDir} {
		if !path.IsAbs(dir) {
			bad("give an absolute path", "%s is %q, which is not an absolute path", what, dir)
		}
	}
	if o.Templates == "" && o.DataDir != "" {
		o.Templates = filepath.Join(o.DataDir, "templates")
	}
	if o.Share == nil {
		o.Share = func(whole int64) int64 { return whole }
	}
	o.Storage = cmp.Or(o.Storage, StorageAuto)
	if !slices.Contains([]string{StorageAuto, StorageOverlay, StorageBtrfs, StorageZFS}, o.Storage) {
		bad("use auto, overlay, btrfs or zfs", "storage is %q", o.Storage)
	}
	if o.Storage == StorageZFS && o.ZFSDataset == "" {
		bad("set zfs_dataset, for example to zroot/clawjail", "storage is zfs, and there is no dataset for it")
	}
	o.Runtime = cmp.Or(o.Runtime, RuntimeAuto)
	if !path.IsAbs(o.Runtime) && !slices.Contains([]string{RuntimeAuto, RuntimeCrun, RuntimeRunc, RuntimeRunsc}, o.Runtime) {
		bad("use auto, crun, runc, runsc or an absolute path", "runtime is %q", o.Runtime)
	}
	if !o.Gateway.Is4() {
		bad("it is the first address of the jails' subnet", "the gateway's address is %s, not an IPv4 address", o.Gateway)
	}
	if o.CgroupParent != "" && (strings.Contains(o.CgroupParent, "..") || path.IsAbs(o.CgroupParent)) {
		bad("name it relative to the root of the hierarchy, for example clawjail.slice", "cgroup_parent is %q", o.CgroupParent)
	}
	for what, roots := range map[string][]string{"workspace_roots": o.WorkspaceRoots, "jail_roots": o.JailRoots} {
		for _, dir := range roots {
			if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" {
				bad("give an absolute path without dot elements, and not /", "%s names %q", what, dir)
			}
		}
	}
	if o.StageDir != "" && (!path.IsAbs(o.StageDir) || path.Clean(o.StageDir) != o.StageDir || o.StageDir == "/") {
		bad("give an absolute path without dot elements, as the jail sees it", "CLAWJAIL_STAGE_DIR is %q", o.StageDir)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return errors.Join(errs...)
}

// Uninstall removes what all jails of an installation share. It refuses while there are jails. A part that is nil was never
// opened; one that is not is closed.
func Uninstall(ctx context.Context, o Options, l *Limiter, f *Firewall) error {
	var errs []error
	if f != nil {
		errs = append(errs, f.Uninstall(ctx), f.Close())
	}
	errs = append(errs, UninstallNetwork(ctx, o.Installation, o.RunDir))
	if l != nil {
		errs = append(errs, l.Uninstall(ctx))
	}
	return errors.Join(append(errs, uninstallStorage(o.RunDir), UnloadAppArmor("/", o.Installation))...)
}

// check refuses a name that is not one of this installation, before it becomes part of a path.
func (o *Options) check(name jail.Name) error {
	_, err := jail.ParseName(string(name), o.Installation)
	return err
}

// gone reports whether an error says that a file or process is not there.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENODEV) ||
		errors.Is(err, os.ErrProcessDone)
}
