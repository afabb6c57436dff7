package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

const (
	// secretsDir is the folder of the secrets, in the home directory of the jail.
	secretsDir = ".secrets"
	// maxLife ends a server however much it is used. The next call starts a new one. A jail of its own may be a little older, so
	// that the server is ended in good order first.
	maxLife = 24 * time.Hour
)

// process is a running MCP server: its stdio, exit and end.
type process struct {
	name  jail.Name
	stdio *jail.Stdio
	// exit waits until the program has ended, and says how.
	exit func(ctx context.Context) (jail.Exit, error)
	// end ends it, and returns when nothing of it is left.
	end func(ctx context.Context) error
}

// startProcess starts a server for a tenant, in a jail of its own or in the jail of an agent. On error nothing is left.
func (s *Service) startProcess(ctx context.Context, server config.MCPServer, tenant string) (*process, error) {
	if server.Agent != "" {
		return s.startInAgent(ctx, server, tenant)
	}
	spec, wipe, err := s.spec(ctx, server, tenant)
	if err != nil {
		return nil, err
	}
	// Admission happens before the program starts: it may connect at once.
	revokeAccess := func() error { return nil }
	spec.Admit = server.Network == config.ServerNetworkGateway
	made, err := s.o.Driver.CreateWith(ctx, spec, func(name jail.Name, lease jail.Lease) error {
		if !spec.Admit {
			return nil
		}
		err := s.admit(server, tenant, name, lease.Addr)
		if err == nil {
			revokeAccess = func() error { return s.o.Gateway.Forget(lease.Addr, string(name)) }
		}
		return err
	})
	wipe()
	if err != nil {
		return nil, errors.Join(err, revokeAccess())
	}
	return &process{name: made.Name, stdio: made.Stdio,
		exit: func(ctx context.Context) (jail.Exit, error) { return s.o.Driver.Wait(ctx, made.Name) },
		end: func(ctx context.Context) error {
			cut := revokeAccess()
			made.Stdio.Close()
			return errors.Join(cut, s.destroy(ctx, made.Name))
		}}, nil
}

// admit lets a jail reach what its declaration allows, through the gateway.
func (s *Service) admit(server config.MCPServer, tenant string, name jail.Name, addr netip.Addr) error {
	rules := make([]policy.Rule, 0, len(server.Allow))
	for n, target := range server.Allow {
		host, ports, err := config.AllowedHost(target)
		if err != nil {
			return fmt.Errorf("allow %q: %w", target, err)
		}
		rules = append(rules, policy.Rule{Name: fmt.Sprintf("mcp-%s-%d", server.Name, n+1), Action: policy.Allow, Host: host, Ports: ports})
	}
	// The jail that had the address before is gone; what may be left of it is cut off here.
	if err := s.o.Gateway.Forget(addr, ""); err != nil {
		return fmt.Errorf("end earlier connections of address %s: %w", addr, err)
	}
	// Session is set, so that operators' rules for all sessions can restrict these rules; no rule can widen them.
	return s.o.Gateway.Admit(addr, gateway.Caller{Jail: string(name), Session: "mcp_" + string(name), Tenant: tenant, Actor: actor(server.Name),
		Policy: policy.Only(rules...), Confined: true})
}

// actor names a server in records of what its jail does.
func actor(server string) string { return "mcp_server:" + server }

// destroy removes a jail. It retries while the host daemon is unreachable, which ends the jail by itself when clawjail is gone. When this
// gives up, the host daemon's client goes on.
func (s *Service) destroy(ctx context.Context, name jail.Name) error {
	return wake.Retry(ctx, 50*time.Millisecond, 5*time.Second, jail.IsAway, func() error { return s.o.Driver.Destroy(ctx, name) })
}

// startInAgent starts a server in the jail of an agent of the tenant.
func (s *Service) startInAgent(ctx context.Context, server config.MCPServer, tenant string) (*process, error) {
	if s.o.Keeper == nil {
		return nil, problem.New(problem.Unsupported, "give the server a jail of its own: leave agent out", "there are no jails of agents here")
	}
	_, all, err := s.o.Keeper.Kept(ctx, 0, false)
	if err != nil {
		return nil, err
	}
	for _, k := range all {
		if k.Spec.Agent == nil || k.Spec.Agent.Tenant != tenant || k.Spec.Agent.Name != server.Agent {
			continue
		}
		if k.Jail == "" || k.Phase != jail.PhaseRunning {
			break
		}
		// The environment that leads programs there to the gateway leads the server, too.
		program := jail.Program{Argv: server.Command, Env: server.Env, Wire: jail.WireStdio}
		program.Inherit(k.Spec.Program.Env, k.Spec.Program.Without)
		running, err := s.o.Keeper.ExecIn(ctx, k.Jail, program)
		if err != nil {
			return nil, err
		}
		return runningProcess(k.Jail, running), nil
	}
	return nil, problem.New(problem.Conflict, "clawjail agent ls shows what runs", "the MCP server %s runs in the jail of the agent %s, which does not run",
		server.Name, server.Agent)
}

