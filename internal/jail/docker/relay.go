//go:build linux

package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	apinetwork "github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
)

// Relay has the gateway reached through a container that is on the agents' network and on another, which leads to the
// control plane. See package relay.
type Relay struct {
	// KeyFile is the file of the relay's key. It is read without following links, and the container gets a copy.
	KeyFile string
	// UID and GID are what the relay runs as.
	UID, GID int
	// Binary is the program, linked statically, that is run as `relay`.
	Binary string
	// Listen is where the control plane waits. When this host does not have that address, the outside network gets it.
	Listen netip.Addr
	// To is how the relay reaches that, HOST:PORT.
	To string
}

// RelayKeySize is how many bytes the key of a relay has.
const RelayKeySize = 32

const (
	relayName    = "hermit_shell"
	outsideName  = "sand_out"
	relayImage   = "clawjail/gateway"
	relayFolder  = "relay"
	relayKeyName = "relay.key"
	// relayKeyPath is where the program looks for its key.
	relayKeyPath = "/run/clawjail/" + relayKeyName
	engineHost   = "host.docker.internal"

	// The relay copies bytes, of a bounded number of connections. How many files it may open is the engine's own setting.
	relayMemory = 64 << 20
	relayTasks  = 64
)

func (r *Relay) validate(bad *problem.ValidationError) {
	for name, path := range map[string]string{"key": r.KeyFile, "binary": r.Binary} {
		if !filepath.IsAbs(path) {
			bad.Add("relay."+name, "%q is not an absolute path", path)
		}
	}
	if r.UID <= 0 || r.GID <= 0 {
		bad.Add("relay.user", "%d:%d is root, or nobody", r.UID, r.GID)
	}
	if !r.Listen.IsValid() {
		bad.Add("gateway.relay", "is missing")
	}
	if _, _, err := net.SplitHostPort(r.To); err != nil {
		bad.Add("gateway.relay_to", "%q is not a host and a port", r.To)
	}
}

// gatewayAddr is where containers of a network find the gateway.
func (d *Driver) gatewayAddr(pool *jail.Pool) netip.Addr {
	if d.o.Relay != nil {
		return pool.TemplateAddr() // leases begin far above, and no template is started in a container
	}
	return pool.Gateway()
}

// keepRelay makes sure that the relay runs on a network, as it is configured. It is called with the token of preparing.
func (d *Driver) keepRelay(ctx context.Context, n network) error {
	if d.o.Relay == nil || d.relayRuns() {
		return nil
	}
	if err := d.makeRelay(ctx, n); err != nil {
		return fmt.Errorf("run the gateway's relay: %w", d.engineError(err))
	}
	return nil
}

// relayRuns says whether the relay that was made or found last is there, without asking the engine.
func (d *Driver) relayRuns() bool {
	d.mu.Lock()
	proc := d.relay
	d.mu.Unlock()
	if proc.PID == 0 {
		return false
	}
	now, err := linux.FindProcess(proc.PID)
	return err == nil && now == proc
}

// guardRelay brings the relay back when it is gone.
func (d *Driver) guardRelay(ctx context.Context) error {
	if d.o.Relay == nil || d.relayRuns() {
		return nil
	}
	// Somebody may be making it, or removing the network.
	done, err := d.turn(ctx)
	if err != nil {
		return err
	}
	defer done()
	d.mu.Lock()
	n := d.network
	d.mu.Unlock()
	if n.id == "" || d.relayRuns() {
		return nil
	}
	d.o.Log.Warn("the gateway's relay does not run, and is started again")
	return d.keepRelay(ctx, n)
}

func (d *Driver) makeRelay(ctx context.Context, n network) error {
	key, err := readRelayKey(d.o.Relay.KeyFile)
	if err != nil {
		return err
	}
	defer clear(key)
	image, err := d.relayImage(ctx)
	if err != nil {
		return err
	}
	d.mu.Lock()
	listen := netip.AddrPortFrom(d.gatewayAddr(d.pool), d.o.Port)
	d.mu.Unlock()
	outside, err := d.outside(ctx)
	if err != nil {
		return err
	}
	// The digest of all that it was made from: when something changes, another one is made. It does not tell the key.
	made := sha256.Sum256(fmt.Appendf(nil, "%s %s %s %s %s %d:%d %x", image, listen, d.o.Relay.To, n.id, outside.id, d.o.Relay.UID, d.o.Relay.GID, key))
	mark := hex.EncodeToString(made[:8])
	old, err := d.relays(ctx)
	if err != nil {
		return err
	}
	for _, c := range old {
		if len(old) == 1 && c.State == container.StateRunning && c.Labels[labelRelay] == mark && isOn(c, n.name, outside.name) {
			return d.adoptRelay(ctx, c.ID)
		}
		if err := d.removeContainer(ctx, c.ID); err != nil {
			return err
		}
	}
	source, err := d.stageRelayKey(key)
	if err != nil {
		return err
	}
	id, err := d.createRelay(ctx, d.relayContainer(image, mark, listen, outside.name, source))
	if err == nil {
		_, err = d.engine.NetworkConnect(ctx, n.id, client.NetworkConnectOptions{Container: id, EndpointConfig: &apinetwork.EndpointSettings{
			IPAMConfig: &apinetwork.EndpointIPAMConfig{IPv4Address: listen.Addr()}, Aliases: []string{"gateway", relayName}}})
	}
	if err == nil {
		_, err = d.engine.ContainerStart(ctx, id, client.ContainerStartOptions{})
	}
	if err == nil {
		err = d.adoptRelay(ctx, id)
	}
	if err != nil && id != "" {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), jail.TeardownLimit)
		defer cancel()
		err = errors.Join(err, d.removeContainer(undo, id))
	}
	return err
}

