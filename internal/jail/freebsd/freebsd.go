//go:build linux || freebsd

package freebsd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/zfs"
	"github.com/clawjail/clawjail/internal/problem"
)

// Options configure the driver. They come from the root-owned configuration.
type Options struct {
	Installation jail.Installation
	Pool         *jail.Pool
	// RunDir holds what does not outlive the host, DataDir what does: clones are mounted below it, and agents' states.
	RunDir, DataDir string
	// Templates is the folder of templates: <Templates>/<name>/rootfs, each a dataset. Default <DataDir>/templates.
	Templates string
	// Dataset is the one beneath which all others are, for example zroot/clawjail.
	Dataset string
	// DevfsRuleset is the number of the ruleset of packaging/freebsd/devfs.rules. Default 4711.
	DevfsRuleset int
	// WorkspaceRoots are the folders beneath which agents' jails may have folders of the host: absolute paths without links.
	WorkspaceRoots []string
	// AddedRoots are further WorkspaceRoots, of the tenant default, asked for each time. May be nil.
	AddedRoots func() ([]string, error)
	// Commands finds the commands of the host. The zero value is right on a real one.
	Commands hostcmd.Runner
	Log      *slog.Logger // default: discarded
}

// Ruleset is the number of our devfs ruleset.
const Ruleset = 4711

// Folders below RunDir and DataDir. The reaper removes only entries with a jail's name in them.
const (
	jailsFolder  = "jails"  // <name>/: jail.conf and what is staged for programs that join
	tokensFolder = "tokens" // <name>/: the token
	clonesFolder = "clones" // <name>: where clones are mounted
	statesFolder = "state"  // <key>: where the volumes of agents are mounted
	rootfsFolder = "rootfs" // of a template
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
	if o.Pool == nil {
		bad("", "the pool of addresses is missing")
	}
	if o.Templates == "" && o.DataDir != "" {
		o.Templates = filepath.Join(o.DataDir, "templates")
	}
	for what, dir := range map[string]string{"run_dir": o.RunDir, "data_dir": o.DataDir, "templates_dir": o.Templates} {
		// Beyond these nothing needs quoting in jail.conf, in the options of mount(8) and in its list.
		if !path.IsAbs(dir) || path.Clean(dir) != dir || strings.ContainsFunc(dir, unusual) {
			bad("give an absolute path of letters, digits and . _ - +", "%s is %q", what, dir)
		}
	}
	if o.Dataset == "" {
		bad("set zfs_dataset to POOL/NAME, for example zroot/clawjail", "jails on FreeBSD need a dataset")
	}
	o.DevfsRuleset = cmp.Or(o.DevfsRuleset, Ruleset)
	if o.DevfsRuleset < 0 || o.DevfsRuleset > 65535 {
		bad("use the number in /etc/devfs.rules", "the devfs ruleset is %d", o.DevfsRuleset)
	}
	for _, dir := range o.WorkspaceRoots {
		if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" {
			bad("give an absolute path without dot elements, and not /", "workspace_roots names %q", dir)
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return errors.Join(errs...)
}

func unusual(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/._-+", r)
}

// check refuses a name that is not one of this installation, before it becomes part of a path or a command.
func (o *Options) check(name jail.Name) error {
	_, err := jail.ParseName(string(name), o.Installation)
	return err
}

// description is what both halves of a jail's epair say of themselves.
func description(name jail.Name) string { return "clawjail " + string(name) }

// Means are what jails on FreeBSD are confined with beyond what all substrates have.
func Means() jail.Means { return jail.Means{} }

// Host is the driver's five parts on one host.
type Host struct {
	Storage  *Storage
	Network  *Network
	Firewall *Firewall
	Runtime  *Runtime
	Limiter  *Limiter
}

// Open makes the parts, and what all jails have in common: folders, datasets and the bridge. It refuses a host whose pf
// does not have our rules, or whose kernel counts no resources.
func Open(ctx context.Context, o Options) (_ *Host, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	h := &Host{}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	h.Limiter = newLimiter(o)
	if err := h.Limiter.ready(ctx); err != nil {
		return nil, err
	}
	if h.Storage, err = newStorage(ctx, o); err != nil {
		return nil, err
	}
	h.Network = newNetwork(o)
	if err := h.Network.ensureBridge(ctx); err != nil {
		return nil, fmt.Errorf("prepare the network: %w", err)
	}
	h.Firewall = newFirewall(o)
	if err := h.Firewall.Ensure(ctx); err != nil {
		return nil, err
	}
	if h.Runtime, err = newRuntime(ctx, o, h.Storage, h.Network, h.Limiter); err != nil {
		return nil, err
	}
	return h, nil
}

// Parts are those of a Lifecycle.
func (h *Host) Parts() jail.Parts {
	return jail.Parts{Storage: h.Storage, Network: h.Network, Firewall: h.Firewall, Runtime: h.Runtime, Limiter: h.Limiter, Means: Means()}
}

// Close ends the programs that joined jails, and closes the folders. Jails run on.
func (h *Host) Close() error {
	var errs []error
	if h.Runtime != nil {
		errs = append(errs, h.Runtime.Close())
	}
	if h.Storage != nil {
		errs = append(errs, h.Storage.Close())
	}
	return errors.Join(errs...)
}

// Uninstall removes what all jails of an installation share. It refuses while there are jails.
func Uninstall(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	all, err := (&jails{run: o.Commands}).list(ctx)
	if err != nil {
		return err
	}
	for _, j := range all {
		if jail.Name(j.name).Belongs(o.Installation) {
			return problem.New(problem.Conflict, "end them first: `clawjail reap` removes unused ones", "jail %s is there", j.name)
		}
	}
	data, err := zfs.New(o.Commands, o.Dataset)
	if err != nil {
		return err
	}
	clones, err := data.List(ctx, zfs.Jails)
	if err != nil {
		return err
	}
	if len(clones) > 0 {
		return problem.New(problem.Conflict, "end them first: `clawjail reap` removes unused ones", "there are %d clones", len(clones))
	}
	return newNetwork(o).removeBridge(ctx)
}

// gone reports whether an error says that a file or process is not there.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, os.ErrProcessDone)
}

// waitFor asks again with growing pauses until the answer is yes, or the time is up.
func waitFor(ctx context.Context, limit time.Duration, done func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return wake.Until(ctx, time.Millisecond, 50*time.Millisecond, done)
}
