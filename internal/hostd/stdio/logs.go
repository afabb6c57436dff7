package stdio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/ringlog"
)

type logFile = *ringlog.Log

// logs are the two logs of an agent, while somebody writes them.
type logs struct {
	stdout, stderr logFile
	users          int // jails
}

func (l *logs) close() error {
	var errs []error
	for _, f := range []logFile{l.stdout, l.stderr} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// maxLogs bounds the agents that there are logs of, and those of one tenant: also those that are gone may have left theirs.
const (
	maxLogs         = 4096
	maxLogsOfTenant = maxLogs * 4 / 5
)

// The bounds of one read.
const (
	readDefault = 256 << 10
	maxRead     = 4 << 20
	maxWait     = time.Minute
)

// acquire opens the logs of an agent for a jail, until release. c.mu is held.
func (c *Console) acquire(a jail.Agent) (*logs, error) {
	l, err := c.open(a)
	if err == nil {
		l.users++
	}
	return l, err
}

// open opens the logs of an agent, or finds those that are. c.mu is held.
func (c *Console) open(a jail.Agent) (_ *logs, err error) {
	if err := errors.Join(jail.ValidAgentName(a.Tenant), jail.ValidAgentName(a.Name)); err != nil {
		return nil, err
	}
	if l := c.logs[a.Key()]; l != nil {
		return l, nil
	}
	dir := c.logFolder(a)
	if err := c.makeFolder(dir); err != nil {
		return nil, fmt.Errorf("make the logs of %s: %w", a.Key(), err)
	}
	l := &logs{}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	o := ringlog.Options{Keep: c.Keep}
	if l.stdout, err = ringlog.Open(filepath.Join(dir, string(jail.Stdout)), o); err != nil {
		return nil, err
	}
	if l.stderr, err = ringlog.Open(filepath.Join(dir, string(jail.Stderr)), o); err != nil {
		return nil, err
	}
	c.logs[a.Key()] = l
	return l, nil
}

// makeFolder makes the folder of an agent's logs where it is missing, when there are not too many. c.mu is held.
func (c *Console) makeFolder(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := os.Open(c.Logs)
	if err == nil {
		var names []string
		names, err = all.Readdirnames(maxLogs + 1)
		_ = all.Close() // only read from
		tenant, ofTenant := jail.TenantOf(filepath.Base(dir)), 0
		for _, name := range names {
			if jail.TenantOf(name) == tenant {
				ofTenant++
			}
		}
		if err == nil && (len(names) > maxLogs || ofTenant > maxLogsOfTenant) {
			err = problem.New(problem.PoolExhausted, "remove what agents have left: clawjail agent remove NAME",
				"no more logs of agents can be kept: there are %d, %d of them of tenant %s", maxLogs, maxLogsOfTenant, tenant)
		}
	}
	if err != nil {
		return errors.Join(err, os.Remove(dir))
	}
	return nil
}

// release says that a jail is done with the logs of its agent.
func (c *Console) release(a jail.Agent) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.logs[a.Key()]
	if l == nil {
		return nil
	}
	if l.users--; l.users > 0 {
		return nil
	}
	delete(c.logs, a.Key())
	return l.close()
}

func (c *Console) logFolder(a jail.Agent) string { return filepath.Join(c.Logs, a.Key()) }

// ReadLog reads what an agent's jails have printed. The code not_found says that there is nothing of such an agent.
func (c *Console) ReadLog(ctx context.Context, r jail.LogRequest) (jail.LogChunk, error) {
	a := jail.Agent{Tenant: r.Tenant, Name: r.Name}
	if err := errors.Join(jail.ValidAgentName(a.Tenant), jail.ValidAgentName(a.Name)); err != nil {
		return jail.LogChunk{}, err
	}
	if r.Stream != jail.Stdout && r.Stream != jail.Stderr {
		return jail.LogChunk{}, problem.New(problem.BadRequest, "the streams are stdout and stderr", "there is no stream %.20q", string(r.Stream))
	}
	if r.Limit == 0 {
		r.Limit = readDefault
	}
	if r.Limit < 0 || r.Limit > maxRead || r.Wait < 0 || r.Wait > maxWait {
		return jail.LogChunk{}, problem.New(problem.BadRequest, "read at most 4 MiB, and wait at most a minute", "so much of a log cannot be asked for at once")
	}
	if _, err := os.Lstat(c.logFolder(a)); err != nil {
		return jail.LogChunk{}, problem.Wrap(err, problem.NotFound, "`clawjail agent ls` lists the agents", "nothing was ever printed by an agent %s", a.Key())
	}
	log := c.reader(a, r.Stream)
	chunk, err := log.Read(ctx, r.Offset, r.Limit, r.Wait)
	if err != nil {
		return jail.LogChunk{}, fmt.Errorf("read the log of %s: %w", a.Key(), err)
	}
	out := jail.LogChunk{Data: chunk.Data, Offset: chunk.Offset, First: chunk.First, End: chunk.End}
	if r.Times {
		out.Marks = log.Marks(chunk)
	}
	return out, nil
}

// reader is that of the log that is open, which tells at once what comes; else that of the files.
func (c *Console) reader(a jail.Agent, s jail.Stream) ringlog.Reader {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.logs[a.Key()]
	switch {
	case l != nil && s == jail.Stdout:
		return l.stdout
	case l != nil:
		return l.stderr
	}
	return ringlog.OpenReader(filepath.Join(c.logFolder(a), string(s)))
}

// RemoveLog removes what was kept of an agent that has no jail. A log that is not there is removed already.
func (c *Console) RemoveLog(_ context.Context, a jail.Agent) error {
	if err := errors.Join(jail.ValidAgentName(a.Tenant), jail.ValidAgentName(a.Name)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.logs[a.Key()]; l != nil {
		if l.users > 0 {
			return problem.New(problem.Conflict, "end its jail first", "the log of %s is being written", a.Key())
		}
		delete(c.logs, a.Key())
		if err := l.close(); err != nil {
			return err
		}
	}
	dir := c.logFolder(a)
	err := errors.Join(ringlog.Remove(filepath.Join(dir, string(jail.Stdout))), ringlog.Remove(filepath.Join(dir, string(jail.Stderr))))
	if gone := os.Remove(dir); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	if err != nil {
		return fmt.Errorf("remove the log of %s: %w", a.Key(), err)
	}
	return nil
}

// Writer returns what appends to the log of an agent whose jail has no pipes here, because an engine has them.
func (c *Console) Writer(a jail.Agent, s jail.Stream) (*Writer, error) {
	w := &Writer{c, a, s}
	_, err := w.log()
	return w, err
}

// Writer appends to one log of an agent.
type Writer struct {
	console *Console
	agent   jail.Agent
	stream  jail.Stream
}

func (w *Writer) log() (logFile, error) {
	w.console.mu.Lock()
	defer w.console.mu.Unlock()
	if w.console.closed {
		return nil, fs.ErrClosed
	}
	l, err := w.console.open(w.agent)
	if err != nil {
		return nil, err
	}
	if w.stream == jail.Stderr {
		return l.stderr, nil
	}
	return l.stdout, nil
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	for {
		l, err := w.log()
		if err != nil {
			return 0, err
		}
		// The last jail of the agent may have closed it in between.
		if n, err := l.Write(p); n > 0 || !errors.Is(err, fs.ErrClosed) {
			return n, err
		}
	}
}

// End is how many bytes were ever written; 0 when the log cannot be opened.
func (w *Writer) End() int64 {
	l, err := w.log()
	if err != nil {
		return 0
	}
	return l.End()
}