// isOn says whether a container is on these networks and no other.
func isOn(c container.Summary, names ...string) bool {
	if c.NetworkSettings == nil || len(c.NetworkSettings.Networks) != len(names) {
		return false
	}
	return !slices.ContainsFunc(names, func(name string) bool { return c.NetworkSettings.Networks[name] == nil })
}

// relays are the installation's containers that are a relay, ended ones too.
func (d *Driver) relays(ctx context.Context) ([]container.Summary, error) {
	list, err := d.engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.
		Add("label", labelInstallation+"="+string(d.o.Installation), labelRole+"="+roleRelay)})
	return list.Items, err
}

func (d *Driver) removeContainer(ctx context.Context, id string) error {
	_, err := d.engine.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// adoptRelay remembers which process the relay is.
func (d *Driver) adoptRelay(ctx context.Context, id string) error {
	got, err := d.engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	s := got.Container.State
	if s == nil || !s.Running || s.Pid <= 0 {
		return problem.New(problem.JailFailed, "`docker logs "+relayName+"` of one that is left, and the engine's log, say why",
			"the container of the relay ended at once")
	}
	proc, err := linux.FindProcess(s.Pid)
	if err != nil {
		return problem.Wrap(err, problem.JailFailed, "the engine's log says why", "the container of the relay ended at once")
	}
	d.mu.Lock()
	d.relay = proc
	d.mu.Unlock()
	return nil
}

// createRelay takes the plain name when it is free, and one with the installation's id where engines are shared.
func (d *Driver) createRelay(ctx context.Context, o client.ContainerCreateOptions) (id string, err error) {
	for _, name := range []string{relayName, relayName + "_" + string(d.o.Installation)} {
		o.Name = name
		made, err := d.engine.ContainerCreate(ctx, o)
		if cerrdefs.IsConflict(err) {
			continue // the name is somebody else's
		}
		return made.ID, err
	}
	return "", problem.New(problem.Conflict, "remove one of them with `docker rm`", "no name for the container of the relay is free")
}

func (d *Driver) relayContainer(image, mark string, listen netip.AddrPort, network, key string) client.ContainerCreateOptions {
	r, tasks, no, patience := d.o.Relay, int64(relayTasks), false, 1
	var hosts []string
	if host, _, err := net.SplitHostPort(r.To); err == nil && host == engineHost {
		hosts = append(hosts, engineHost+":host-gateway") // which engines from 20.10 on fill in
	}
	return client.ContainerCreateOptions{
		Config: &container.Config{
			Image: image, Hostname: relayName, User: fmt.Sprintf("%d:%d", r.UID, r.GID), WorkingDir: "/",
			Env:        []string{"GOMEMLIMIT=48MiB"},
			Entrypoint: []string{relayProgram, "relay", "--listen", listen.String(), "--to", r.To, "--key", relayKeyPath},
			Labels: map[string]string{labelInstallation: string(d.o.Installation), labelRole: roleRelay,
				labelRelay: mark},
			StopTimeout: &patience,
		},
		HostConfig: &container.HostConfig{
			NetworkMode: container.NetworkMode(network), ExtraHosts: hosts,
			LogConfig:     container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "1m", "max-file": "1"}},
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled}, // the rules come before it does
			CapDrop:       []string{"ALL"}, SecurityOpt: []string{"no-new-privileges:true"},
			CgroupnsMode: container.CgroupnsModePrivate, IpcMode: container.IPCModePrivate,
			Tmpfs:          map[string]string{"/dev/mqueue": "ro,noexec,nosuid,nodev,size=4096,mode=555"},
			ReadonlyRootfs: true, Init: &no,
			Mounts: []mount.Mount{{Type: mount.TypeBind, Source: key, Target: relayKeyPath, ReadOnly: true}},
			Resources: container.Resources{Memory: relayMemory, MemorySwap: relayMemory, PidsLimit: &tasks,
				Ulimits: []*container.Ulimit{{Name: "core"}}},
		},
	}
}

