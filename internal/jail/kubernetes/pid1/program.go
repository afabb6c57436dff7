//go:build linux

package pid1

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/libp2p/go-yamux/v5"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/problem"
)

// run starts a program, replies that it runs, waits for its end, and replies with that. An error is of a program that was not started.
func (s *pod) run(st *yamux.Stream, r *shim.Run) error {
	streams, err := s.claim(r)
	if err != nil {
		return err
	}
	files, err := newStdio(r.Program.Wire)
	if err != nil {
		return err
	}
	started, err := s.start(r, files)
	files.closeTheirs()
	if err != nil {
		files.closeOurs()
		for _, one := range streams {
			_ = one.Reset()
		}
		return err
	}
	go files.feed(streams[0])
	var copying sync.WaitGroup
	copying.Go(func() { drain(streams[1], files.out) })
	copying.Go(func() { drain(streams[2], files.err) })
	if err := shim.WriteMessage(st, shim.Reply{PID: started.pid}); err != nil {
		started.end()
	}
	// The next message asks for the end, and so does the end of the stream.
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		var next shim.Request
		if err := shim.ReadMessage(st, &next); err == nil || !errors.Is(err, io.EOF) {
			started.end()
		}
		_, _ = io.Copy(io.Discard, st) // until the other side has everything
	}()
	exit, err := started.wait()
	switch {
	case st.Session().IsClosed(): // with that the pod ends, and says why
	case err != nil:
		s.decide(ExitFailed) // before the pod's own program ends by this
	case r.Main:
		s.decide(exit.Code)
	}
	if r.Main || err != nil {
		s.children.end(0)
	}
	last := shim.Reply{Exit: &exit}
	if err != nil {
		last = shim.Reply{Refused: shim.RefusalOf(err)}
	}
	_ = shim.WriteMessage(st, last) // it fails only when the control plane does not read any more
	copying.Wait()
	files.closeOurs()
	<-gone
	switch {
	case st.Session().IsClosed():
	case err != nil:
		s.o.say(err)
		s.finish(ExitFailed)
	case r.Main:
		s.finish(exit.Code)
	}
	return nil
}

// claim takes the streams of a program's stdio, when it may be started.
func (s *pod) claim(r *shim.Run) (streams [3]*yamux.Stream, err error) {
	if r == nil || len(r.Program.Argv) == 0 || !filepath.IsAbs(r.Program.Argv[0]) || !filepath.IsAbs(r.Home) {
		return streams, problem.New(problem.BadRequest, "", "there is no program, or no home directory")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.prepared {
		return streams, errUnprepared()
	}
	// The streams were opened before this request, but may be read later.
	s.wait(requestLimit, func() bool {
		return !slices.ContainsFunc(r.Stdio[:], func(id uint32) bool { return s.stdio[id] == nil })
	})
	if r.Main && s.main {
		return streams, problem.New(problem.Conflict, "", "the pod has its program already")
	}
	for n, id := range r.Stdio {
		if streams[n] = s.stdio[id]; streams[n] == nil || slices.Contains(r.Stdio[:n], id) {
			return streams, problem.New(problem.BadRequest, "", "there is no stream %d", id)
		}
	}
	for _, id := range r.Stdio {
		delete(s.stdio, id)
	}
	s.begun, s.main = true, s.main || r.Main
	return streams, nil
}

// stdio are the pipes of a program: its ends, by number, and those of this process.
type stdio struct {
	theirs []*os.File
	in     *os.File
	out    *os.File
	err    *os.File
}

func newStdio(wire jail.Wire) (f *stdio, err error) {
	f = &stdio{}
	defer func() {
		if err != nil {
			f.closeTheirs()
			f.closeOurs()
		}
	}()
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
		}
		return r, w
	}
	var in, out, errs *os.File
	in, f.in = pipe()
	f.out, out = pipe()
	f.err, errs = pipe()
	f.theirs = []*os.File{in, out, errs}
	if err != nil || wire != jail.WirePipe34 {
		return f, err
	}
	null, err := os.Open(os.DevNull)
	f.theirs = []*os.File{null, errs, errs, in, out}
	return f, err
}

func (f *stdio) closeTheirs() { closeAll(f.theirs...) }
func (f *stdio) closeOurs()   { closeAll(f.in, f.out, f.err) }

func closeAll(files ...*os.File) {
	for _, one := range files {
		if one != nil {
			_ = one.Close() // one may be there twice, or closed
		}
	}
}

func numbers(files []*os.File) []uintptr {
	out := make([]uintptr, len(files))
	for n, f := range files {
		out[n] = f.Fd()
	}
	return out
}

// feed gives a program its stdin.
func (f *stdio) feed(from *yamux.Stream) {
	_, err := io.Copy(f.in, from)
	if err != nil {
		_ = from.Reset() // the program reads no more
	}
	_ = errors.Join(f.in.Close(), from.Close())
}

// drain takes what a program prints.
func drain(to *yamux.Stream, from *os.File) {
	_, err := io.Copy(to, from)
	if err != nil {
		_ = to.Reset() // the other side does not read any more
	}
	_ = errors.Join(from.Close(), to.Close())
}

