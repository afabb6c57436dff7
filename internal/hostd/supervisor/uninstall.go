package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// UninstallOptions are what Uninstall needs.
type UninstallOptions struct {
	// Host is how a host daemon would be run.
	Host hostd.RunOptions
	// ConfigPath is the file that the configuration was read from; empty when there is none.
	ConfigPath string
	// RemoveTemplates removes the built templates, which may be more than folders. It is called with Data alone.
	RemoveTemplates func(context.Context) error
	// Data removes what is kept on the disk as well: keys, database, recordings, templates, what agents have kept, the
	// configuration, and the user of the control plane if clawjail made it.
	Data bool
	// DryRun only says what would be done.
	DryRun bool
}

// Uninstalled says what was removed, or would be, and what stays.
type Uninstalled struct {
	// Installation is empty where clawjail was never started, or is gone already.
	Installation jail.Installation        `json:"installation,omitempty"`
	DryRun       bool                     `json:"dry_run"`
	Removed      []inventory.HostResource `json:"removed"`
	Kept         []Kept                   `json:"kept"`
}

// Kept is one thing that stays.
type Kept struct {
	inventory.HostResource
	Why string `json:"why"`
}

func (u *Uninstalled) removed(kind, id string) {
	u.Removed = append(u.Removed, inventory.HostResource{Kind: kind, ID: id})
}

func (u *Uninstalled) keep(kind, id, why string) {
	u.Kept = append(u.Kept, Kept{inventory.HostResource{Kind: kind, ID: id}, why})
}

// Uninstall takes an installation off this host and says what it did. Only what carries the installation's id, or has a name in
// its own folders that clawjail gives, is touched. It refuses while a half of clawjail runs, and compares the host with the list
// of package inventory before and after: what is left of that is an error. It may be called again.
func Uninstall(ctx context.Context, o UninstallOptions) (Uninstalled, error) {
	c := o.Host.Config
	out := Uninstalled{DryRun: o.DryRun, Removed: []inventory.HostResource{}, Kept: []Kept{}}
	in, found, err := hostd.FindInstallation(c)
	if err != nil {
		return out, err
	}
	out.Installation = in.ID
	var before []inventory.HostResource
	if found {
		if before, err = onHost(ctx, c, in); err != nil {
			return out, err
		}
	}
	then := func(ctx context.Context, in hostd.Installation) error {
		left, err := onHost(ctx, c, in)
		if err != nil {
			return err
		}
		// With a mount of a jail in one of the folders, removing that would reach into what is mounted.
		if len(left) > 0 {
			return fmt.Errorf("left on this host, run it again: %v", left)
		}
		return out.data(ctx, o, true)
	}
	how := hostd.WithdrawOptions{Volumes: o.Data, DryRun: o.DryRun, Then: then}
	if err := hostd.Withdraw(ctx, o.Host, how); err != nil {
		if problem.CodeOf(err) == problem.Conflict || !found || o.DryRun {
			return out, err
		}
		// It says what is gone, and the error what is not.
		left, again := onHost(context.WithoutCancel(ctx), c, in)
		if again == nil {
			out.Removed = append(inventory.Added(left, before), out.Removed...)
		}
		return out, errors.Join(err, again)
	}
	out.Removed = append(before, out.Removed...)
	var dataErr error
	if o.DryRun || !found {
		dataErr = out.data(ctx, o, found)
	}
	return out, errors.Join(out.runDir(ctx, o), dataErr, out.account(ctx, o))
}

