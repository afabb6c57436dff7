package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/agentenv"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
)

const (
	// DefaultTemplate is what agents are made of that name neither template nor image.
	DefaultTemplate = "clawbot"
	// environmentDir is where the files of package agentenv are in an agent's jail, and environmentFiles the same below its
	// home. They are where the agent can change them, which harms nobody else: none of them is a control.
	environmentDir   = jail.StateDir + "/" + environmentFiles
	environmentFiles = ".clawjail/provision"
)

// wanted is what is declared of one agent, and what follows from it.
type wanted struct {
	agent          clawbots.Agent
	driver, source string
	kept           jail.Kept // as it is when nothing keeps it from running
	rules          []egress.Rule
}

// driverOf is the driver of an agent.
func driverOf(a clawbots.Agent, otherwise string) string {
	switch {
	case a.Image != "":
		return DriverDocker
	case a.Template != "":
		return DriverLinux
	}
	return otherwise
}

// driverOfKept is the driver of a jail that is kept.
func driverOfKept(k jail.Kept) string {
	if k.Spec.Image != "" {
		return DriverDocker
	}
	return DriverLinux
}

// want makes what follows from a declaration. id is the agent's, if it has one already.
func (s *Service) want(tenant, id string, a clawbots.Agent, driver string, from surfaces) (*wanted, error) {
	w := &wanted{agent: a, driver: driverOf(a, driver)}
	var err error
	if w.rules, err = rulesOf(a); err != nil {
		return nil, err
	}
	spec := jail.Spec{
		Kind: jail.KindAgent, Lifetime: jail.LifetimeKeep, Template: a.Template, Image: a.Image, Limits: s.limits(a),
		Program: jail.Program{Argv: slices.Clone(a.Command), Wire: jail.WireStdio},
		Admit:   true,
		Agent: &jail.Agent{Tenant: tenant, Name: a.Name, State: int64(orElse(a.Limits.State, s.o.Agents.Limits.State)), Token: true,
			Builds: a.Tmp == clawbots.Exec},
	}
	switch {
	case w.driver == DriverDocker && spec.Image == "":
		spec.Image = s.o.Docker.Image
	case w.driver == DriverLinux && spec.Template == "":
		spec.Template = DefaultTemplate
	}
	w.source = spec.Template + spec.Image // one of them
	if spec.Image == "" && len(spec.Program.Argv) == 0 {
		spec.Program.Argv = []string{clawbots.DefaultCommand}
	}
	if a.Workspace != "" {
		m := jail.Mount{Source: a.Workspace, Target: jail.WorkspaceDir, ReadOnly: a.WorkspaceMode == clawbots.ReadOnly}
		if a.Sharing == clawbots.Shared {
			m.Make = []string{a.Name}
		}
		spec.Mounts, spec.UnixSockets = []jail.Mount{m}, a.UnixSockets
	}
	if spec.Program.Env, spec.HomeFiles, err = s.environment(tenant, id, a, clawbots.AgentHome(a), spec.Image != "", from); err != nil {
		return nil, err
	}
	spec.Program.Without = a.Without
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	w.kept = jail.Kept{Spec: spec, Restart: orElse(a.Restart, jail.RestartAlways)}
	w.kept.Revision, err = revisionOf(spec)
	return w, err
}

// limits of an agent's jail.
func (s *Service) limits(a clawbots.Agent) jail.Limits {
	d, tmp := s.o.Agents.Limits, int64(orElse(a.Limits.Tmp, s.o.Agents.Limits.Tmp))
	return jail.Limits{
		Memory: int64(orElse(a.Limits.Memory, d.Memory)), MilliCPU: milli(orElse(a.Limits.CPU, d.CPU)), Tasks: orElse(a.Limits.Tasks, d.Tasks),
		Disk: tmp, SharedMemory: tmp, Files: orElse(a.Limits.Files, d.Files), WallClock: orElse(a.TTL, jail.MaxWallClock),
	}
}

