// Package config is the configuration of clawjail: what clawjail.yml may say, what holds when it says nothing, and
// what is refused.
//
// The file is read strictly. Unknown keys, duplicates and bad values are all reported at once, each with its line and
// column. A key that is left out has the default that is documented here. Zero is never "unlimited": where a limit is
// written as 0, that is an error; the one 0 with a meaning is warm_pool.size, which turns the pool off.
//
// The package decides nothing about the machine: it opens no file but the configuration itself, and does not check whether a
// subnet is free or a runtime is there.
package config

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"time"
)

// Config is one complete configuration: every field has a value, from the file or by default.
type Config struct {
	// DataDir holds what is kept: database, keys, templates, journals. RunDir holds sockets and what goes with a reboot.
	DataDir string `yaml:"data_dir"`
	RunDir  string `yaml:"run_dir"`
	// TemplatesDir is DataDir/templates unless set.
	TemplatesDir string `yaml:"templates_dir"`
	// User is the unprivileged user of the control plane.
	User string `yaml:"user"`
	// Node names this control plane among those that share a database. Empty is the installation's id.
	Node string `yaml:"node"`
	// NodeListen is where other control planes of the database reach this one. Without a port they do not.
	NodeListen netip.AddrPort `yaml:"node_listen"`
	// Database is the URL of a PostgreSQL database; empty is the embedded one.
	Database DatabaseURL `yaml:"database"`

	// Listen is where the API and the console answer. An address that is not loopback needs TLS or BehindProxy.
	Listen netip.AddrPort `yaml:"listen"`
	// TLS makes the listener speak HTTPS; both fields empty is off.
	TLS TLS `yaml:"tls"`
	// BehindProxy names the proxies that may speak for their clients; empty means that there is none.
	BehindProxy []netip.Prefix `yaml:"behind_proxy"`
	// PublicURL is how clients reach the API through a proxy: scheme, name, a port that is not the scheme's own, and the path
	// below which the proxy serves it, if any. Requests that name another host than this one and the listener's own are
	// refused. Empty is none.
	PublicURL string `yaml:"public_url"`

	// Subnet is the network of the jails, IPv4 and private, /16 to /24. The zero Prefix is "auto": the first /20 that
	// the host has no route for.
	Subnet netip.Prefix `yaml:"subnet" zero:"auto"`
	// UIDBase is the first user id of the browsers' jails. Each jail runs as UIDBase + the index of its address.
	UIDBase uint32 `yaml:"uid_base"`

	// Runtime is auto, runc, crun, runsc or the absolute path of an OCI runtime.
	Runtime string  `yaml:"runtime"`
	Storage Storage `yaml:"storage" enum:"auto,overlay,btrfs,zfs"`
	// ZFSDataset is the dataset beneath which templates and clones are, for storage zfs: zroot/clawjail.
	ZFSDataset string `yaml:"zfs_dataset"`
	// AppArmor says whether jails on Linux have profiles of AppArmor.
	AppArmor AppArmor `yaml:"apparmor" enum:"auto,required,off"`
	// ExtraCA are files of certificates (PEM) that the browsers in jails trust besides the public ones.
	ExtraCA []string `yaml:"extra_ca"`

	Vault        Vault        `yaml:"vault"`
	Grants       Grants       `yaml:"grants"`
	Audit        Audit        `yaml:"audit"`
	Logins       []Login      `yaml:"logins"`
	Gateway      Gateway      `yaml:"gateway"`
	Sessions     Sessions     `yaml:"sessions"`
	Quotas       Quotas       `yaml:"quotas"`
	WarmPool     WarmPool     `yaml:"warm_pool"`
	NetworkSlots NetworkSlots `yaml:"network_slots"`
	Limits       Limits       `yaml:"limits"`
	Agents       Agents       `yaml:"agents"`
	Docker       Docker       `yaml:"docker"`
	Kubernetes   Kubernetes   `yaml:"kubernetes"`
	// MCPServers are those of the file, in its order.
	MCPServers  []MCPServer `yaml:"mcp_servers,named"`
	HostBrowser HostBrowser `yaml:"browser"`
	Console     Console     `yaml:"console"`
	Metrics     Metrics     `yaml:"metrics"`
	Log         Log         `yaml:"log"`
}

// Agents are the jails of agents that are kept, and of programs that are run for them.
type Agents struct {
	// Driver makes jails of agents that name neither image nor template.
	Driver     AgentDriver `yaml:"driver" enum:"auto,linux,docker"`
	AgentRoots `yaml:"-"`
	// Limits of what does not say its own. Tmp is /tmp, and State the volume at /state.
	Limits AgentLimits `yaml:"limits"`
	// Log is how much of what an agent prints is kept, of each stream.
	Log Bytes `yaml:"log"`
}

