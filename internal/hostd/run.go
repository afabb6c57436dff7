package hostd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// Substrate is what an operating system contributes to a host daemon.
type Substrate struct {
	// FreeSubnet finds a network for the jails of an installation that nothing else on the host uses. It is
	// asked once per installation, and again when something else uses its network by now.
	FreeSubnet func(ctx context.Context, id jail.Installation) (netip.Prefix, error)
	// CheckSubnet is an error of the code bad_config when something else on the host uses a network. May be nil: no network is checked then.
	CheckSubnet func(ctx context.Context, id jail.Installation, subnet netip.Prefix) error
	// Assemble makes the five parts.
	Assemble func(ctx context.Context, o AssembleOptions) (Parts, error)
	// Containers makes the driver of containers. May be nil: there are none on this operating system.
	Containers func(c config.Config, id jail.Installation, o ContainerOptions) (Containers, error)
	// Uninstall removes what all jails share, when there are none. May be nil.
	Uninstall func(ctx context.Context, c config.Config, id jail.Installation, pool *jail.Pool) error
}

// AssembleOptions are what a driver is made from.
type AssembleOptions struct {
	Config       config.Config
	Installation jail.Installation
	Pool         *jail.Pool
	// Ending says that jails are only ended: something else may use the network of the pool.
	Ending bool
	Log    *slog.Logger
}

// RunOptions are what Run needs.
type RunOptions struct {
	Config config.Config
	// Substrate is ThisHost, except in tests.
	Substrate Substrate
	// Templates lists the templates that there are.
	Templates func(ctx context.Context) ([]Template, error)
	// VerifyTemplate looks quickly whether a template is as it was built. May be nil: templates are not watched.
	VerifyTemplate func(ctx context.Context, name string) error
	// EndJails is that of Options. With it, what jails share is taken away at the end as well.
	EndJails bool
	Version  string
	Log      *slog.Logger
	Now      func() time.Time
	Barrier  func(jail.Step)
	Notify   func(state string) error

	ending bool // jails are only ended
}

// Run is a whole host daemon: it makes the folders of the installation, takes its locks, assembles the driver and
// serves until the context ends. It needs root, and the user of the control plane to exist.
func Run(ctx context.Context, o RunOptions) (err error) {
	if os.Geteuid() != 0 {
		return problem.New(problem.NoRoot, "start it with sudo", "the host daemon must run as root: it makes jails")
	}
	if o.Barrier == nil {
		o.Barrier = barrier(o.Config.RunDir)
	}
	control, err := lookupAccount(o.Config.User)
	if err != nil {
		return err
	}
	if err := makeFolders(o.Config, control); err != nil {
		return err
	}
	trusted := []string{o.Config.DataDir, o.Config.RunDir, o.Config.TemplatesDir}
	if slices.Contains(o.Config.Agents.WorkspaceRoots, o.Config.Workspaces()) {
		trusted = append(trusted, o.Config.Workspaces())
	}
	for _, dir := range trusted {
		if err := config.CheckOwnership(dir); err != nil {
			return err
		}
	}
	return o.withParts(ctx, func(in Installation, pool *jail.Pool, parts Parts, journal jail.Journal) (err error) {
		// Every session has a Wait, and the warm pool's browsers have one too.
		sessions := o.Config.Sessions.Max + o.Config.WarmPool.Size
		dog := &watchdog{list: o.Templates, verify: o.VerifyTemplate, log: o.Log, bad: map[string]error{}}
		memory, err := quota.DeclaredMemory(o.Config.Quotas)
		if err != nil {
			return err
		}
		options := Options{
			Socket: SocketPath(o.Config), Group: control.gid, ControlUID: uint32(control.uid),
			Installation: in.ID, Pool: pool, Parts: parts, Journal: journal, Checkpoints: CheckpointsPath(o.Config),
			HasTemplate: func(ctx context.Context, name string) error {
				if o.Config.Kubernetes.On() {
					return nil // the driver knows the images
				}
				return errors.Join(hasTemplate(o.Config.TemplatesDir, name), dog.check(ctx, name))
			},
			Templates: dog.templates,
			Version:   o.Version, Log: o.Log, Now: o.Now, Barrier: o.Barrier, Notify: o.Notify,
			Keep: KeepOptions{Agents: AgentsDir(o.Config), Logs: LogsDir(o.Config), Consoles: consolesDir(o.Config),
				LogBytes: int64(o.Config.Agents.Log), MaxAgents: AgentJails},
			// Beside the sessions there are agents, the programs that are run for them, the MCP servers, and connections that
			// read what they print.
			MaxJails:       2*sessions + AgentJails + otherJails,
			MaxConnections: 3*sessions + 2*(AgentJails+otherJails),
			EndJails:       o.EndJails,
			Quotas:         o.Config.Quotas,
			Memory:         memory,
			Workspaces:     WorkspaceOptions{Roots: o.Config.Agents.WorkspaceRoots, Disk: o.Config.DataDir, Unlinked: parts.Unlinked},
		}
		if o.Substrate.Containers != nil && !o.Config.Kubernetes.On() { // there all jails are pods
			records, err := OpenJournal(containerJournalPath(o.Config), in.ID, o.Log)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, records.Close()) }()
			options.ContainerJournal = records
			options.Containers = func(co ContainerOptions) (Containers, error) {
				co.UID, co.GID = control.uid, control.gid
				return o.Substrate.Containers(o.Config, in.ID, co)
			}
		}
		serve := func() error { return Serve(ctx, options) }
		if o.VerifyTemplate != nil {
			serve = func() error { return dog.watching(ctx, func() error { return Serve(ctx, options) }) }
		}
		served := serve()
		if served != nil || !o.EndJails || o.Substrate.Uninstall == nil {
			return served
		}
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
		defer cancel()
		return o.Substrate.Uninstall(end, o.Config, in.ID, pool)
	})
}

// AgentJails is how many jails of agents there may be, and otherJails how many of programs and of tool servers, which the control
// plane bounds. No kind takes the places of another.
const (
	AgentJails = 512
	otherJails = 256 + 64
)

// account is a user of the system.
type account struct{ uid, gid int }

func lookupAccount(name string) (account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, problem.Wrap(err, problem.BadConfig, "`sudo clawjail up` makes it; by hand: useradd --system --user-group --shell /usr/sbin/nologin "+name,
			"the user %s of the control plane does not exist", name)
	}
	a := account{}
	var errs [2]error
	a.uid, errs[0] = strconv.Atoi(u.Uid)
	a.gid, errs[1] = strconv.Atoi(u.Gid)
	if err := errors.Join(errs[:]...); err != nil {
		return account{}, fmt.Errorf("look up user %s: %w", name, err)
	}
	if a.uid == 0 {
		return account{}, problem.New(problem.BadConfig, "name an unprivileged user", "the user %s of the control plane is root", name)
	}
	return a, nil
}

// hasTemplate looks for the description of a template, which is there when the whole template is.
func hasTemplate(dir, name string) error {
	if err := jail.ValidTemplateName(name); err != nil {
		return err
	}
	info, err := os.Lstat(filepath.Join(dir, name, "template.json"))
	if errors.Is(err, os.ErrNotExist) {
		return problem.New(problem.TemplateMissing, "build it: sudo clawjail template build "+name, "there is no template %s", name)
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("its description is not a file")
	}
	if err != nil {
		return fmt.Errorf("look for template %s: %w", name, err)
	}
	return nil
}
