package jail

import (
	"context"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/ringlog"
)

// Kept is a jail that is kept running: what is declared of it. There is one of each agent.
type Kept struct {
	// Spec is of LifetimeKeep and names its agent.
	Spec    Spec    `json:"spec"`
	Restart Restart `json:"restart"`
	// Revision is a mark that the declaring caller chooses, to see later what is in force. At most 100 characters of ASCII.
	Revision string `json:"revision,omitempty"`
	// Stopped keeps everything of it but the jail.
	Stopped bool `json:"stopped,omitempty"`
}

// Restart says when a program that has ended is started again, after a pause that grows from one second to a minute and
// begins anew when it has run for ten minutes. After a restart of the host all of them are started, whatever it says.
type Restart string

// The restart policies.
const (
	RestartAlways    Restart = "always"
	RestartOnFailure Restart = "on-failure" // also when it is not known how the program ended
	RestartNever     Restart = "never"
)

// Phase is what a kept jail is doing.
type Phase string

// The phases.
const (
	PhaseStarting Phase = "starting"
	PhaseRunning  Phase = "running"
	PhaseWaiting  Phase = "waiting" // to be started again
	PhaseEnded    Phase = "ended"   // and not started again, by its policy
	PhaseStopped  Phase = "stopped" // on somebody's word
	PhaseFailed   Phase = "failed"  // it could not be made; Problem says why, and it is tried again like one that ended
)

// KeptStatus is a kept jail as it is.
type KeptStatus struct {
	Kept
	Phase Phase `json:"phase"`
	// Jail and Addr are those of the jail that is there now. They change with every start.
	Jail  Name       `json:"jail,omitempty"`
	Addr  netip.Addr `json:"addr,omitzero"`
	PID   int        `json:"pid,omitempty"`
	Since time.Time  `json:"since"` // of the phase
	// Restarts counts since the declaration was changed.
	Restarts int `json:"restarts"`
	// Crashes are the runs in a row that ended within [SteadyRun] and were followed by another one.
	Crashes int       `json:"crashes,omitzero"`
	Exit    *Exit     `json:"exit,omitempty"` // of the run before
	Next    time.Time `json:"next,omitzero"`  // of the next start, while waiting
	Code    string    `json:"code,omitempty"` // of Problem
	Problem string    `json:"problem,omitempty"`
	Hint    string    `json:"hint,omitempty"`
	Usage   *Usage    `json:"usage,omitempty"`
}

// SteadyRun is how long a program runs until its end is no crash, and crashLoop how many in a row are a habit.
const (
	SteadyRun = 10 * time.Minute
	crashLoop = 3
)

// CrashLoop is how often in a row the program has ended soon after its start, where that is a habit; else it is 0. A
// program that has run steadily since is in no loop any more.
func (k KeptStatus) CrashLoop(now time.Time) int {
	if k.Crashes < crashLoop || k.Phase != PhaseWaiting && k.Phase != PhaseStarting && k.Phase != PhaseRunning ||
		k.Phase == PhaseRunning && now.Sub(k.Since) >= SteadyRun {
		return 0
	}
	return k.Crashes
}

// Words say how a program ended, to stand behind a colon.
func (x Exit) Words() string {
	text := "status " + strconv.Itoa(x.Code)
	switch {
	case x.Cause == CauseMemory:
		text = "out of memory"
	case x.Cause == CauseWallClock:
		text = "its time was over"
	case x.Signal != "":
		text = "signal " + x.Signal
	case x.Code < 0:
		text = "nobody knows how"
	}
	var hit []string
	for _, limit := range x.Hit {
		if limit != LimitMemory || x.Cause != CauseMemory {
			hit = append(hit, limit.Words())
		}
	}
	if len(hit) > 0 {
		text += ", at its limit of " + strings.Join(hit, " and ")
	}
	return text
}

// Stream is one of the two that a jail prints to.
type Stream string

// The streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// LogRequest asks for what an agent's jails have printed. Offsets count bytes since the agent was declared first, over
// all its jails; the oldest bytes go when there are more than are kept.
type LogRequest struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
	Stream Stream `json:"stream"`
	// Offset is where to begin. A negative one counts from the end.
	Offset int64 `json:"offset"`
	// Limit bounds the answer, in bytes; 0 is 256 KiB, the most is 4 MiB.
	Limit int `json:"limit,omitempty"`
	// Wait is how long to wait for something to be there, at most a minute.
	Wait time.Duration `json:"wait,omitempty"`
	// Times asks for when it was printed, too.
	Times bool `json:"times,omitempty"`
}

