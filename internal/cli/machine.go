package cli

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

	"github.com/clawjail/clawjail/internal/console"
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

// hostView is what is asked of the host daemon about the machine. *hostd.Client answers it.
type hostView interface {
	Info(ctx context.Context) (hostd.Info, error)
	Templates(ctx context.Context) ([]hostd.Template, error)
	Reap(ctx context.Context, o jail.ReapOptions) (jail.ReapReport, error)
}

// machine says how the host is doing, and asks no more often than it must. Who comes while it asks waits for the same answer.
type machine struct {
	host hostView
	data string // the folder whose disk counts
	proc string // /proc
	now  func() time.Time
	log  *slog.Logger

	asking  chan struct{} // holds one while it is asked
	mu      sync.Mutex
	last    console.Machine
	at      time.Time
	orphans []string
	reaped  time.Time
}

func newMachine(host hostView, data string, now func() time.Time, log *slog.Logger) *machine {
	return &machine{host: host, data: data, proc: "/proc", now: now, log: log, asking: make(chan struct{}, 1)}
}

// look is of console.Options.
func (m *machine) look(ctx context.Context) (console.Machine, error) {
	if known, fresh := m.known(); fresh {
		return known, nil
	}
	select {
	case m.asking <- struct{}{}:
		defer func() { <-m.asking }()
	case <-ctx.Done():
		return console.Machine{}, context.Cause(ctx)
	}
	if known, fresh := m.known(); fresh {
		return known, nil
	}
	// What one asks for, all are told: who goes away does not spoil it for the others.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostLimit)
	defer cancel()
	out := m.ask(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last, m.at = out, m.now()
	return out, nil
}

func (m *machine) known() (console.Machine, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last, !m.at.IsZero() && m.now().Sub(m.at) < machineAge
}

// ask is called by one at a time. What cannot be known is left out; that the host daemon does not answer is one of the answers.
func (m *machine) ask(ctx context.Context) console.Machine {
	out := console.Machine{Cores: runtime.NumCPU()}
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
	out.Reachable, out.Jails = true, info.Jails
	out.Orphans = m.stray(ctx)
	return out
}

func (m *machine) templates(ctx context.Context) ([]console.MachineTemplate, error) {
	all, err := m.host.Templates(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]console.MachineTemplate, len(all))
	for n, t := range all {
		out[n] = console.MachineTemplate{Name: t.Name, Digest: t.Digest, BuiltAt: t.Created, Problem: t.Problem}
	}
	return out, nil
}

// stray is what a reaper would remove. Nothing is removed here.
func (m *machine) stray(ctx context.Context) []string {
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
	if f.Trace != nil {
		what = string(f.Trace.Kind) + " " + f.Trace.ID
	}
	return fmt.Sprintf("%s (%s)", what, f.Reason)
}

// load is that of the last minute, zero where the system does not say (proc(5)).
func (m *machine) load() float64 {
	text, err := os.ReadFile(filepath.Join(m.proc, "loadavg"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64) // zero for what is no number
	return load
}

// memory is what there is, and what programs could have of it without any being swapped out (proc(5)).
func (m *machine) memory() (total, free int64) {
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