// outside is the network that leads to the control plane, made when it is missing.
func (d *Driver) outside(ctx context.Context) (network, error) {
	listen := d.o.Relay.Listen
	own := false // whether the network is to have the address that the control plane listens on
	if listen.Is4() && !listen.IsLoopback() {
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return network{}, fmt.Errorf("list the addresses of this host: %w", err)
		}
		own = !slices.ContainsFunc(addrs, func(a net.Addr) bool {
			n, ok := a.(*net.IPNet)
			return ok && n.IP.Equal(listen.AsSlice())
		})
	}
	have, err := d.outsides(ctx)
	if err != nil {
		return network{}, err
	}
	for _, n := range have {
		if len(have) == 1 && !n.Internal && n.Options[optionBridge] == linux.OutsideBridge(d.o.Installation) &&
			(!own || len(n.IPAM.Config) == 1 && n.IPAM.Config[0].Gateway == listen) {
			return network{id: n.ID, name: n.Name}, nil
		}
	}
	if err := d.removeOutside(ctx); err != nil {
		return network{}, err
	}
	no, name := false, outsideName+"_"+string(d.o.Installation)
	o := client.NetworkCreateOptions{Driver: "bridge", EnableIPv6: &no,
		Options: map[string]string{optionBridge: linux.OutsideBridge(d.o.Installation), optionICC: "false"},
		Labels:  map[string]string{labelInstallation: string(d.o.Installation), labelRole: roleOutside}}
	if own {
		const bits = 24
		o.IPAM = &apinetwork.IPAM{Driver: "default", Config: []apinetwork.IPAMConfig{
			{Subnet: netip.PrefixFrom(listen, bits).Masked(), Gateway: listen}}}
	}
	made, err := d.engine.NetworkCreate(ctx, name, o)
	if err != nil {
		return network{}, fmt.Errorf("make the network %s: %w", name, err)
	}
	return network{id: made.ID, name: name}, nil
}

func (d *Driver) outsides(ctx context.Context) ([]apinetwork.Summary, error) {
	list, err := d.engine.NetworkList(ctx, client.NetworkListOptions{Filters: client.Filters{}.
		Add("label", labelInstallation+"="+string(d.o.Installation), labelRole+"="+roleOutside)})
	return list.Items, err
}

// removeOutside removes the relay, and the network on which nothing else is.
func (d *Driver) removeOutside(ctx context.Context) error {
	relays, err := d.relays(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range relays {
		errs = append(errs, d.removeContainer(ctx, c.ID))
	}
	networks, err := d.outsides(ctx)
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	for _, n := range networks {
		if _, err := d.engine.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{}); err != nil && !cerrdefs.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeRelay removes everything that is there for the relay but its image, which others may use.
func (d *Driver) removeRelay(ctx context.Context) error {
	if err := d.removeOutside(ctx); err != nil {
		return d.engineError(err)
	}
	d.mu.Lock()
	d.relay = jail.Process{}
	d.mu.Unlock()
	return os.RemoveAll(filepath.Join(d.o.RunDir, relayFolder)) // the folder is root's, and so is all above it
}

// readRelayKey reads the key from the control plane's folder, whose owner decides what is there: a link, a FIFO or anything
// else that is not a small file is refused.
func readRelayKey(path string) ([]byte, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, problem.Wrap(&fs.PathError{Op: "open", Path: path, Err: err}, problem.BadConfig, "restart the host daemon, which makes it",
			"the key of the relay cannot be read")
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // only read from
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	key := make([]byte, RelayKeySize)
	if !info.Mode().IsRegular() || info.Size() != RelayKeySize {
		return nil, problem.New(problem.BadConfig, "remove it and restart the host daemon, which makes it anew", "%s is not the key of a relay", path)
	}
	_, err = io.ReadFull(f, key)
	return key, err
}

// stageRelayKey puts a copy where nobody but root decides what a path is.
func (d *Driver) stageRelayKey(key []byte) (string, error) {
	dir := filepath.Join(d.o.RunDir, relayFolder)
	if err := d.trusted(dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, relayKeyName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o400)
	if err != nil {
		return "", err
	}
	_, err = f.Write(key)
	return path, errors.Join(err, f.Chown(d.o.Relay.UID, d.o.Relay.GID), f.Chmod(0o400), f.Close())
}