// onHost lists what of an installation is on the host. An installation whose data is in a folder below this one's is another, and
// a file system that one of the folders itself is on is the operator's.
func onHost(ctx context.Context, c config.Config, in hostd.Installation) ([]inventory.HostResource, error) {
	all, err := inventory.Take(ctx, inventory.Scope{Installation: in.ID, Data: c.DataDir, Run: c.RunDir, Subnet: in.Subnet,
		UIDBase: c.UIDBase, UIDs: addresses(in.Subnet)})
	if err != nil {
		return nil, fmt.Errorf("look at this host: %w", err)
	}
	own := all[:0]
	for _, t := range all {
		if t.Kind == "mount" && (t.ID == c.DataDir || t.ID == c.TemplatesDir || t.ID == c.RunDir || inWorkspaces(c, t.ID)) {
			continue
		}
		if place, below := strings.CutPrefix(t.ID[strings.Index(t.ID, "/")+1:], strings.TrimPrefix(c.DataDir, "/")+"/"); below {
			name, _, _ := strings.Cut(place, "/")
			if !slices.Contains(hostd.DataEntries(), name) {
				continue
			}
		}
		own = append(own, t)
	}
	return own, nil
}

// inWorkspaces says whether something is the folder of workspaces, or lies in it. Mounts there are the operator's.
func inWorkspaces(c config.Config, path string) bool {
	return strings.HasPrefix(path+"/", c.Workspaces()+"/")
}

// mountedInWorkspaces names a mount in the folder of workspaces: with one in it the folder is not removed.
func mountedInWorkspaces(ctx context.Context, c config.Config) (string, error) {
	all, err := inventory.Take(ctx, inventory.Scope{Data: c.DataDir})
	if err != nil {
		return "", fmt.Errorf("look at what is mounted: %w", err)
	}
	for _, t := range all {
		if t.Kind == "mount" && inWorkspaces(c, t.ID) {
			return t.ID, nil
		}
	}
	return "", nil
}

func addresses(subnet netip.Prefix) uint32 {
	if !subnet.IsValid() {
		return 0
	}
	return 1 << (32 - max(subnet.Bits(), 16))
}

