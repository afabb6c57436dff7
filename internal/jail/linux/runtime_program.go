//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/clawjail/clawjail/internal/jail"
)

// program is an OCI runtime on this host.
type program struct {
	path string
	kind string // crun, runc or runsc: how it is spoken to
	// joins is set when the runtime is itself started in the jail's control group, which its children inherit, and
	// is told to leave control groups alone. Moving a running process into a group makes the kernel wait for all
	// processors, several milliseconds for each hierarchy; and nothing that a killed runtime leaves is outside.
	joins bool
	// ownDelete is set when a dead jail's state is more than a folder: runsc keeps processes of its own.
	ownDelete bool
}

// newProgram tells the kind of a runtime by its file's name; what is not known is spoken to like runc, whose options
// others have taken over.
func newProgram(path string) *program {
	p := &program{path: path, kind: RuntimeRunc}
	for _, kind := range []string{RuntimeCrun, RuntimeRunsc} {
		if strings.HasPrefix(filepath.Base(path), kind) {
			p.kind = kind
		}
	}
	p.joins = p.kind == RuntimeCrun // the others have no such option
	p.ownDelete = p.kind == RuntimeRunsc
	return p
}

func (p *program) options(state, bundle string) []string {
	log := filepath.Join(bundle, bundleLog)
	if p.kind == RuntimeCrun {
		return []string{"--root", state, "--log", "file:" + log, "--cgroup-manager", "disabled"}
	}
	return []string{"--root", state, "--log", log, "--log-format", "json"}
}

func (p *program) start(state, bundle, name string) []string {
	return append(p.options(state, bundle), "run", "--detach", "--bundle", bundle,
		"--pid-file", filepath.Join(bundle, bundlePID), name)
}

// exec lets a program join a jail, in a group inside the jail's. Of version 1 only the controller that counts tasks has one.
func (p *program) exec(state, bundle, name, group string, version int) []string {
	args := append(p.options(state, bundle), "exec", "--detach", "--process", filepath.Join(bundle, execProcess),
		"--pid-file", filepath.Join(bundle, bundlePID))
	if !p.joins {
		if version == 1 {
			group = "pids:" + group
		}
		args = append(args, "--cgroup", group)
	}
	return append(args, name)
}

func (p *program) delete(state, bundle, name string) []string {
	return append(p.options(state, bundle), "delete", "--force", name)
}

// Ready finds the runtime and tries it, unless that has been done. It returns its path.
func (r *Runtime) Ready(ctx context.Context) (string, error) {
	p, err := r.program(ctx)
	if err != nil {
		return "", err
	}
	return p.path, nil
}

// program returns the runtime that was configured, or the first of crun and runc that a container runs with. A
// runtime that is there and does not work is told in the log, and in the error when it is the last one.
func (r *Runtime) program(ctx context.Context) (*program, error) {
	r.choosing.Lock()
	defer r.choosing.Unlock()
	if r.chosen != nil {
		if _, err := os.Stat(r.chosen.path); err == nil {
			return r.chosen, nil
		}
		r.chosen = nil // uninstalled meanwhile; there may be another
	}
	candidates := []string{r.o.Runtime}
	if r.o.Runtime == RuntimeAuto {
		candidates = []string{RuntimeCrun, RuntimeRunc}
	}
	var errs []error
	for _, c := range candidates {
		file, err := findProgram(c)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p := newProgram(file)
		if err := r.try(ctx, p); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			r.o.Log.Warn("this OCI runtime does not work here", "runtime", file, "error", err)
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
			continue
		}
		r.o.Log.Info("OCI runtime", "runtime", file)
		r.chosen = p
		return p, nil
	}
	return nil, missing(errors.Join(errs...), "no OCI runtime works on this host")
}

// findProgram looks where administrators' programs are, which need not be in a service's PATH. The PATH itself is
// not asked: it is the caller's.
func findProgram(name string) (string, error) {
	if path.IsAbs(name) {
		return exec.LookPath(name)
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

// probeStatus is what the program of a trial ends with: it shows that it ran, and not just the runtime.
const probeStatus = 7

// trial is the name of a trial container. It is no name of a jail.
const trial = "probe"

// endTrial ends a trial container and removes its folder, group and state. That there is none is fine.
func (r *Runtime) endTrial(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	return errors.Join(r.kill(ctx, trial, jail.Process{}), r.limits.remove(ctx, trial), r.state.RemoveAll(trial), r.run.RemoveAll(trial))
}

// try runs a container that is confined like a jail and ends at once. Its files are removed again; those of one whose
// process was killed are removed by the next process at its start.
func (r *Runtime) try(ctx context.Context, p *program) (err error) {
	const name = trial
	if err := r.endTrial(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.endTrial(ctx)) }()
	dir, err := r.run.Ensure(name, 0o700, -1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	root, err := dir.Ensure(rootMount, 0o755, -1)
	if err != nil {
		return err
	}
	if err := errors.Join(root.Close(), dir.Make(bundleStage, 0o700, -1), dir.Create(bundleHosts, nil, 0o444, -1)); err != nil {
		return err
	}
	lim := jail.Limits{Memory: 64 << 20, MilliCPU: 1000, Tasks: 16, Disk: jail.MinDisk, SharedMemory: jail.MinDisk, Files: 64}
	place := jail.Placement{Name: name, Root: filepath.Join(dir.Path(), rootMount),
		Profile: jail.ProfileFor(jail.Spec{Kind: jail.KindBrowser, Limits: lim}, jail.Lease{UID: 65534}).With(r.Means())}
	spec, err := r.spec(place, dir.Path(), nil)
	if err != nil {
		return err
	}
	spec.Process.Args = []string{"/bin/sh", "-c", fmt.Sprintf("exit %d", probeStatus)}
	for _, d := range []string{"/usr", "/bin", "/lib", "/lib64", "/nix"} {
		if _, err := os.Stat(d); err == nil {
			spec.Mounts = append(spec.Mounts, specs.Mount{Destination: d, Type: "bind", Source: d, Options: []string{"rbind", "ro", "nosuid", "nodev"}})
		}
	}
	if err := writeSpec(dir, spec); err != nil {
		return err
	}
	if err := r.limits.apply(name, "", lim); err != nil {
		return err
	}
	args := append(p.options(r.state.Path(), dir.Path()), "run", "--bundle", dir.Path(), name)
	err = r.execute(ctx, p, name, args, [3]*os.File{}, dir, "")
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == probeStatus:
		return nil
	case err == nil:
		return fmt.Errorf("a trial container ended with status 0 instead of %d", probeStatus)
	default:
		return fmt.Errorf("run a trial container: %w", err)
	}
}