// LogChunk is a piece of what was printed.
type LogChunk struct {
	Data   []byte `json:"data"`
	Offset int64  `json:"offset"` // of Data[0]; more than was asked for when that is not kept any more
	First  int64  `json:"first"`  // of the oldest byte that is kept
	End    int64  `json:"end"`    // behind the newest
	// Marks are when it was printed, where that was asked for and is known.
	Marks []ringlog.Mark `json:"marks,omitempty"`
}

// LogRun is a part of a piece that was printed at one time, which is zero where it is not known.
type LogRun struct {
	Data   []byte
	Offset int64
	At     time.Time
}

// Runs cuts a piece where its times change. There is always one: also a piece without data says where the log is.
func (c LogChunk) Runs() []LogRun {
	out := []LogRun{{Data: c.Data, Offset: c.Offset}}
	for _, m := range c.Marks {
		last := &out[len(out)-1]
		at := time.Unix(0, m.At)
		cut := m.Offset - last.Offset
		switch {
		case cut < 0 || cut >= int64(len(last.Data)):
		case cut == 0:
			last.At = at
		default:
			rest := LogRun{last.Data[cut:], m.Offset, at}
			last.Data = last.Data[:cut]
			out = append(out, rest)
		}
	}
	return out
}

// DropOptions say what stays when a kept jail goes.
type DropOptions struct {
	KeepState bool `json:"keep_state,omitempty"`
	KeepLog   bool `json:"keep_log,omitempty"`
	// RemoveWorkspace removes the folders beneath the roots that the driver made for this agent, and that no other agent has had.
	RemoveWorkspace bool `json:"remove_workspace,omitempty"`
}

// Keeper keeps jails running. The host daemon is one, and so is its client.
type Keeper interface {
	// Keep declares a jail. A jail as it is declared already is left alone, and one that differs is started anew; Revision alone, and
	// Stopped, need no new jail. An empty token leaves the one that is there, and is an error when there is none. It
	// returns when the declaration is on the disk and the jail runs, or could not be started: the error says why, and
	// the declaration stays.
	Keep(ctx context.Context, k Kept, token string) error
	// Drop ends a jail and forgets what was declared. A jail that is not there is dropped already; a volume or log that an
	// earlier Drop kept is removed by one that does not keep it.
	Drop(ctx context.Context, tenant, name string, o DropOptions) error
	// Kept lists what is declared, by key, when it is of another version than after; else it waits for a change until the
	// context ends or a minute has passed. Version 0 is never that of a listing. Usage is measured when usage is asked for.
	Kept(ctx context.Context, after uint64, usage bool) (version uint64, all []KeptStatus, err error)
	// CheckKept says what would keep each from being made, and makes nothing. The errors are in the order of all.
	CheckKept(ctx context.Context, all []Kept) ([]error, error)
	// SetToken replaces the token of a kept jail, also of one that runs, without a restart.
	SetToken(ctx context.Context, tenant, name, token string) error
	// HasToken says whether there is a token, and whether the jail that runs has that one in its folder.
	HasToken(ctx context.Context, tenant, name string) (bool, error)
	// RestartKept ends the jail and makes a new one at once.
	RestartKept(ctx context.Context, tenant, name string) error
	ReadLog(ctx context.Context, r LogRequest) (LogChunk, error)
	// Type writes to the stdin of the jail that runs. Data that does not fit into its pipe is an error after five seconds, which says
	// how much did.
	Type(ctx context.Context, tenant, name string, data []byte) (int, error)
	// ExecIn starts a program in a jail, whosever it is; the caller has the stdio. The context is for the start alone: the
	// program ends by itself, by Running.End, or with the caller's process.
	ExecIn(ctx context.Context, name Name, p Program) (*Running, error)
	// DialIn connects to a port on the loopback of a jail's own network.
	DialIn(ctx context.Context, name Name, port uint16) (*os.File, error)
}

// Running is a program that ExecIn started.
type Running struct {
	Stdio *Stdio
	// Wait blocks until the program has ended, with everything that it started. After End its error is context.Canceled.
	Wait func(ctx context.Context) (Exit, error)
	// End ends it. It may be repeated.
	End func()
}