// runDir removes the folder of sockets.
func (u *Uninstalled) runDir(ctx context.Context, o UninstallOptions) error {
	dir := o.Host.Config.RunDir
	if _, err := os.Lstat(filepath.Join(dir, "hostd.lock")); err != nil {
		return nil // there is none, or it is not clawjail's
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look at the folder of sockets: %w", err)
	}
	foreign := ""
	for _, e := range entries {
		switch {
		case !hostd.IsRunEntry(e.Name()):
			foreign = e.Name()
		case !o.DryRun:
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return errors.Join(u.folder(o, dir, foreign), ctx.Err())
}

// folder removes a folder of which only what is foreign is left: with that it stays.
func (u *Uninstalled) folder(o UninstallOptions, dir, foreign string) error {
	if foreign != "" {
		u.keep("folder", dir, "there is something in it that clawjail did not make, or that is another installation's: "+foreign)
		return nil
	}
	if !o.DryRun {
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	u.removed("folder", dir)
	return nil
}

// data removes what is on the disk, or says where it stays. A folder in which no installation was found is only removed when it
// is empty: its name in the configuration may be wrong, and others have a cache and a database, too.
func (u *Uninstalled) data(ctx context.Context, o UninstallOptions, found bool) error {
	c := o.Host.Config
	there, err := os.ReadDir(c.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look at the data: %w", err)
	}
	if !o.Data {
		const why = "give --data to remove it"
		if len(there) > 0 {
			u.keep("folder", c.DataDir, "keys, database, recordings and what agents have kept; "+why)
		}
		if o.ConfigPath != "" {
			u.keep("file", o.ConfigPath, "the configuration; "+why)
		}
		if c.ZFSDataset != "" {
			u.keep("dataset", c.ZFSDataset, "templates and what agents have kept; "+why)
		}
		return nil
	}
	if c.ZFSDataset != "" {
		u.keep("dataset", c.ZFSDataset, "you made it: zfs destroy -r "+c.ZFSDataset)
	}
	foreign := ""
	switch {
	case !found && len(there) > 0:
		u.keep("folder", c.DataDir, "there is no "+hostd.InstallationFile+" in it, so it may not be clawjail's: remove it yourself if it is")
		return u.configuration(o)
	case found:
		if err := u.templates(ctx, o); err != nil {
			return err
		}
		if foreign, err = u.entries(ctx, o, there); err != nil {
			return err
		}
	}
	if there != nil {
		if err := u.folder(o, c.DataDir, foreign); err != nil {
			return err
		}
	}
	return u.configuration(o)
}

// entries removes what clawjail has made in the data directory, the installation's own file last, and names something that it
// has not.
func (u *Uninstalled) entries(ctx context.Context, o UninstallOptions, there []os.DirEntry) (foreign string, err error) {
	c := o.Host.Config
	remove := func(path string) error {
		if _, err := os.Lstat(path); err != nil {
			return nil
		}
		if !o.DryRun {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
		u.removed("data", path)
		return nil
	}
	unprotect := func(dir string) error {
		if o.DryRun {
			return nil
		}
		return checkpoint.Unprotect(filepath.Join(dir, "audit", filepath.Base(hostd.CheckpointsPath(c))))
	}
	if err := unprotect(c.DataDir); err != nil {
		return "", err
	}
	for _, e := range there {
		if slices.Contains(hostd.DataEntries(), e.Name()) {
			continue
		}
		replaced := filepath.Join(c.DataDir, e.Name())
		if !hostd.IsReplaced(e.Name()) || !e.IsDir() {
			foreign = e.Name()
			continue
		}
		if err := errors.Join(unprotect(replaced), remove(replaced)); err != nil {
			return "", err
		}
	}
	mounted, err := mountedInWorkspaces(ctx, c)
	if err != nil {
		return "", err
	}
	for _, name := range hostd.DataEntries() {
		path := filepath.Join(c.DataDir, name)
		if mounted != "" && path == c.Workspaces() {
			u.keep("folder", path, "something is mounted at "+mounted)
			foreign = name
			continue
		}
		if err := remove(path); err != nil {
			return "", err
		}
	}
	return foreign, nil
}

// templates removes those that are in the data directory. Others may be other installations' too.
func (u *Uninstalled) templates(ctx context.Context, o UninstallOptions) error {
	c := o.Host.Config
	if c.TemplatesDir != filepath.Join(c.DataDir, "templates") {
		if _, err := os.Lstat(c.TemplatesDir); err == nil {
			u.keep("folder", c.TemplatesDir, "templates outside of data_dir may be other installations' too")
		}
		return nil
	}
	if _, err := os.Lstat(c.TemplatesDir); err != nil || o.DryRun || o.RemoveTemplates == nil {
		return nil
	}
	if err := o.RemoveTemplates(ctx); err != nil {
		return fmt.Errorf("remove the templates: %w", err)
	}
	return nil
}

// configuration removes the file, and the system's folder of configuration when nothing else is in it.
func (u *Uninstalled) configuration(o UninstallOptions) error {
	path := o.ConfigPath
	if path == "" {
		return nil
	}
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	if !o.DryRun {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	u.removed("configuration", path)
	dir := filepath.Dir(path)
	if dir != filepath.Dir(config.SystemFile) {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look at the folder of the configuration: %w", err)
	}
	foreign := ""
	for _, e := range entries {
		if e.Name() != filepath.Base(path) {
			foreign = e.Name()
		}
	}
	return u.folder(o, dir, foreign)
}

// account removes the user of the control plane, if clawjail made it and no process runs as it.
func (u *Uninstalled) account(ctx context.Context, o UninstallOptions) error {
	c := o.Host.Config
	made, err := madeAccount(c.User, hostd.ControlDir(c), c.DataDir)
	if err != nil || !made {
		return err
	}
	switch {
	case !o.Data:
		u.keep("user", c.User, "its files are kept")
		return nil
	case !o.DryRun:
		if err := removeAccount(ctx, c.User); err != nil {
			if p, ok := problem.As(err); ok && p.Code == problem.Conflict {
				u.keep("user", c.User, p.Message)
				return nil
			}
			return err
		}
	}
	u.removed("user", c.User)
	return nil
}
