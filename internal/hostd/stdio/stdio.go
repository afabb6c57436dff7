// Package stdio keeps what jails that are kept print, and hands on what is typed to them. It is a jail.Console.
//
// A jail's stdio is three named pipes below a folder of root's. The jail gets descriptors of them, never the folder, and
// they are open for reading and writing both, stdin too: the pipes live as long as the jail does and neither side sees an
// end meanwhile, whatever becomes of the host daemon. The output is moved by the kernel into bounded logs, one folder
// per agent, that go on from jail to jail.
//
// Which lines can be lost: none while the jail lives, also when the host daemon is killed. A jail that prints more than its
// pipe holds while the host daemon is away waits for it. Lost is what stands in a pipe (256 KiB at most) when the jail
// itself ends before the host daemon is back, what a full disk did not take, and what is older than is kept.
package stdio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Options configure a Console. Those without a default are required.
type Options struct {
	Installation jail.Installation
	// Dir is the folder of the pipes, on a file system that does not outlive the host, and Logs that of the logs. Both are
	// made (0700) where they are missing, and only this process's user may write above them.
	Dir, Logs string
	// Keep is how many bytes of each stream are kept.
	Keep int64
	Log  *slog.Logger // default: nothing is logged
	// Patience is how long the last words of a jail may take, and how long Type waits for room. Default 5 s.
	Patience time.Duration
}

// Validate fills in defaults and reports everything that is wrong at once.
func (o *Options) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("stdio: %s is missing", what))
		}
	}
	need(o.Installation != "", "the installation")
	need(filepath.IsAbs(o.Dir), "the folder of the pipes")
	need(filepath.IsAbs(o.Logs), "the folder of the logs")
	need(o.Keep > 0, "how much is kept")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Patience = cmp.Or(o.Patience, 5*time.Second)
	need(o.Patience > 0, "the patience, which must be positive,")
	return errors.Join(errs...)
}

// The pipes of a jail.
const (
	pipeIn, pipeOut, pipeErr = "in", "out", "err"
	// pipeSize is how much a jail can print while the pipe is not read, where the kernel allows it.
	pipeSize = 256 << 10
)

// Console keeps what jails print. Its methods may be called concurrently.
type Console struct {
	Options

	mu       sync.Mutex
	sessions map[jail.Name]*session
	logs     map[string]*logs // by the agent's key
	closed   bool
}

// session is the stdio of one jail. The pumps own the files of the pipes.
type session struct {
	agent jail.Agent
	pipes []*os.File // our ends of stdout and stderr
	pumps sync.WaitGroup
}

var _ jail.Console = (*Console)(nil)

// New makes a Console, and the folders where they are missing.
func New(o Options) (*Console, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	for _, dir := range []string{o.Dir, o.Logs} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make a folder of the console: %w", err)
		}
	}
	return &Console{Options: o, sessions: map[jail.Name]*session{}, logs: map[string]*logs{}}, nil
}

// Close stops keeping. Jails that print wait when their pipes are full; the next Console goes on with Resume.
func (c *Console) Close() error {
	c.mu.Lock()
	c.closed = true
	all := c.sessions
	c.sessions = map[jail.Name]*session{}
	c.mu.Unlock()
	var errs []error
	for _, s := range all {
		s.interrupt()
		s.pumps.Wait()
		errs = append(errs, c.release(s.agent))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, l := range c.logs { // of writers that were not closed
		errs = append(errs, l.close())
		delete(c.logs, key)
	}
	return errors.Join(errs...)
}

// Open implements jail.Console.
func (c *Console) Open(ctx context.Context, name jail.Name, a jail.Agent) (ends [3]*os.File, err error) {
	if err := errors.Join(c.check(name), ctx.Err()); err != nil {
		return ends, err
	}
	defer func() {
		if err != nil {
			closeAll(ends[:])
			err = errors.Join(fmt.Errorf("open the console of jail %s: %w", name, err), c.remove(name))
			ends = [3]*os.File{}
		}
	}()
	// The folder is of a jail that was not finished, or of nobody: names are not used twice at a time.
	if err := c.remove(name); err != nil {
		return ends, err
	}
	if err := os.Mkdir(c.folder(name), 0o700); err != nil {
		return ends, err
	}
	for i, pipe := range []string{pipeIn, pipeOut, pipeErr} {
		path := filepath.Join(c.folder(name), pipe)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return ends, &os.PathError{Op: "make a pipe", Path: path, Err: err}
		}
		// A program expects stdio that blocks, and os.OpenFile would make it otherwise.
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return ends, &os.PathError{Op: "open", Path: path, Err: err}
		}
		ends[i] = os.NewFile(uintptr(fd), path)
		enlarge(fd, pipeSize)
	}
	return ends, c.begin(name, a)
}

// Resume implements jail.Console.
func (c *Console) Resume(ctx context.Context, name jail.Name, a jail.Agent) error {
	if err := errors.Join(c.check(name), ctx.Err()); err != nil {
		return err
	}
	c.mu.Lock()
	_, here := c.sessions[name]
	c.mu.Unlock()
	if here {
		return nil
	}
	if err := c.begin(name, a); err != nil {
		return fmt.Errorf("go on with the console of jail %s: %w", name, err)
	}
	return nil
}

