//go:build linux

package docker

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	apinetwork "github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
)

// cpuPeriod is how often the share of processor time is refilled, in microseconds.
const cpuPeriod = 100_000

// Bounds of the output that the engine keeps of a kept container. It is followed all the time; they are for times without a follower.
const (
	keptLogSize  = "16m"
	keptLogFiles = "2"
)

// container translates a jail's profile for the engine.
func (m *making) container(id jail.Installation) (client.ContainerCreateOptions, error) {
	filter, err := linux.SeccompJSON(m.profile.Seccomp)
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	keep := m.spec.Lifetime == jail.LifetimeKeep
	user := fmt.Sprintf("%d:%d", m.profile.UID, m.profile.GID)
	labels := map[string]string{labelInstallation: string(id), labelJail: string(m.name)}
	hostname := string(m.name)
	if a := m.spec.Agent; a != nil {
		labels[labelTenant], labels[labelAgent] = a.Tenant, a.Name
		hostname = a.Name
	}
	dir := m.spec.Program.Dir
	if dir == "" {
		dir = m.spec.Kind.Home()
	}
	argv := m.argv
	if !m.ungated {
		argv = append([]string{shellPath, "-c", startGate, "gate"}, argv...)
	}
	limits, tasks, yes := m.profile.Limits, int64(m.profile.Limits.Tasks), true
	patience := 1 // seconds that an engine which ends waits, or one that comes back and finds the container running
	if keep {
		patience = int(jail.KeepGrace.Seconds())
	}
	logs := container.LogConfig{Type: "none"}
	if keep {
		logs = container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": keptLogSize, "max-file": keptLogFiles}}
	}
	mounts := m.folders.mounts()
	if m.volume != "" {
		mounts = append(mounts, mount.Mount{Type: mount.TypeVolume, Source: m.volume, Target: jail.StateDir,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true}})
	}
	return client.ContainerCreateOptions{
		Name: string(m.name),
		Config: &container.Config{
			Image: m.spec.Image, Hostname: hostname, User: user, Env: environment(m.spec.Program.Environment(m.env), m.spec.Program.Without, m.spec.Kind.Home()),
			Entrypoint: argv, WorkingDir: dir, Labels: labels, StopTimeout: &patience,
			OpenStdin: true, AttachStdin: !keep, StdinOnce: !keep, AttachStdout: !keep, AttachStderr: !keep,
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}, // it would be run beside the program, unasked
		},
		HostConfig: &container.HostConfig{
			NetworkMode: container.NetworkMode(m.network.name), LogConfig: logs,
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled}, // a new one is made instead, and looked at
			CapDrop:       []string{"ALL"}, CgroupnsMode: container.CgroupnsModePrivate, IpcMode: container.IPCModePrivate,
			SecurityOpt: []string{"no-new-privileges:true", "seccomp=" + string(filter)},
			// The message queues that the engine mounts for every container are a place to write that nobody declared.
			Tmpfs:          map[string]string{"/dev/mqueue": "ro,noexec,nosuid,nodev,size=4096,mode=555"},
			ReadonlyRootfs: m.profile.ReadOnlyRoot, Mounts: mounts, ShmSize: limits.SharedMemory,
			ExtraHosts: []string{"gateway:" + m.gateway.String(), relayName + ":" + m.gateway.String()},
			// The engine's resolver knows the containers, and asks others from within the container's network; here it is told to
			// ask the bridge, which refuses at once. Without an address it would take the host's, and may ask those itself.
			DNS: []netip.Addr{m.bridge}, DNSOptions: []string{"attempts:1", "timeout:1"}, DNSSearch: []string{"."},
			Init: &yes, // somebody waits for what a program has left behind
			Resources: container.Resources{
				Memory: limits.Memory, MemorySwap: limits.Memory, PidsLimit: &tasks,
				// Not NanoCpus, of which an engine refuses more than the host has.
				CPUPeriod: cpuPeriod, CPUQuota: int64(limits.MilliCPU) * cpuPeriod / 1000,
				Ulimits: []*container.Ulimit{
					{Name: "nofile", Soft: int64(limits.Files), Hard: int64(limits.Files)}, {Name: "core", Soft: linux.CoreLimit, Hard: linux.CoreLimit},
				},
			},
		},
		NetworkingConfig: &apinetwork.NetworkingConfig{EndpointsConfig: map[string]*apinetwork.EndpointSettings{
			m.network.name: {IPAMConfig: &apinetwork.EndpointIPAMConfig{IPv4Address: m.lease.Addr}},
		}},
	}, nil
}

// environment is sorted, so that equal Specs make equal containers. The engine takes a variable away that has no value.
func environment(env map[string]string, without []string, home string) []string {
	out := slices.Sorted(slices.Values(without))
	if _, ok := env["HOME"]; !ok {
		out = append(out, "HOME="+home)
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}