// AgentRoots are what of the host agents may have, in keys of the whole file.
type AgentRoots struct {
	// WorkspaceRoots are the folders beneath which agents may be given folders of the host. Nil is Config.Workspaces; an empty
	// list is none.
	WorkspaceRoots []string `yaml:"workspace_roots"`
	// JailRoots are the folders beneath which there may be roots for jails that are no template's. There are none by default.
	JailRoots []string `yaml:"jail_roots"`
	// AllowHostNetwork lets a program that is run without a host daemon be on the network of the host, when that is asked for.
	AllowHostNetwork bool `yaml:"allow_host_network"`
}

// AgentLimits are the limits of one agent's jail.
type AgentLimits struct {
	Memory Bytes   `json:"memory,omitempty"`
	CPU    float64 `json:"cpu,omitempty"`
	Tasks  int     `json:"tasks,omitempty"`
	Tmp    Bytes   `json:"tmp,omitempty"`
	State  Bytes   `json:"state,omitempty"`
	Files  int     `json:"files,omitempty"`
}

// AgentDriver is a way to make the jails of agents.
type AgentDriver string

// The drivers. Auto is the host's own where clawjail makes jails there, and docker elsewhere.
const (
	AgentDriverAuto   AgentDriver = "auto"
	AgentDriverLinux  AgentDriver = "linux"
	AgentDriverDocker AgentDriver = "docker"
)

// Docker is the engine for agents in containers.
type Docker struct {
	// Socket is that of the engine: a path.
	Socket string `yaml:"socket"`
	// Subnet is the network of the containers, IPv4 and private, /16 to /24; it must not be that of the jails. The zero Prefix
	// is "auto": the first /24 that the host has no route for.
	Subnet netip.Prefix `yaml:"subnet" zero:"auto"`
	// Image is that of agents that name neither image nor template.
	Image string `yaml:"image"`
	// Compose admits containers that docker-compose has started for agents, by their address and the agent's token together.
	Compose bool `yaml:"compose"`
}

// Workspaces is the folder beneath which agents may be given folders of the host when the file names no others. It is the
// one folder in DataDir that agents can reach.
func (c Config) Workspaces() string { return filepath.Join(c.DataDir, "workspaces") }

// Metrics is about /metrics of the API.
type Metrics struct {
	// Open answers every client that can connect to the API, without a key.
	Open bool `yaml:"open"`
}

// TLS is the certificate of the API's listener.
type TLS struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// Set says whether the listener speaks HTTPS.
func (t TLS) Set() bool { return t.Cert != "" && t.Key != "" }

// DatabaseURL is the URL of a database, which may hold a password. It prints as [redacted].
type DatabaseURL string

// Reveal is the URL itself.
func (d DatabaseURL) Reveal() string { return string(d) }

// HasPassword says whether the URL holds one. A URL that cannot be read is taken for one that does.
func (d DatabaseURL) HasPassword() bool {
	if d == "" {
		return false
	}
	u, err := url.Parse(string(d))
	if err != nil {
		return true
	}
	_, inUser := u.User.Password()
	return inUser || u.Query().Has("password")
}

// Format implements fmt.Formatter.
func (d DatabaseURL) Format(w fmt.State, _ rune) {
	if d != "" {
		_, _ = io.WriteString(w, "[redacted]") // the writer is fmt's, which never fails
	}
}

// LogValue implements slog.LogValuer.
func (d DatabaseURL) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(d)) }

// MarshalText implements encoding.TextMarshaler.
func (d DatabaseURL) MarshalText() ([]byte, error) { return fmt.Append(nil, d), nil }

// Vault is where accounts are kept.
type Vault struct {
	// KeyFile opens what the database keeps encrypted. Empty is vault.key in the control plane's folder of DataDir.
	KeyFile string `yaml:"key_file"`
}

// Grants bound how long a grant may be used.
type Grants struct {
	// TTL is how long a grant lives when its operator does not say, MaxTTL the most that one may say.
	TTL    time.Duration `yaml:"ttl" min:"1s" max:"24h0m0s"`
	MaxTTL time.Duration `yaml:"max_ttl" min:"1s" max:"24h0m0s"`
}

// Audit is about the audit log.
type Audit struct {
	// Keep is how long its rows are kept.
	Keep time.Duration `yaml:"keep" min:"24h0m0s" max:"876000h0m0s"`
}

// Login says how to see that a site wants its user to log in.
type Login struct {
	// Domain is the registrable domain whose accounts it is about.
	Domain string `yaml:"domain"`
	// ProbeURL is opened when a session with an account of the domain begins; empty opens nothing.
	ProbeURL string `yaml:"probe_url"`
	// URLs are patterns of the addresses of pages that ask to log in; * stands for any text, and before the path for any
	// that has no /, ? or #.
	URLs []string `yaml:"urls"`
	// Selector is a CSS selector of what only such a page has; empty looks for nothing.
	Selector string `yaml:"selector"`
}