func milli(cores float64) int { return int(math.Round(cores * 1000)) }

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// environment is what an agent's programs are given. Declared variables are added to those that lead to the gateway, and take
// the place of a service's variables, but not of those that every jail has.
func (s *Service) environment(tenant, id string, a clawbots.Agent, home string, image bool, from surfaces) (map[string]string, []jail.File, error) {
	services, providers := agentenv.Select(from.services, from.providers, tenant, id)
	services = slices.DeleteFunc(services, func(svc egress.Service) bool {
		return a.Services != nil && svc.Agent == "" && !slices.Contains(a.Services, svc.Name)
	})
	made, err := agentenv.For(agentenv.Options{
		Gateway: s.o.GatewayURL, AgentName: a.Name, Home: home, Dir: environmentDir, Services: services, Providers: providers,
	})
	if err != nil {
		return nil, nil, err
	}
	env := maps.Clone(map[string]string(made.Env))
	for name, value := range a.Env {
		if name != agentenv.EnvGateway && name != agentenv.EnvName && name != agentenv.EnvHome {
			env[name] = value
		}
	}
	for _, name := range a.Without {
		delete(env, name)
	}
	var files []jail.File
	for _, f := range made.Files {
		if image {
			// Nothing is copied into a container, and an interpreter that is told to begin with a file that is not there does not begin.
			maps.DeleteFunc(env, func(_, value string) bool { return strings.Contains(value, f.Path) })
			continue
		}
		files = append(files, jail.File{Path: path.Join(environmentFiles, strings.TrimPrefix(f.Path, environmentDir+"/")), Data: []byte(f.Content)})
	}
	return env, files, nil
}

// furnish gives a jail of its own, in which a program runs for an agent, what the agent's jail has, where it has nothing else.
func (s *Service) furnish(ctx context.Context, a identity.Agent, spec *jail.Spec) error {
	declared, err := s.declarations(ctx, a.Tenant)
	if err != nil {
		return err
	}
	from, err := s.surfacesOf(ctx, self(), a.Tenant)
	if err != nil {
		return err
	}
	as := clawbots.Agent{Name: a.Name}
	if d := declared[a.Name]; d != nil && d.ID == a.ID {
		as.Services, as.Env, as.Without, as.Tmp = d.Agent.Services, d.Agent.Env, d.Agent.Without, d.Agent.Tmp
	}
	env, files, err := s.environment(a.Tenant, a.ID, as, jail.StateDir, false, from)
	spec.HomeFiles, spec.Agent.Builds = files, as.Tmp == clawbots.Exec
	spec.Program.Inherit(env, as.Without)
	return err
}

// revisionOf marks everything that shapes a jail: jails of equal revisions are alike. Its first letters change when an
// equal Spec is confined in another way, so that the next sync makes the jails anew.
func revisionOf(spec jail.Spec) (string, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("write down what a jail is made from: %w", err)
	}
	sum := sha256.Sum256(text)
	return "r2-" + hex.EncodeToString(sum[:16]), nil
}

// over says whether an agent's time is over.
func (a *wanted) over(created, now time.Time) bool { return timeIsOver(a.agent, created, now) }

func timeIsOver(a clawbots.Agent, created, now time.Time) bool {
	return a.TTL > 0 && !created.IsZero() && !now.Before(created.Add(a.TTL))
}

// shapes says in words in what two jails differ, for what is not in any declaration: defaults of the configuration, and
// what services and models bring along. Of variables there are only the names.
func shapes(old, fresh jail.Spec) (why []string) {
	say := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if a, b := old.Template+old.Image, fresh.Template+fresh.Image; a != b {
		say("it is made of %s, not of %s", b, a)
	}
	if old.Limits != fresh.Limits || old.Agent != nil && fresh.Agent != nil && old.Agent.State != fresh.Agent.State {
		say("the default limits have changed")
	}
	var names []string
	for name := range fresh.Program.Env {
		if v, there := old.Program.Env[name]; !there || v != fresh.Program.Env[name] {
			names = append(names, name)
		}
	}
	for name := range old.Program.Env {
		if _, there := fresh.Program.Env[name]; !there {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) > 0 {
		const limit = 8
		rest := ""
		if len(names) > limit {
			rest = fmt.Sprintf(" and %d others", len(names)-limit)
		}
		say("the services or models that it may use have changed: %s%s", strings.Join(names[:min(len(names), limit)], ", "), rest)
	}
	if len(why) == 0 {
		say("its jail was made by another version of the program")
	}
	return why
}
