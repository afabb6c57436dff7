package hostd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd/stdio"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/swap"
)

// FindInstallation reads the installation of a data directory, and makes none: found is false where there never was one.
func FindInstallation(c config.Config) (in Installation, found bool, err error) {
	root, err := os.OpenRoot(c.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return in, false, nil
	}
	if err != nil {
		return in, false, fmt.Errorf("open the data directory: %w", err)
	}
	defer root.Close() // only read from
	in, err = readInstallation(root)
	if errors.Is(err, fs.ErrNotExist) {
		return in, false, nil
	}
	return in, err == nil, err
}

// DataEntries are the names of all that clawjail makes in the data directory. An entry of another name is somebody else's,
// perhaps a whole installation. The installation's own file is the last: while it is there, a removal can be gone on with.
func DataEntries() []string {
	return []string{BackupDir, swap.Stage, RestoredConfig, "agents", "audit", "cache", "clones", "container-journal", "containers", "control",
		"database", "journal", "logs", podsKeyName, "state", "templates", "workspaces",
		workspaceRootsName, workspaceRootsName + ".new", workspaceRootsLock, InstallationFile}
}

const (
	// BackupDir is where the copies are made that go into a backup. Only root can enter it.
	BackupDir = ".clawjail-backup"
	// RestoredConfig is where the configuration of a backup is put. It replaces none: it may name other folders than those
	// that are restored into.
	RestoredConfig = "clawjail.restored.yml"
)

// ReplacedDir names the folder of what a restore replaces at a time: a name that the data directory does not have yet.
func ReplacedDir(dir string, now time.Time) string {
	name := "replaced-" + now.UTC().Format("20060102T150405Z")
	for n := 2; ; n++ {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			return name
		}
		name = fmt.Sprintf("replaced-%s-%d", now.UTC().Format("20060102T150405Z"), n)
	}
}

// IsReplaced says whether an entry of the data directory is a folder of what a restore has replaced.
func IsReplaced(name string) bool { return replacedName.MatchString(name) }

// IsRunEntry says whether an entry of the run directory is one that clawjail makes.
func IsRunEntry(name string) bool {
	return slices.Contains([]string{"hostd.sock", "hostd.lock", "console", "containers", "relay", "netns", "jails", "bundles", "runtime", "tokens"}, name) ||
		strings.HasPrefix(name, "doctor-") || strings.HasPrefix(name, tempPrefix)
}

var replacedName = regexp.MustCompile(`^replaced-[0-9]{8}T[0-9]{6}Z(-[0-9]+)?$`)

// WithdrawOptions say what Withdraw does.
type WithdrawOptions struct {
	// Volumes removes what containers have kept at the engine as well.
	Volumes bool
	// DryRun only looks whether neither half runs.
	DryRun bool
	// Then is called when nothing of the installation is on the host any more, while it cannot be started. May be nil.
	Then func(ctx context.Context, in Installation) error
}

// Withdraw takes an installation off the host: it ends every jail and every container, kept ones too, and removes what they
// share. The data on the disk stays, so that a host daemon that is started again makes the agents' jails anew. It refuses while a
// half of clawjail runs, needs none, and may be called again: what cannot be removed keeps nothing else, and is an error.
func Withdraw(ctx context.Context, o RunOptions, how WithdrawOptions) (err error) {
	if os.Geteuid() != 0 {
		return problem.New(problem.NoRoot, "run it with sudo", "taking clawjail off the host needs root")
	}
	_, found, err := FindInstallation(o.Config)
	if err != nil || !found {
		return err
	}
	if err := controlRests(o.Config); err != nil {
		return err
	}
	if how.DryRun {
		return hostRests(o.Config)
	}
	self := os.Geteuid()
	for _, f := range []folder{
		{path: o.Config.RunDir, mode: 0o750, uid: self, gid: -1}, {path: consolesDir(o.Config), mode: 0o700, uid: self, gid: -1},
		{path: LogsDir(o.Config), mode: 0o700, uid: self, gid: -1}, {path: journalPath(o.Config), mode: 0o700, uid: self, gid: -1},
		{path: containerJournalPath(o.Config), mode: 0o700, uid: self, gid: -1},
	} { // those that a reboot has taken, or an earlier call
		if err := f.make(); err != nil {
			return err
		}
	}

	return o.toEnd().withParts(ctx, func(in Installation, pool *jail.Pool, parts Parts, journal jail.Journal) error {
		if err := o.withdrawJails(ctx, in, pool, parts, journal, how); err != nil {
			return err
		}
		if how.Then == nil {
			return nil
		}
		return how.Then(ctx, in)
	})
}