// AppArmor says when jails have profiles of AppArmor. Where they have them, no jail starts without.
type AppArmor string

// Auto is where the host has AppArmor and its parser; with Required the host daemon does not start elsewhere.
const (
	AppArmorAuto     AppArmor = "auto"
	AppArmorRequired AppArmor = "required"
	AppArmorOff      AppArmor = "off"
)

// Storage is how clones are made.
type Storage string

// With auto, ZFS is taken on FreeBSD, btrfs when the data directory is on btrfs, else overlay.
const (
	StorageAuto    Storage = "auto"
	StorageOverlay Storage = "overlay"
	StorageBtrfs   Storage = "btrfs"
	StorageZFS     Storage = "zfs"
)

// Gateway is the only way out of a jail.
type Gateway struct {
	// Port is the gateway's port on the bridge of the jails.
	Port uint16 `yaml:"port" min:"1" max:"65535"`
	// Placement is how agents in containers reach the gateway.
	Placement Placement `yaml:"placement" enum:"host,container"`
	// Relay is where the control plane waits for the relay, and RelayTo, HOST:PORT, how the relay reaches that. Both are
	// used with PlacementContainer alone. An empty RelayTo is Relay, or engineHost when that is a loopback address.
	Relay   netip.AddrPort `yaml:"relay"`
	RelayTo string         `yaml:"relay_to"`
	// PrivateDestinations are the private addresses that jails may reach through the gateway. There are none by default.
	PrivateDestinations []PrivateDestination `yaml:"private_destinations"`
	// Silence is how long what the gateway let through may be silent: tunnels, streams, answers that are waited for.
	Silence time.Duration `yaml:"silence" min:"1m0s" max:"12h0m0s"`
}

// Placement is how agents in containers reach the gateway.
type Placement string

// With host the gateway is at the address of their bridge. With container a relay is on their network, for engines whose
// bridges are not this host's.
const (
	PlacementHost      Placement = "host"
	PlacementContainer Placement = "container"
)

// engineHost is the host as containers of engines with a machine of their own know it.
const engineHost = "host.docker.internal"

// RelayTarget is how the relay reaches the control plane, HOST:PORT.
func (g Gateway) RelayTarget() string {
	switch {
	case g.RelayTo != "":
		return g.RelayTo
	case g.Relay.Addr().IsLoopback():
		return net.JoinHostPort(engineHost, strconv.Itoa(int(g.Relay.Port())))
	}
	return g.Relay.String()
}

// PrivateDestination lets jails reach one host at one private address. The name is not looked up: the address is
// what is dialled.
type PrivateDestination struct {
	Host    string     `yaml:"host"`
	Address netip.Addr `yaml:"address"`
	Ports   []uint16   `yaml:"ports"`
}

// Sessions bounds browser sessions.
type Sessions struct {
	// Max is how many may be open at once.
	Max int `yaml:"max" min:"1" max:"10000"`
	// TTL is how long a session lives when its caller does not say; MaxTTL is the most that a caller may say.
	TTL    time.Duration `yaml:"ttl" min:"10s" max:"720h0m0s"`
	MaxTTL time.Duration `yaml:"max_ttl" min:"10s" max:"720h0m0s"`
	// Idle closes a session that was not used for this time.
	Idle time.Duration `yaml:"idle" min:"10s" max:"720h0m0s"`
	// WallClock is how long any ephemeral jail may exist, but for one in which a person logs in, which has its half hour. The
	// host daemon enforces it, also when the control plane is gone, so it is longer than everything that the control plane enforces.
	WallClock time.Duration `yaml:"wall_clock" min:"20s" max:"1440h0m0s"`
	// DialogWait is how long a DevTools client may take for a dialog of its page.
	DialogWait time.Duration `yaml:"dialog_wait" min:"100ms" max:"10m0s"`
}

// Quotas divide what an installation has once; see package quota.
type Quotas struct {
	// Tenant is how much of it one tenant may hold while there are others, and Agent how much of its tenant's share one agent
	// may, both in percent.
	Tenant int `yaml:"tenant,percent" min:"1" max:"100"`
	Agent  int `yaml:"agent,percent" min:"1" max:"100"`
	// Recordings is the room on the disk for the recordings of all sessions. 0 is "auto", a quarter of that disk.
	Recordings Bytes `yaml:"recordings" zero:"auto" min:"0KiB" max:"1024TiB"`
	// Memory is what the jails of all tenants may have together by their limits. 0 is "auto", four times the memory of the host.
	Memory Bytes `yaml:"memory" zero:"auto" min:"0KiB" max:"1024TiB"`
	// Audit is the room for all records of the audit log. 0 is "auto": a quarter of the disk for an embedded database, 64 GiB
	// for one on a server.
	Audit Bytes `yaml:"audit" zero:"auto" min:"0KiB" max:"1024TiB"`
}