func runningProcess(name jail.Name, running *jail.Running) *process {
	return &process{name: name, stdio: running.Stdio, exit: running.Wait, end: func(ctx context.Context) error {
		running.End()
		running.Stdio.Close()
		_, _ = running.Wait(ctx) // how a program ended that was told to is of no interest
		return ctx.Err()
	}}
}

// spec describes the jail of a server. wipe overwrites the secrets in it, once the jail was made.
func (s *Service) spec(ctx context.Context, server config.MCPServer, tenant string) (spec jail.Spec, wipe func(), err error) {
	l := server.Limits
	spec = jail.Spec{
		Kind: jail.KindAgent, Lifetime: jail.LifetimeOwner, Template: server.Template,
		Agent: &jail.Agent{Tenant: tenant, Name: "mcp-" + server.Name},
		Limits: jail.Limits{Memory: int64(l.Memory), MilliCPU: max(int(l.CPU*1000), jail.MinMilliCPU), Tasks: l.Tasks, Disk: int64(l.Tmp),
			SharedMemory: int64(l.Tmp), Files: l.Files, WallClock: maxLife + time.Minute},
	}
	for _, m := range server.Mounts {
		spec.Mounts = append(spec.Mounts, jail.Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	env := map[string]string{}
	if server.Network == config.ServerNetworkGateway {
		for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
			env[name] = s.o.Proxy
		}
		env["NO_PROXY"], env["no_proxy"] = "localhost,127.0.0.1", "localhost,127.0.0.1"
		env["NODE_USE_ENV_PROXY"] = "1" // Node ignores proxy variables without it
	}
	maps.Copy(env, server.Env)
	wipe = func() {
		for _, f := range spec.HomeFiles {
			clear(f.Data)
		}
	}
	for _, declared := range server.Secrets {
		data, err := s.secret(ctx, tenant, declared)
		if err != nil {
			wipe()
			return jail.Spec{}, nil, err
		}
		spec.HomeFiles = append(spec.HomeFiles, jail.File{Path: secretsDir + "/" + declared.Name, Data: data})
		if !declared.Env {
			env[declared.Name+"_FILE"] = jail.KindAgent.Home() + "/" + secretsDir + "/" + declared.Name
		}
	}
	spec.Program = jail.Program{Argv: commandWithSecrets(server), Env: env, Wire: jail.WireStdio}
	return spec, wipe, nil
}

func (s *Service) secret(ctx context.Context, tenant string, declared config.ServerSecret) (data []byte, err error) {
	name := vault.SecretName{Tenant: tenant, Service: declared.Secret}
	err = s.o.Vault.UseSecret(ctx, name, vault.InJail, func(v secret.Value) error {
		data = v.Append(nil)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if declared.Env && strings.IndexByte(string(data), 0) >= 0 {
		clear(data)
		return nil, problem.New(problem.BadSecret, "deliver it as a file: leave `as: env` out", "the secret %s has a NUL byte, which no variable can have", declared.Secret)
	}
	if err := s.o.Vault.MarkUsed(ctx, name, s.o.Now()); err != nil {
		s.o.Log.Warn("mark a secret as used", "secret", declared.Secret, "error", err)
	}
	return data, nil
}

// commandWithSecrets is the command of a server behind a script that restricts the secret files to 0400 and exports the secrets with
// `as: env`. The jail's description has their names only. The script has no variables of its own and uses no others: a secret may have
// any name that a shell does not keep for itself, as the configuration ensures.
func commandWithSecrets(server config.MCPServer) []string {
	if len(server.Secrets) == 0 {
		return server.Command
	}
	dir := jail.KindAgent.Home() + "/" + secretsDir + "/"
	var b strings.Builder
	b.WriteString("set -eu\n/bin/chmod 0400 " + dir + "*\n")
	for _, declared := range server.Secrets {
		if declared.Env {
			// The x keeps line ends at the end of the secret, which the shell would take away.
			b.WriteString(declared.Name + "=$(/bin/cat " + dir + declared.Name + " && printf x)\nexport " + declared.Name + "=\"${" + declared.Name + "%x}\"\n/bin/rm -f " + dir + declared.Name + "\n")
		}
	}
	b.WriteString("exec \"$@\"\n")
	return append([]string{"/bin/sh", "-c", b.String(), "sh"}, server.Command...)
}
