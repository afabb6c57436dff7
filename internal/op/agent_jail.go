package op

import (
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
)

// AgentJail is the jail that is kept for an agent.
type AgentJail struct {
	Driver   string     `json:"driver" enum:"linux,docker"`
	Source   string     `json:"source" doc:"the template, or the image"`
	Phase    jail.Phase `json:"phase" enum:"starting,running,waiting,ended,stopped,failed"`
	Name     string     `json:"jail,omitempty" doc:"name of the current jail; it changes with every start"`
	Address  string     `json:"address,omitempty"`
	PID      int        `json:"pid,omitempty"`
	Since    time.Time  `json:"since" doc:"since when it is in the phase"`
	Restarts int        `json:"restarts" doc:"how often it was restarted since the declaration was changed"`
	Crashes  int        `json:"crash_loop,omitzero" doc:"how often in a row the program ended soon after its start, in a crash loop"`
	Restart  string     `json:"restart,omitempty" enum:"always,on-failure,never"`
	Next     time.Time  `json:"next,omitzero" doc:"when an agent that waits is started again"`
	Exit     *AgentExit `json:"exit,omitempty" doc:"how the previous run ended"`
	Code     string     `json:"code,omitempty" doc:"code of the problem"`
	Problem  string     `json:"problem,omitempty" doc:"why the jail could not be made"`
	Hint     string     `json:"hint,omitempty"`
	Limits   JailLimits `json:"limits"`
	Usage    *JailUsage `json:"usage,omitempty"`
}

// AgentExit says how the program of a jail ended.
type AgentExit struct {
	Code   int              `json:"code" doc:"its status, or -1 when it is not known"`
	Signal string           `json:"signal,omitempty"`
	Cause  jail.Cause       `json:"cause"`
	Hit    []jail.LimitName `json:"hit,omitempty" doc:"limits that the jail had reached"`
	At     time.Time        `json:"at"`
}

// Words say how it ended, as [jail.Exit.Words] does.
func (e AgentExit) Words() string {
	return jail.Exit{Code: e.Code, Signal: e.Signal, Cause: e.Cause, Hit: e.Hit}.Words()
}

// JailLimits are what a jail may have.
type JailLimits struct {
	Memory int64   `json:"memory_bytes"`
	CPU    float64 `json:"cpu"`
	Tasks  int     `json:"tasks"`
	Tmp    int64   `json:"tmp_bytes"`
	State  int64   `json:"state_bytes,omitempty"`
	Files  int     `json:"files"`
}

// JailUsage is what a jail uses now.
type JailUsage struct {
	Memory     int64            `json:"memory_bytes"`
	MemoryPeak int64            `json:"memory_peak_bytes"`
	CPUSeconds float64          `json:"cpu_seconds"`
	Tasks      int              `json:"tasks"`
	Disk       int64            `json:"disk_bytes"`
	Files      int              `json:"open_files"`
	Hit        []jail.LimitName `json:"hit,omitempty"`
}

// JailOf is a jail that is kept as it is answered.
func JailOf(k jail.KeptStatus, now time.Time) AgentJail {
	out := AgentJail{
		Driver: "linux", Source: k.Spec.Template, Phase: k.Phase, Name: string(k.Jail), PID: k.PID, Since: k.Since, Restarts: k.Restarts, Crashes: k.CrashLoop(now),
		Restart: string(k.Restart), Next: k.Next, Code: k.Code, Problem: k.Problem, Hint: k.Hint,
		Limits: JailLimits{Memory: k.Spec.Limits.Memory, CPU: float64(k.Spec.Limits.MilliCPU) / 1000, Tasks: k.Spec.Limits.Tasks,
			Tmp: k.Spec.Limits.Disk, Files: k.Spec.Limits.Files},
	}
	if k.Spec.Image != "" {
		out.Driver, out.Source = "docker", k.Spec.Image
	}
	if k.Addr.IsValid() {
		out.Address = k.Addr.String()
	}
	if k.Spec.Agent != nil {
		out.Limits.State = k.Spec.Agent.State
	}
	if e := k.Exit; e != nil {
		out.Exit = &AgentExit{Code: e.Code, Signal: e.Signal, Cause: e.Cause, Hit: e.Hit, At: e.At}
	}
	if u := k.Usage; u != nil {
		out.Usage = &JailUsage{Memory: u.MemoryBytes, MemoryPeak: u.MemoryPeak, CPUSeconds: u.CPU.Seconds(), Tasks: u.Tasks, Disk: u.DiskBytes,
			Files: u.OpenFiles, Hit: u.Hit}
	}
	return out
}

// CrashLoop is how it is with an agent whose program ends over and over.
func (j AgentJail) CrashLoop() string {
	text := fmt.Sprintf("crash loop (%d times", j.Crashes)
	if j.Exit != nil {
		text += ", last: " + j.Exit.Words()
	}
	return text + ")"
}

// pairs are what people read of it.
func (j AgentJail) pairs() [][2]any {
	var last, problem, state any = "", "", ""
	if e := j.Exit; e != nil {
		words := Joined{e.Words()}
		if !e.At.IsZero() {
			words = append(words, ", ", e.At)
		}
		last = words
	}
	if j.Problem != "" {
		problem = j.Problem + " (" + j.Code + ")"
	}
	if j.Limits.State > 0 {
		state = Bytes(j.Limits.State)
	}
	memory, cpu, tasks, hit := Joined{Bytes(j.Limits.Memory)}, fmt.Sprintf("%g cores", j.Limits.CPU), Joined{j.Limits.Tasks}, ""
	if u := j.Usage; u != nil {
		memory = Joined{Bytes(u.Memory), " of ", Bytes(j.Limits.Memory), ", at most ", Bytes(u.MemoryPeak), " so far"}
		cpu += fmt.Sprintf(", %.1f s used", u.CPUSeconds)
		tasks, hit = Joined{u.Tasks, " of ", j.Limits.Tasks}, commas(u.Hit)
	}
	return [][2]any{{"driver", j.Driver}, {"made of", j.Source}, {"jail", j.Name}, {"address", j.Address}, {"since", Age(j.Since)}, {"restarts", j.Restarts},
		{"next start", when(j.Next)}, {"last exit", last}, {"problem", problem}, {"hint", j.Hint}, {"memory", memory}, {"processor", cpu}, {"tasks", tasks},
		{"/tmp", Bytes(j.Limits.Tmp)}, {"/state", state}, {"limits hit", hit}}
}