// WarmPool keeps started browsers ready.
type WarmPool struct {
	// Size is how many are kept ready. 0 is off.
	Size int `yaml:"size" min:"0" max:"1000"`
	// MaxAge is how old a browser may get in the pool.
	MaxAge time.Duration `yaml:"max_age" min:"10s" max:"24h0m0s"`
	// Browser is the build that is kept ready.
	Browser Browser `yaml:"browser" enum:"shell,full"`
}

// Browser is a build of Chromium.
type Browser string

// The shell is small and starts fast; the full build is for people who log in.
const (
	BrowserShell Browser = "shell"
	BrowserFull  Browser = "full"
)

// NetworkSlots are network namespaces that are made before they are needed.
type NetworkSlots struct {
	// Ready is how many are kept ready.
	Ready int `yaml:"ready" min:"1" max:"1000"`
}

// Limits of every jail that does not have its own.
type Limits struct {
	// Memory is for the processes of a jail and for what they write into its tmpfs, together.
	Memory Bytes `yaml:"memory" min:"64MiB" max:"1TiB"`
	// CPU is in cores: 0.5 is half of one.
	CPU float64 `yaml:"cpu" min:"0.05" max:"1024"`
	// Tasks counts processes and threads. A browser with a few pages has about 200.
	Tasks int `yaml:"tasks" min:"16" max:"32768"`
	// Tmp and SHM are the sizes of /tmp (with the browser's profile) and /dev/shm. Both are part of Memory.
	Tmp Bytes `yaml:"tmp" min:"1MiB" max:"1TiB"`
	SHM Bytes `yaml:"shm" min:"1MiB" max:"1TiB"`
	// Files is how many files a process may have open.
	Files int `yaml:"files" min:"64" max:"1048576"`
}

// Log is what the daemons write to standard error.
type Log struct {
	// Level is debug, info, warn or error.
	Level string `yaml:"level" enum:"debug,info,warn,error"`
	// Format is text or json.
	Format string `yaml:"format" enum:"text,json"`
}

// Default is the configuration of this process when there is no file.
func Default() Config { return Here().Default() }

// Default is the configuration without a file. On Linux as root the paths are the system's; see [Environment.System].
func (e Environment) Default() Config { return e.DefaultFor("") }

// DefaultFor is the configuration in the place of a file that cannot be read: its paths are where that file has them.
func (e Environment) DefaultFor(file string) Config {
	c := base()
	c.place(e, e.System(file, c.User))
	return c
}

// base has every default that does not depend on where clawjail runs.
func base() Config {
	return Config{
		User:     "clawjail",
		Listen:   netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 18780),
		UIDBase:  1879100000, // the ids that systemd gives to containers end at 1879048191
		Runtime:  "auto",
		Storage:  StorageAuto,
		AppArmor: AppArmorAuto,
		Grants:   Grants{TTL: 10 * time.Minute, MaxTTL: 24 * time.Hour},
		Audit:    Audit{Keep: 365 * 24 * time.Hour},
		Gateway: Gateway{Port: 3000, Placement: PlacementHost, Relay: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 18793),
			Silence: time.Hour},
		Sessions: Sessions{
			Max: 64, TTL: 30 * time.Minute, MaxTTL: 8 * time.Hour, Idle: 10 * time.Minute, WallClock: 9 * time.Hour,
			DialogWait: 5 * time.Second,
		},
		Quotas:       Quotas{Tenant: 80, Agent: 80},
		WarmPool:     WarmPool{Size: 2, MaxAge: 10 * time.Minute, Browser: BrowserShell},
		NetworkSlots: NetworkSlots{Ready: 4},
		Limits:       Limits{Memory: 768 * MiB, CPU: 2, Tasks: 512, Tmp: 256 * MiB, SHM: 256 * MiB, Files: 8192},
		Agents: Agents{Driver: AgentDriverAuto, Log: 8 * MiB,
			Limits: AgentLimits{Memory: 512 * MiB, CPU: 0.5, Tasks: 64, Tmp: 100 * MiB, State: GiB, Files: 4096}},
		Docker:      Docker{Socket: "/var/run/docker.sock", Image: "clawjail/clawbot:latest"},
		Kubernetes:  defaultKubernetes(),
		HostBrowser: defaultHostBrowser(),
		Console:     defaultConsole(),
		Log:         Log{Level: "info", Format: "text"},
	}
}