// withdrawEngine removes what an engine has of an installation. One that does not answer is no error when none of its containers
// can be left.
func (o RunOptions) withdrawEngine(ctx context.Context, containers Containers, how WithdrawOptions, left bool) error {
	remove := containers.RemoveNetwork
	if how.Volumes {
		remove = containers.Uninstall
	}
	err := remove(ctx)
	if problem.CodeOf(err) == problem.RuntimeMissing && !left {
		o.Log.Warn("the engine of containers does not answer: if it has a network or volumes of this installation, they stay", "error", err)
		return nil
	}
	return err
}

func (o RunOptions) withdrawJails(ctx context.Context, in Installation, pool *jail.Pool, parts Parts, journal jail.Journal, how WithdrawOptions) (err error) {
	open := true
	end := func() error {
		if !open {
			return nil
		}
		open = false
		return parts.Close(context.WithoutCancel(ctx))
	}
	defer func() { err = errors.Join(err, end()) }()
	consoles, err := stdio.New(stdio.Options{Installation: in.ID, Dir: consolesDir(o.Config), Logs: LogsDir(o.Config),
		Keep: int64(o.Config.Agents.Log), Log: o.Log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, consoles.Close()) }()
	life, err := parts.open(ctx, jail.Options{Installation: in.ID, Pool: pool, Journal: journal, Log: o.Log,
		Now: o.Now, Console: consoles})
	if err != nil {
		return err
	}
	defer life.Close()
	m := makers{life: life, template: func(context.Context, string) error { return nil }, images: parts.Jails != nil}
	containers, err := o.withdrawnContainers(in)
	if err != nil {
		return err
	}
	if containers != nil {
		m.containers = containers
		defer func() { err = errors.Join(err, containers.Close(context.WithoutCancel(ctx))) }()
	}
	// Each goes on when the one before it could not: an engine that is dead keeps nothing else on the host.
	errs := []error{endJails(ctx, m, o.Log)}
	_, err = life.Reap(ctx, jail.ReapOptions{})
	errs = append(errs, err)
	left, unlisted := m.list(ctx)
	errs = append(errs, unlisted)
	if containers != nil {
		errs = append(errs, o.withdrawEngine(ctx, containers, how, slices.ContainsFunc(left, func(s jail.Status) bool { return s.Name.InContainer() })))
	}
	errs = append(errs, end())
	if len(left) > 0 || unlisted != nil {
		// The confinement of those that live stays with them.
		errs = append(errs, fmt.Errorf("%d jails could not be ended, so what confines them stays", len(left)))
	} else if o.Substrate.Uninstall != nil {
		errs = append(errs, o.Substrate.Uninstall(ctx, o.Config, in.ID, pool))
	}
	return errors.Join(errs...)
}

// withdrawnContainers is the driver of containers; nil where there is no engine and the journal has no container.
func (o RunOptions) withdrawnContainers(in Installation) (_ Containers, err error) {
	if o.Substrate.Containers == nil || o.Config.Kubernetes.On() {
		return nil, nil
	}
	noted, err := filepath.Glob(filepath.Join(containerJournalPath(o.Config), "*.json"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(o.Config.Docker.Socket); err != nil && len(noted) == 0 {
		return nil, nil
	}
	records, err := OpenJournal(containerJournalPath(o.Config), in.ID, o.Log)
	if err != nil {
		return nil, err
	}
	co := ContainerOptions{Journal: records, Log: o.Log, Now: o.Now, Barrier: func(jail.Step) {},
		Output: func(jail.Agent, jail.Stream) (LogWriter, error) {
			return nil, errors.New("the installation is being removed")
		}}
	if control, err := lookupAccount(o.Config.User); err == nil {
		co.UID, co.GID = control.uid, control.gid
	}
	made, err := o.Substrate.Containers(o.Config, in.ID, co)
	if err != nil {
		return nil, errors.Join(err, records.Close())
	}
	return journalled{made, records}, nil
}

// journalled closes the journal of a driver with it.
type journalled struct {
	Containers
	records *FileJournal
}

func (j journalled) Close(ctx context.Context) error {
	return errors.Join(j.Containers.Close(ctx), j.records.Close())
}

// controlRests refuses while a control plane of the installation runs: it has the lock of its spill file for as long.
func controlRests(c config.Config) error {
	return rests(filepath.Join(ControlDir(c), "audit.spill"), "the control plane")
}

// hostRests refuses while a host daemon of the installation runs.
func hostRests(c config.Config) error { return rests(lockPath(c), "the host daemon") }

func rests(path, who string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look whether %s runs: %w", who, err)
	}
	defer f.Close() // gives the lock back as well
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return problem.New(problem.Conflict, "stop it first: systemctl stop clawjail-hostd clawjail, or end `clawjail up` with Ctrl-C",
			"%s of this installation runs", who)
	}
	return err
}