// begin opens our ends and starts to keep what comes.
func (c *Console) begin(name jail.Name, a jail.Agent) (err error) {
	s := &session{agent: a}
	for _, pipe := range []string{pipeOut, pipeErr} {
		f, err := c.openPipe(name, pipe, os.O_RDONLY)
		if err != nil {
			closeAll(s.pipes)
			return err
		}
		s.pipes = append(s.pipes, f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.sessions[name] != nil {
		closeAll(s.pipes)
		return errors.Join(fs.ErrClosed, errors.New("the console is closed, or has this jail"))
	}
	l, err := c.acquire(a)
	if err != nil {
		closeAll(s.pipes)
		return err
	}
	c.sessions[name] = s
	for i, to := range []logFile{l.stdout, l.stderr} {
		from := s.pipes[i]
		s.pumps.Go(func() { c.pump(name, from, to) })
	}
	return nil
}

// pump moves what comes until all writers have closed the pipe, or it is interrupted.
func (c *Console) pump(name jail.Name, from *os.File, to logFile) {
	defer from.Close() // only read from
	err := to.Drain(from)
	if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, fs.ErrClosed) {
		c.Log.Error("keep what a jail prints", "jail", name, "error", err)
	}
}

// interrupt ends the pumps without waiting for the end of what comes.
func (s *session) interrupt() {
	for _, f := range s.pipes {
		_ = f.SetReadDeadline(time.Unix(1, 0)) // a pump that has ended has closed its file
	}
}

// Finish implements jail.Console. The jail's processes are gone, so the pipes end when they are empty.
func (c *Console) Finish(ctx context.Context, name jail.Name) error {
	if err := c.check(name); err != nil {
		return err
	}
	c.mu.Lock()
	s := c.sessions[name]
	delete(c.sessions, name)
	c.mu.Unlock()
	var err error
	if s != nil {
		c.untilEmpty(ctx, s)
		err = c.release(s.agent)
	}
	if err := errors.Join(err, c.remove(name)); err != nil {
		return fmt.Errorf("finish the console of jail %s: %w", name, err)
	}
	return nil
}

// untilEmpty waits for the pumps. Another process that has the pipe open must not hold up the end of the jail.
func (c *Console) untilEmpty(ctx context.Context, s *session) {
	ctx, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	defer context.AfterFunc(ctx, s.interrupt)()
	s.pumps.Wait()
}

// List implements jail.Console.
func (c *Console) List(ctx context.Context) ([]jail.HostResource, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("list the consoles: %w", err)
	}
	var out []jail.HostResource
	for _, e := range entries {
		if name := jail.Name(e.Name()); name.Belongs(c.Installation) {
			out = append(out, jail.HostResource{Kind: jail.ResourceStaged, Name: name, Index: -1, ID: c.folder(name)})
		}
	}
	return out, nil
}

// Type writes to the stdin of a jail. Data that does not fit into the pipe in time is an error, and n says how much did.
func (c *Console) Type(ctx context.Context, name jail.Name, data []byte) (n int, err error) {
	if err := c.check(name); err != nil {
		return 0, err
	}
	f, err := c.openPipe(name, pipeIn, os.O_WRONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, problem.New(problem.Conflict, "start it first", "jail %s does not run", name)
	case errors.Is(err, unix.ENXIO):
		return 0, problem.New(problem.Conflict, "", "the program in jail %s has closed its stdin", name)
	case err != nil:
		return 0, fmt.Errorf("type to jail %s: %w", name, err)
	}
	defer f.Close() // a pipe's end has nothing to flush
	if err := f.SetWriteDeadline(time.Now().Add(c.Patience)); err != nil {
		return 0, fmt.Errorf("type to jail %s: %w", name, err)
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Unix(1, 0)) })()
	n, err = f.Write(data)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return n, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, problem.New(problem.Timeout, "type the rest when the program reads its stdin",
			"the program in jail %s does not read: %d of %d bytes fit", name, n, len(data)).With("written", n)
	case err != nil:
		return n, fmt.Errorf("type to jail %s: %w", name, err)
	}
	return n, nil
}

func (c *Console) check(name jail.Name) error {
	_, err := jail.ParseName(string(name), c.Installation)
	return err
}

func (c *Console) folder(name jail.Name) string { return filepath.Join(c.Dir, string(name)) }

// openPipe opens our end of a pipe, and nothing that somebody has put into its place.
func (c *Console) openPipe(name jail.Name, pipe string, flags int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(c.folder(name), pipe), flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().Type() != fs.ModeNamedPipe {
		err = fmt.Errorf("%s is not a pipe", f.Name())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// remove removes the pipes of a jail. It follows no link.
func (c *Console) remove(name jail.Name) error {
	if err := os.RemoveAll(c.folder(name)); err != nil {
		return fmt.Errorf("remove the console of jail %s: %w", name, err)
	}
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // pipes: nothing is lost
		}
	}
}