// started is a program that runs.
type started struct {
	pid  int
	wait func() (jail.Exit, error)
	end  func()
}

func (s *pod) start(r *shim.Run, files *stdio) (*started, error) {
	if err := errors.Join(stageHome(r.Home, r.HomeFiles), makeFolders(r.Make)); err != nil {
		return nil, err
	}
	attr := &syscall.ProcAttr{Dir: r.Program.Dir, Env: environment(os.Environ(), r), Files: numbers(files.theirs), Sys: &syscall.SysProcAttr{Setsid: true}}
	if attr.Dir == "" {
		attr.Dir = r.Home
	}
	what := "the program " + r.Program.Argv[0] + " could not be started"
	if !r.Main {
		one, err := s.hold(r.Program.Argv, attr)
		if coded := new(problem.Error); err != nil && (!errors.As(err, &coded) || coded.Code == problem.Internal) {
			err = failed(what, err)
		}
		return one, err
	}
	pid, ended, err := s.children.start(r.Program.Argv[0], r.Program.Argv, attr)
	if err != nil {
		return nil, failed(what, err)
	}
	return &started{pid: pid, end: func() { s.children.end(0) }, wait: func() (jail.Exit, error) {
		exit := exitOf(<-ended)
		if u, err := usage(); err == nil {
			exit.Hit = u.Hit
			if exit.Signal != "" && jail.OutOfMemory(u.Hit) {
				exit.Cause = jail.CauseMemory
			}
		}
		return exit, nil
	}}, nil
}

// hold starts a program with somebody who holds it: see Hold.
func (s *pod) hold(argv []string, attr *syscall.ProcAttr) (*started, error) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		closeAll(ours, theirs)
		return nil, err
	}
	count := len(attr.Files)
	attr.Files = append(attr.Files, theirs.Fd())
	pid, ended, err := s.children.start(self, append([]string{self, HoldCommand, strconv.Itoa(count)}, argv...), attr)
	_ = theirs.Close()
	var first shim.Reply
	if err == nil {
		if err = shim.ReadMessage(ours, &first); err != nil {
			// It was killed, perhaps by the program, which has got away.
			s.finish(ExitFailed)
			s.children.end(0)
			err = errUnheld(err)
		}
	}
	if err == nil {
		err = first.Refused.Err()
	}
	if err != nil {
		closeAll(ours)
		return nil, err
	}
	return &started{
		pid: first.PID,
		// The number is that of the one who holds it, or of nobody, until its end has been received.
		end: func() { s.children.signal(pid, syscall.SIGTERM) },
		wait: func() (jail.Exit, error) {
			var last shim.Reply
			err := shim.ReadMessage(ours, &last)
			closeAll(ours)
			<-ended
			if err != nil || last.Exit == nil {
				return jail.Exit{Code: -1, Cause: jail.CauseExited}, errUnheld(err)
			}
			return *last.Exit, nil
		},
	}, nil
}

func errUnheld(err error) error {
	return problem.Wrap(err, problem.JailFailed, "", "what holds a program in the pod has ended before it, and the pod with it")
}

// environment is that of the image, without what Kubernetes says of its services, and what the program is given.
func environment(own []string, r *shim.Run) []string {
	all := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}
	for _, variable := range own {
		if name, value, ok := strings.Cut(variable, "="); ok && !strings.HasPrefix(name, "KUBERNETES_") {
			all[name] = value
		}
	}
	all["HOME"] = r.Home
	maps.Copy(all, r.Program.Environment(own))
	maps.DeleteFunc(all, func(name, _ string) bool { return slices.Contains(r.Program.Without, name) })
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, name+"="+all[name])
	}
	return out
}

// makeFolders makes folders for the program. They stay in those that they are in, whatever these link to.
func makeFolders(paths []string) error {
	for _, path := range paths {
		root, err := os.OpenRoot(filepath.Dir(path))
		if err == nil {
			if err = root.Mkdir(filepath.Base(path), 0o755); errors.Is(err, os.ErrExist) {
				err = nil
			}
			err = errors.Join(err, root.Close())
		}
		if err != nil {
			return failed("a folder for the program could not be made", err)
		}
	}
	return nil
}

// putToken puts a token where programs find it.
func putToken(token []byte) (err error) {
	root, err := os.OpenRoot(jail.TokenDir)
	if err != nil {
		return problem.Wrap(err, problem.Conflict, "", "the pod has no place for a token")
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	const next = "." + jail.TokenName
	if err := root.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(token)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return root.Rename(next, jail.TokenName)
}

// stageHome puts files into the home directory. They stay in it, whatever it links to.
func stageHome(home string, files []jail.File) (err error) {
	if len(files) == 0 {
		return nil
	}
	root, err := os.OpenRoot(home)
	if err != nil {
		return fmt.Errorf("stage files: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, f := range files {
		if err := errors.Join(root.MkdirAll(filepath.Dir(f.Path), 0o700), root.WriteFile(f.Path, f.Data, 0o600)); err != nil {
			return fmt.Errorf("stage files: %w", err)
		}
	}
	return nil
}
