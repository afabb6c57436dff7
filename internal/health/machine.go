package health

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
)

const (
	// machineAge is how long an answer about the machine is good, and orphansAge one about what should not be there: looking
	// for that goes through everything that jails have.
	machineAge, orphansAge = 5 * time.Second, 30 * time.Second
	// maxOrphans bounds how many of them are told.
	maxOrphans = 100
)

// hostLimit bounds a question to the host daemon that somebody waits for.
const hostLimit = 2 * time.Second

// Machine is how the host is doing.
type Machine struct {
	// Reachable says that the host daemon answers; without it only the numbers of this process's own view are there.
	Reachable bool `json:"reachable" doc:"the host daemon answers"`
	// HostVersion is that of the host daemon.
	HostVersion string `json:"host_version,omitempty"`
	// Installation is what everything of it carries, and Since when the host daemon was started.
	Installation string    `json:"installation,omitempty"`
	HostSince    time.Time `json:"host_since,omitzero"`
	Jails        int       `json:"jails"`
	MaxJails     int       `json:"max_jails,omitempty"`
	Load         float64   `json:"load" doc:"load average of the last minute"`
	Cores        int       `json:"cores"`
	// MemoryTotal and MemoryFree are in bytes; zero when the system does not say.
	MemoryTotal int64 `json:"memory_total,omitempty"`
	MemoryFree  int64 `json:"memory_free,omitempty"`
	// DiskTotal and DiskFree are of the data folder.
	DiskTotal int64      `json:"disk_total,omitempty"`
	DiskFree  int64      `json:"disk_free,omitempty"`
	Templates []Template `json:"templates,omitempty"`
	// Orphans are traces of jails that should not be there: `clawjail reap` removes them.
	Orphans []string `json:"stray,omitempty" doc:"remains of jails that should not be there, at most 100"`
}

// Template is a template as the host has it.
type Template struct {
	Name    string    `json:"name"`
	Digest  string    `json:"digest,omitempty"`
	BuiltAt time.Time `json:"built_at,omitzero"`
	Problem string    `json:"problem,omitempty" doc:"why it cannot be used"`
	// Again is the command that builds it again. It is empty where it is not known what it was made of.
	Again string `json:"-"`
}

// Host is what is asked of the host daemon about the machine. *hostd.Client answers it.
type Host interface {
	Info(ctx context.Context) (hostd.Info, error)
	Templates(ctx context.Context) ([]hostd.Template, error)
	Reap(ctx context.Context, o jail.ReapOptions) (jail.ReapReport, error)
}

// Watch says how the host is doing, and asks no more often than it must. A caller that comes while it asks waits for the same answer.
type Watch struct {
	host Host
	data string // the folder whose disk counts
	proc string // /proc
	now  func() time.Time
	log  *slog.Logger

	asking  chan struct{} // holds one while it is asked
	mu      sync.Mutex
	last    Machine
	at      time.Time
	orphans []string
	reaped  time.Time
}

// NewWatch makes one. data is the folder whose disk counts. A log that is nil says nothing.
func NewWatch(host Host, data string, now func() time.Time, log *slog.Logger) *Watch {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Watch{host: host, data: data, proc: "/proc", now: now, log: log, asking: make(chan struct{}, 1)}
}

// Look is how the host is doing, as of some seconds ago at most.
func (m *Watch) Look(ctx context.Context) (Machine, error) {
	if known, fresh := m.known(); fresh {
		return known, nil
	}
	select {
	case m.asking <- struct{}{}:
		defer func() { <-m.asking }()
	case <-ctx.Done():
		return Machine{}, context.Cause(ctx)
	}
	if known, fresh := m.known(); fresh {
		return known, nil
	}
	// One answer is for all who wait: a caller that goes away does not spoil it for the others.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostLimit)
	defer cancel()
	out := m.ask(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last, m.at = out, m.now()
	return out, nil
}

func (m *Watch) known() (Machine, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last, !m.at.IsZero() && m.now().Sub(m.at) < machineAge
}

// ask is called by one at a time. A value that cannot be known is left out; that the host daemon does not answer is one of the answers.
func (m *Watch) ask(ctx context.Context) Machine {
	out := Machine{Cores: runtime.NumCPU()}
	out.Load = m.load()
	out.MemoryTotal, out.MemoryFree = m.memory()
	var disk unix.Statfs_t
	if err := unix.Statfs(m.data, &disk); err == nil {
		out.DiskTotal, out.DiskFree = int64(disk.Blocks)*int64(disk.Bsize), int64(disk.Bavail)*int64(disk.Bsize)
	}
	info, err := m.host.Info(ctx)
	if err == nil {
		out.Templates, err = m.templates(ctx)
	}
	if err != nil {
		m.log.Warn("ask the host daemon how it is doing", "error", err)
		return out
	}
	out.Reachable, out.Jails, out.MaxJails = true, info.Jails, info.MaxJails
	out.HostVersion, out.Installation, out.HostSince = info.Version, string(info.Installation), info.Started
	out.Orphans = m.stray(ctx)
	return out
}

func (m *Watch) templates(ctx context.Context) ([]Template, error) {
	all, err := m.host.Templates(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Template, len(all))
	for n, t := range all {
		out[n] = Template{Name: t.Name, Digest: t.Digest, BuiltAt: t.Created, Problem: t.Problem, Again: t.Again}
	}
	return out, nil
}

// stray is what a reaper would remove. Nothing is removed here.
func (m *Watch) stray(ctx context.Context) []string {
	if now := m.now(); m.reaped.IsZero() || now.Sub(m.reaped) >= orphansAge {
		report, err := m.host.Reap(ctx, jail.ReapOptions{DryRun: true})
		if err != nil {
			m.log.Warn("look for what should not be on the machine", "error", err)
			return m.orphans
		}
		m.reaped, m.orphans = now, nil
		for _, f := range report.Findings[:min(len(report.Findings), maxOrphans)] {
			m.orphans = append(m.orphans, findingText(f))
		}
	}
	return m.orphans
}

func findingText(f jail.Finding) string {
	what := "jail " + string(f.Name)
	if f.Resource != nil {
		what = string(f.Resource.Kind) + " " + f.Resource.ID
	}
	return fmt.Sprintf("%s (%s)", what, f.Reason)
}

// load is that of the last minute, zero where the system does not say (proc(5)).
func (m *Watch) load() float64 {
	text, err := os.ReadFile(filepath.Join(m.proc, "loadavg"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64) // zero for what is no number
	return load
}

// memory is what there is, and what programs could have of it without any being swapped out (proc(5)).
func (m *Watch) memory() (total, free int64) {
	text, err := os.ReadFile(filepath.Join(m.proc, "meminfo"))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "MemTotal":
			total = kilobytes << 10
		case "MemAvailable":
			free = kilobytes << 10
		}
	}
	return total, free
}
