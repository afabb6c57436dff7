//go:build linux

package docker

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"slices"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
)

// Labels of everything that the driver makes in the engine.
const (
	labelInstallation = "clawjail.installation"
	labelTenant       = "clawjail.tenant"
	labelAgent        = "clawjail.agent"
	labelJail         = "clawjail.jail"
	labelRole         = "clawjail.role"  // of what is no jail
	labelRelay        = "clawjail.relay" // what a relay was made from
	// labelCompose is on the containers of docker-compose, beside labelTenant and labelAgent; it is 1.
	labelCompose = "clawjail.compose"
	roleRelay    = "relay"
	roleOutside  = "outside"
)

// engineError gives an error of the engine's the code that a user can act on.
func (d *Driver) engineError(err error) error {
	var op *net.OpError
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case away(err), errors.As(err, &op):
		return problem.Wrap(err, problem.RuntimeMissing, "start it, for example with `systemctl start docker`, or correct `docker.socket`",
			"the Docker engine at %s does not answer", d.o.Socket)
	case errors.Is(err, syscall.ENOSPC):
		return problem.Wrap(err, problem.DiskFull, "make room", "the engine has no room")
	}
	return err
}

// away says whether the engine could not be asked at all.
func away(err error) bool {
	return client.IsErrConnectionFailed(err) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, fs.ErrNotExist) && !cerrdefs.IsNotFound(err) || errors.Is(err, syscall.EPIPE)
}

// image says what a jail of an image runs and which variables the image has, and fails when it is not there or cannot be a jail.
func (d *Driver) image(ctx context.Context, spec jail.Spec) (argv, env []string, err error) {
	got, err := d.engine.ImageInspect(ctx, spec.Image)
	if cerrdefs.IsNotFound(err) {
		return nil, nil, problem.New(problem.TemplateMissing, "get it with `docker pull "+spec.Image+"`, or make it with `clawjail template image`",
			"the engine has no image %s", spec.Image)
	}
	if err != nil {
		return nil, nil, d.engineError(err)
	}
	if got.Os != "linux" {
		return nil, nil, problem.New(problem.BadTemplate, "use an image for Linux", "the image %s is for %s", spec.Image, got.Os)
	}
	argv = spec.Program.Argv
	if len(argv) == 0 && got.Config != nil {
		argv = slices.Concat(got.Config.Entrypoint, got.Config.Cmd)
	}
	if len(argv) == 0 {
		return nil, nil, problem.New(problem.BadTemplate, "name a command", "the image %s names no program, and neither does the agent", spec.Image)
	}
	if got.Config == nil {
		return argv, nil, nil
	}
	declared := ProfileFor(spec, jail.Lease{})
	for volume := range got.Config.Volumes {
		if !slices.ContainsFunc(declared.Binds, func(b jail.Bind) bool { return b.Path == volume }) &&
			!slices.ContainsFunc(declared.Tmpfs, func(t jail.Tmpfs) bool { return t.Path == volume }) {
			return nil, nil, problem.New(problem.BadTemplate, "build it without VOLUME; an agent writes to /state, /workspace and /tmp",
				"the image %s declares a volume at %q, which would have no size limit", spec.Image, volume)
		}
	}
	return argv, got.Config.Env, nil
}

// Check implements jail.Maker.
func (d *Driver) Check(ctx context.Context, spec jail.Spec) error {
	roots, err := spec.Roots(d.o.WorkspaceRoots, d.o.AddedRoots)
	errs := []error{d.accept(spec), err}
	for _, m := range spec.Mounts {
		errs = append(errs, linux.CheckMount(roots, spec.Tenant(), m))
	}
	if errs[0] == nil {
		_, _, err := d.image(ctx, spec)
		errs = append(errs, err)
		if spec.Agent != nil && spec.Agent.State > 0 {
			_, _, err := d.volume(ctx, *spec.Agent)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// accept says whether the driver can make such a jail.
func (d *Driver) accept(spec jail.Spec) error {
	errs := []error{spec.Validate()}
	refuse := func(hint, format string, a ...any) {
		errs = append(errs, problem.New(problem.BadRequest, hint, format, a...))
	}
	if spec.Image == "" {
		refuse("name an image", "this driver makes containers")
	}
	if spec.Kind != jail.KindAgent {
		refuse("", "a container is of the kind %s", jail.KindAgent)
	}
	if spec.Program.Wire != jail.WireStdio {
		refuse("", "a container's wire is %s", jail.WireStdio)
	}
	if len(spec.HomeFiles) > 0 {
		refuse("put them into the image", "no files are staged into containers")
	}
	if spec.Lifetime == jail.LifetimeKeep && d.o.Output == nil {
		refuse("", "no containers are kept here")
	}
	return errors.Join(errs...)
}
