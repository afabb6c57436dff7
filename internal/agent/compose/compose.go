// Package compose writes the file for docker-compose that is equivalent to a file of agents: the same containers, confined
// in the same way, for machines on which the engine is to be left to its own tool.
//
// It decides nothing: what an agent means is package clawbots', and how its jail is confined is jail.ProfileFor's. The head of the file
// lists what docker-compose cannot do: it does not compare the containers with what was declared, and the operator puts tokens
// in place and makes the rules of agents by hand. Versions 1.29 and 2 of docker-compose take the file.
package compose

import (
	"fmt"
	"io"
	"maps"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/agentenv"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Network is what the network of agents' containers is called.
const Network = "sand_bed"

// maxAgents is how many addresses of the network the engine gives away: the first 128, without the network's own, the gateway's
// and the last.
const maxAgents = 125

// Options say what a file of agents leaves to the configuration.
type Options struct {
	// Tenant is whose agents they are.
	Tenant string
	// Image is that of agents that name neither image nor template.
	Image string
	// Limits of what an agent does not say.
	Limits config.AgentLimits
	// Subnet is the network of agents' containers, which the host daemon makes; the gateway is at its first address, and listens
	// at Port.
	Subnet netip.Prefix
	Port   uint16
	// Tokens is the folder with a folder for each agent, in which there is its token: absolute, or beginning with a dot. In an
	// absolute one programs cannot be run, as in what a sync makes; docker-compose cannot mount a relative one so.
	Tokens string
}

// Validate says everything that is wrong with the options.
func (o Options) Validate() error {
	bad := problem.ValidationError{Code: problem.BadRequest}
	if err := jail.ValidAgentName(o.Tenant); err != nil {
		bad.Add("tenant", "%s", err)
	}
	if err := jail.ValidImageName(o.Image); err != nil {
		bad.Add("image", "%s", err)
	}
	if a := o.Subnet.Addr(); !a.Is4() || !a.IsPrivate() || o.Subnet.Bits() < 16 || o.Subnet.Bits() > 24 || o.Subnet != o.Subnet.Masked() {
		bad.AddFlaw(problem.Flaw{Field: "subnet", Message: fmt.Sprintf("%s is not a private IPv4 network between /16 and /24", o.Subnet), Hint: "write something like 10.214.0.0/24"})
	}
	if o.Port == 0 {
		bad.Add("port", "is missing")
	}
	if !path.IsAbs(o.Tokens) && !strings.HasPrefix(o.Tokens, "./") || path.Clean(o.Tokens) == "/" || strings.ContainsFunc(o.Tokens, control) {
		bad.AddFlaw(problem.Flaw{Field: "tokens", Message: fmt.Sprintf("%.80q cannot be the folder of tokens", o.Tokens), Hint: "write something like ./.clawbots"})
	}
	return bad.Err()
}

// control says whether a character ends a line, steers something, or is none in YAML.
func control(r rune) bool { return r < ' ' || yamldoc.Unprintable(r) }

// service is what becomes of one agent.
type service struct {
	clawbots.Agent
	image   string
	spec    jail.Spec
	profile jail.Profile
	env     map[string]string
	volume  string
	tokens  string // a volume, where there is one
}

// Write writes the file. Equal agents and options give equal bytes.
func Write(w io.Writer, f clawbots.File, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if len(f.Agents) == 0 {
		return problem.New(problem.BadRequest, "add one, such as - name: dev-bot", "%s declares no agents", f.Source)
	}
	if len(f.Agents) > maxAgents {
		return problem.New(problem.BadRequest, "write several files, for several installations", "%d agents are more than %d", len(f.Agents), maxAgents)
	}
	services := make([]service, len(f.Agents))
	for n, a := range f.Agents {
		var err error
		if services[n], err = o.service(a); err != nil {
			return fmt.Errorf("agent %s: %w", a.Name, err)
		}
	}
	out := &document{}
	o.head(out, f, services)
	out.line(0, "services:")
	for _, s := range services {
		o.write(out, s)
	}
	o.networks(out)
	out.line(0, "volumes:")
	for _, s := range services {
		out.line(1, s.volume+":")
		out.pair(2, "name", s.volume)
		if s.tokens == "" {
			continue
		}
		out.line(1, s.tokens+":")
		out.pair(2, "name", s.tokens)
		out.pair(2, "driver", "local")
		out.line(2, "driver_opts:")
		out.pair(3, "type", "none")
		out.pair(3, "o", "bind,ro,noexec,nosuid,nodev")
		out.pair(3, "device", o.Tokens+"/"+s.Name)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// service makes of an agent what the jail of one is made of.
func (o Options) service(a clawbots.Agent) (service, error) {
	limits := jail.Limits{
		Memory: int64(either(a.Limits.Memory, o.Limits.Memory)), MilliCPU: int(math.Round(either(a.Limits.CPU, o.Limits.CPU) * 1000)),
		Tasks: either(a.Limits.Tasks, o.Limits.Tasks), Disk: int64(either(a.Limits.Tmp, o.Limits.Tmp)),
		SharedMemory: int64(either(a.Limits.Tmp, o.Limits.Tmp)), Files: either(a.Limits.Files, o.Limits.Files), WallClock: jail.MaxWallClock,
	}
	s := service{Agent: a, image: o.Image}
	switch {
	case a.Image != "":
		s.image = a.Image
	case a.Template != "":
		s.image = "clawjail/" + a.Template + ":latest"
	}
	s.spec = jail.Spec{Kind: jail.KindAgent, Lifetime: jail.LifetimeKeep, Image: s.image, Program: jail.Program{Argv: a.Command, Wire: jail.WireStdio}, Limits: limits,
		Agent: &jail.Agent{Tenant: o.Tenant, Name: a.Name, State: int64(either(a.Limits.State, o.Limits.State)), Token: true, Builds: a.Tmp == clawbots.Exec}}
	if a.Workspace != "" && !a.UnixSockets {
		return service{}, problem.New(problem.Unsupported, "declare unix_sockets: true if whoever shares the folder may be connected with it, or use clawjail agent sync",
			"docker-compose cannot keep UNIX sockets from an agent with a workspace")
	}
	if a.Workspace != "" {
		s.spec.UnixSockets = true
		s.spec.Mounts = []jail.Mount{{Source: a.Workspace, Target: jail.WorkspaceDir, ReadOnly: a.WorkspaceMode == clawbots.ReadOnly}}
	}
	if err := s.spec.Validate(); err != nil {
		return service{}, err
	}
	s.profile = jail.ProfileFor(s.spec, jail.Lease{UID: jail.AgentUID})
	s.volume = "hermit_state_" + s.spec.Agent.Key()
	if path.IsAbs(o.Tokens) {
		s.tokens = "hermit_token_" + s.spec.Agent.Key()
	}
	payload, err := agentenv.For(agentenv.Options{Gateway: o.gatewayURL(), AgentName: a.Name, Home: clawbots.AgentHome(a), Dir: agentenv.Dir})
	if err != nil {
		return service{}, err
	}
	s.env = map[string]string{"HOME": jail.StateDir}
	for name, value := range payload.Env {
		// Its files are not in a container of somebody else's making, and its proxy is in the file with the token.
		if !strings.Contains(value, agentenv.Dir) && !proxies(name) {
			s.env[name] = value
		}
	}
	maps.Copy(s.env, a.Env)
	s.env = jail.Program{Env: s.env, Without: a.Without}.Environment(nil)
	return s, nil
}

func proxies(name string) bool {
	return slices.Contains([]string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"}, name)
}

func either[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func (o Options) gateway() netip.Addr { return o.Subnet.Addr().Next() }

func (o Options) gatewayURL() string {
	return "http://" + agentenv.GatewayName + ":" + strconv.Itoa(int(o.Port))
}

// head says what is to be done before the file is used, and what it does not do.
func (o Options) head(out *document, f clawbots.File, services []service) {
	out.comment("Made from " + f.Source + " by clawjail agent compose. Make it again instead of changing it.")
	out.comment("")
	out.comment("The host daemon makes the network, and opens the gateway to these containers, with docker.compose: true in the configuration. Each")
	out.comment("connection shows the token of its agent. It needs it in a folder of its own, readable by the user 1000 alone, and beside it in its proxy:")
	folder := shellWord(o.Tokens + "/NAME")
	out.comment("  install -d -m 0755 " + folder + " && install -m 0600 /dev/null " + shellWord(o.Tokens+"/NAME/env"))
	out.comment("  clawjail agent create NAME | install -m 0600 -o 1000 -g 1000 /dev/stdin " + shellWord(o.Tokens+"/NAME/token"))
	out.comment("  (cd " + folder + " && for v in HTTP_PROXY HTTPS_PROXY http_proxy https_proxy; do echo $v=http://agent:$(cat token)@" +
		strings.TrimPrefix(o.gatewayURL(), "http://") + "; done > env)")
	seen := map[string]bool{}
	for _, s := range services {
		folder := s.Workspace
		if s.Sharing == clawbots.Shared {
			folder = path.Join(folder, s.Name)
		}
		if folder == "" || seen[folder] {
			continue
		}
		if len(seen) == 0 {
			out.comment("and these folders, which agents see as /workspace:")
		}
		seen[folder] = true
		out.comment("  install -d -o 1000 -g 1000 " + shellWord(folder))
	}
	out.comment("")
	out.comment("What is different from clawjail agent sync: the engine is trusted to confine the containers as they are declared, /state has no size")
	out.comment("limit, system calls are filtered by the engine's own list, so that UNIX sockets in workspaces connect who shares them, and rules (allow,")
	out.comment("services, tools, accounts, rate, llm, ttl) are made with clawjail rules, service, cookies and agent limits. On a host with control groups of")
	out.comment("version 1 the containers share the host's view of them, unless the engine's daemon.json has \"default-cgroupns-mode\": \"private\".")
}

// write writes one agent.
func (o Options) write(out *document, s service) {
	user := fmt.Sprintf("%d:%d", s.profile.UID, s.profile.GID)
	out.line(1, quoted(s.Name)+":") // 1, no and null are names
	out.pair(2, "image", s.image)
	if len(s.Command) > 0 {
		// Compose would take what is in it for its own variables, and the entry point for a part of it.
		out.list(2, "entrypoint", s.Command...)
	}
	out.pair(2, "hostname", s.Name)
	out.pair(2, "working_dir", jail.StateDir)
	out.pair(2, "user", user)
	out.plain(2, "read_only", strconv.FormatBool(s.profile.ReadOnlyRoot))
	out.list(2, "cap_drop", "ALL")
	out.list(2, "security_opt", "no-new-privileges:true")
	out.pair(2, "ipc", "private")
	out.plain(2, "init", "true")
	out.plain(2, "stdin_open", "true")
	out.pair(2, "restart", restart(s.Restart))
	out.plain(2, "mem_limit", strconv.FormatInt(s.profile.Limits.Memory, 10))
	out.plain(2, "memswap_limit", strconv.FormatInt(s.profile.Limits.Memory, 10)) // the same is no swap
	out.plain(2, "cpus", strconv.FormatFloat(float64(s.profile.Limits.MilliCPU)/1000, 'f', -1, 64))
	out.plain(2, "pids_limit", strconv.Itoa(s.profile.Limits.Tasks))
	out.line(2, "ulimits:")
	out.line(3, "nofile: {soft: "+strconv.Itoa(s.profile.Limits.Files)+", hard: "+strconv.Itoa(s.profile.Limits.Files)+"}")
	out.line(3, "core: {soft: 1, hard: 1}") // less would let a crash start a program of the host, see linux.CoreLimit
	// The engine mounts message queues into every container, which were not declared: an empty folder is mounted over them.
	tmpfs := []string{"/dev/mqueue:ro,noexec,nosuid,nodev,size=4096,mode=555"}
	for _, t := range s.profile.Tmpfs {
		if t.Path == "/dev/shm" {
			out.plain(2, "shm_size", strconv.FormatInt(t.Size, 10))
			continue
		}
		tmpfs = append(tmpfs, tmpfsOf(t, s.profile))
	}
	out.list(2, "tmpfs", tmpfs...)
	out.line(2, "volumes:")
	out.mount("volume", s.volume, jail.StateDir, false)
	if s.tokens != "" {
		// The volume is read-only by itself. Were it said here as well, the engine would set it anew, without what else the volume
		// is mounted with.
		out.mount("volume", s.tokens, jail.TokenDir, false)
	} else {
		out.mount("bind", o.Tokens+"/"+s.Name, jail.TokenDir, true)
	}
	for _, m := range s.spec.Mounts {
		out.mount("bind", m.Source, m.Target, m.ReadOnly)
	}
	// Its proxy, with the token in it.
	out.list(2, "env_file", o.Tokens+"/"+s.Name+"/env")
	out.line(2, "environment:")
	for _, name := range slices.Sorted(maps.Keys(s.env)) {
		out.pair(3, name, s.env[name])
	}
	out.list(2, "networks", Network)
	gateway := o.gateway().String()
	out.list(2, "extra_hosts", agentenv.GatewayName+":"+gateway, agentenv.OlderGatewayName+":"+gateway)
	// The gateway answers no DNS: names are its business alone.
	out.list(2, "dns", gateway)
	out.list(2, "dns_opt", "attempts:1", "timeout:1")
	out.list(2, "dns_search", ".")
	out.line(2, "labels:")
	out.pair(3, "clawjail.tenant", o.Tenant)
	out.pair(3, "clawjail.agent", s.Name)
	out.pair(3, "clawjail.compose", "1")
	out.line(2, "logging:")
	out.pair(3, "driver", "json-file")
	out.line(3, "options:")
	out.pair(4, "max-size", "8m")
	out.pair(4, "max-file", "2")
}

func tmpfsOf(t jail.Tmpfs, p jail.Profile) string {
	options := "rw,nosuid,nodev,size=" + strconv.FormatInt(t.Size, 10) + ",mode=" + strconv.FormatUint(uint64(t.Mode), 8)
	if t.NoExec {
		options += ",noexec"
	} else {
		options += ",exec" // which is not an engine's default
	}
	if t.Owned {
		options += fmt.Sprintf(",uid=%d,gid=%d", p.UID, p.GID)
	}
	return t.Path + ":" + options
}

func restart(r jail.Restart) string {
	switch r {
	case jail.RestartNever:
		return "no"
	case jail.RestartOnFailure:
		return "on-failure"
	}
	return "unless-stopped"
}

// networks names the network of agents' containers. The host daemon has made it, without a way out, and opens the gateway to
// containers that it finds there.
func (o Options) networks(out *document) {
	out.line(0, "networks:")
	out.line(1, Network+":")
	out.plain(2, "external", "true")
	out.pair(2, "name", Network)
}
