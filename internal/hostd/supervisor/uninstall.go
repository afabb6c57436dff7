package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
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
	Installation jail.Installation `json:"installation,omitempty"`
	DryRun       bool              `json:"dry_run"`
	Removed      []inventory.Thing `json:"removed"`
	Kept         []Kept            `json:"kept"`
}

// Kept is one thing that stays.
type Kept struct {
	inventory.Thing
	Why string `json:"why"`
}

func (u *Uninstalled) removed(kind, id string) {
	u.Removed = append(u.Removed, inventory.Thing{Kind: kind, ID: id})
}

func (u *Uninstalled) keep(kind, id, why string) {
	u.Kept = append(u.Kept, Kept{inventory.Thing{Kind: kind, ID: id}, why})
}

// Uninstall takes an installation off this host and says what it did. Only what carries the installation's id, or has a name in
// its own folders that clawjail gives, is touched. It refuses while a half of clawjail runs, and compares the host with the list
// of package inventory before and after: what is left of that is an error. It may be called again.
func Uninstall(ctx context.Context, o UninstallOptions) (Uninstalled, error) {
	c := o.Host.Config
	out := Uninstalled{DryRun: o.DryRun, Removed: []inventory.Thing{}, Kept: []Kept{}}
	in, found, err := hostd.FindInstallation(c)
	if err != nil {
		return out, err
	}
	out.Installation = in.ID
	var before []inventory.Thing
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
		return nil
	}
	how := hostd.WithdrawOptions{Volumes: o.Data, DryRun: o.DryRun, Then: then}
	if err := hostd.Withdraw(ctx, o.Host, how); err != nil {
		return out, err
	}
	out.Removed = append(out.Removed, before...)
	return out, errors.Join(out.runDir(ctx, o), out.data(ctx, o), out.account(ctx, o))
}

// onHost lists what of an installation is on the host. An installation whose data is in a folder below this one's is another.
func onHost(ctx context.Context, c config.Config, in hostd.Installation) ([]inventory.Thing, error) {
	all, err := inventory.Take(ctx, inventory.Scope{Installation: in.ID, Data: c.DataDir, Run: c.RunDir, Subnet: in.Subnet,
		UIDBase: c.UIDBase, UIDs: addresses(in.Subnet)})
	if err != nil {
		return nil, fmt.Errorf("look at this host: %w", err)
	}
	own := all[:0]
	for _, t := range all {
		if place, below := strings.CutPrefix(t.ID[strings.Index(t.ID, "/")+1:], strings.TrimPrefix(c.DataDir, "/")+"/"); below {
			name, _, _ := strings.Cut(place, "/")
			if !isEntry(name) {
				continue
			}
		}
		own = append(own, t)
	}
	return own, nil
}

func addresses(subnet netip.Prefix) uint32 {
	if !subnet.IsValid() {
		return 0
	}
	return 1 << (32 - max(subnet.Bits(), 16))
}

func isEntry(name string) bool {
	for _, e := range hostd.DataEntries() {
		if e == name {
			return true
		}
	}
	return false
}

// runDir removes the folder of sockets.
func (u *Uninstalled) runDir(ctx context.Context, o UninstallOptions) error {
	dir := o.Host.Config.RunDir
	if _, err := os.Lstat(filepath.Join(dir, "hostd.lock")); err != nil {
		return nil // there is none, or it is not clawjail's
	}
	if !o.DryRun {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	u.removed("folder", dir)
	return ctx.Err()
}

// data removes what is on the disk, or says where it stays.
func (u *Uninstalled) data(ctx context.Context, o UninstallOptions) error {
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
	if err := u.templates(ctx, o); err != nil {
		return err
	}
	if !o.DryRun {
		if err := checkpoint.Unprotect(hostd.CheckpointsPath(c)); err != nil {
			return err
		}
	}
	for _, name := range hostd.DataEntries() {
		path := filepath.Join(c.DataDir, name)
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if !o.DryRun {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
		u.removed("data", path)
	}
	return errors.Join(u.emptied(o, c.DataDir, there), u.configuration(o))
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

// emptied removes the data directory when nothing of anybody else's is in it.
func (u *Uninstalled) emptied(o UninstallOptions, dir string, there []os.DirEntry) error {
	if there == nil {
		return nil
	}
	for _, e := range there {
		if !isEntry(e.Name()) {
			u.keep("folder", dir, "there is something in it that clawjail did not make, or that is another installation's: "+e.Name())
			return nil
		}
	}
	if !o.DryRun {
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	u.removed("folder", dir)
	return nil
}

// configuration removes the file, and the system's folder of configuration when the file is in that.
func (u *Uninstalled) configuration(o UninstallOptions) error {
	path := o.ConfigPath
	if path == "" {
		return nil
	}
	if filepath.Dir(path) == filepath.Dir(config.SystemFile) {
		path = filepath.Dir(path)
	}
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	if !o.DryRun {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	u.removed("configuration", path)
	return nil
}

// account removes the user of the control plane, if clawjail made it and nobody else runs as it.
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
