package agent

import (
	"errors"
	"math"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// defaultTTL is how long a program may run when the request does not say, maxTTL the most that it may say.
	defaultTTL, minTTL, maxTTL = time.Hour, time.Second, 7 * 24 * time.Hour
	// programTemplate is that of the jail of a program.
	programTemplate = "clawbot"
)

// ErrBareHost refuses to run a program outside a jail, for every caller: there is no code that could.
var errBareHost = problem.New(problem.Forbidden, "leave the jail out for a new one, name an agent whose jail runs, or give a folder beneath jail_roots",
	"programs run in jails; none is ever started on the bare host, nor with its network or its root")

// placing is where a program is to run.
type placing struct {
	inAgent bool // in the jail of the agent, which runs
	spec    jail.Spec
	ttl     time.Duration
}

// endWithin bounds how long the program may run.
func (p *placing) endWithin(left time.Duration) {
	p.ttl = min(p.ttl, left)
	p.spec.Limits.WallClock = min(p.spec.Limits.WallClock, p.ttl)
}

// place reads a request. Everything that is wrong with it is said at once. Parts that depend on the agent's environment are added
// later.
func (p *processes) place(a identity.Agent, r ProcessRequest) (placing, error) {
	var errs []error
	bad := func(hint, format string, args ...any) {
		errs = append(errs, problem.New(problem.BadRequest, hint, format, args...))
	}
	j := JailConfig{}
	if r.Jail != nil {
		j = *r.Jail
	}
	if j.Path == "/" || j.RootPath == "/" || j.User == "root" || j.User == "0" || j.IP4 == ip4Inherit {
		return placing{}, errBareHost
	}
	out := placing{ttl: r.TTL, inAgent: j.Name != ""}
	if out.ttl == 0 {
		out.ttl = defaultTTL
	}
	if out.ttl < minTTL || out.ttl > maxTTL {
		errs = append(errs, problem.New(problem.BadLimit, "leave it out for "+defaultTTL.String(), "a ttl of %s is not between %s and %s", out.ttl, minTTL, maxTTL))
	}
	if j.User != "" && j.User != "agent" {
		bad("leave it out", "programs run as the user agent, not as %q", texts.Clip(j.User, 40))
	}
	program := jail.Program{Argv: jail.Searched(r.Argv), Env: r.Env, Dir: r.Dir, Wire: jail.WireStdio}
	if out.inAgent {
		// The program acts as the agent whose jail it is in: under another name the log would not say which agent did it.
		if j.Name != a.Name {
			bad("start it for the agent "+texts.Clip(j.Name, 40), "a program in the jail of %s is one of %s, not of %s", texts.Clip(j.Name, 40), texts.Clip(j.Name, 40), a.Name)
		}
		if r.Template != "" || len(j.Mounts) > 0 || r.Limits != (clawbots.Limits{}) || j.RootPath != "" || j.IP4 != "" {
			bad("leave the jail out for a new one", "a jail that runs has its template, root, mounts, network and limits already")
		}
		out.spec.Program = program
		return out, errors.Join(append(errs, program.Validate())...)
	}
	if j.RootPath != "" && j.RootPath != j.Path {
		bad("leave root_path out", "the root of a jail on this host is its path")
	}
	if j.IP4 != "" && j.IP4 != IP4New && j.IP4 != IP4Disable {
		bad("it is "+IP4New+" or "+IP4Disable, "%q is not a network of a jail", texts.Clip(j.IP4, 40))
	}
	if j.Path != "" && r.Template != "" {
		bad("name one of them", "a jail is made of a template or of a folder, not of both")
	}
	if r.Limits.State != 0 {
		bad("leave it out: what the program writes to /state is in memory, and goes with its jail", "the jail of one program has no volume")
	}
	out.spec = jail.Spec{
		Kind: jail.KindAgent, Lifetime: jail.LifetimeOwner, Root: j.Path, Mounts: j.Mounts,
		Agent: &jail.Agent{Tenant: a.Tenant, Name: a.Name}, Program: program, Limits: limitsOfProgram(p.with.Agents.Limits, r.Limits, out.ttl),
		// The gateway and the firewall let it through before its program begins, which may ask for something at once.
		Admit: j.IP4 != IP4Disable,
	}
	if j.Path == "" {
		if out.spec.Template = r.Template; out.spec.Template == "" {
			out.spec.Template = programTemplate
		}
	}
	return out, errors.Join(append(errs, out.spec.Validate())...)
}

// limitsOfProgram are the configured limits with what a request says in their place.
func limitsOfProgram(usual config.AgentLimits, l clawbots.Limits, ttl time.Duration) jail.Limits {
	or := func(value, otherwise config.Bytes) int64 {
		if value != 0 {
			return int64(value)
		}
		return int64(otherwise)
	}
	whole := func(value, otherwise int) int {
		if value != 0 {
			return value
		}
		return otherwise
	}
	cpu := l.CPU
	if cpu == 0 {
		cpu = usual.CPU
	}
	milli := -1 // what is no number is out of bounds
	if cpu > 0 && cpu < jail.MaxMilliCPU {
		milli = int(math.Round(cpu * 1000))
	}
	tmp := or(l.Tmp, usual.Tmp)
	return jail.Limits{
		Memory: or(l.Memory, usual.Memory), MilliCPU: milli, Tasks: whole(l.Tasks, usual.Tasks), Disk: tmp, SharedMemory: tmp,
		Files: whole(l.Files, usual.Files), WallClock: ttl,
	}
}
