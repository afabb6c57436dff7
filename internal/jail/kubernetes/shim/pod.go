package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/link"
	"github.com/clawjail/clawjail/internal/problem"
)

// Pod is a pod that is connected, or was until a moment ago.
type Pod struct {
	name    string
	about   any
	address netip.Addr
	link    string
	stream  *link.Stream
	session *yamux.Session
	done    chan struct{}
	working *sync.WaitGroup // the server's

	mu    sync.Mutex // guards what follows
	begun bool       // a program has been started
	ended bool       // everything in it has ended, so that its connection does, too
	conns int        // how many carry its stream, or have done so a moment ago
}

// Name is what Options.Who has said.
func (p *Pod) Name() string { return p.name }

// About is what Options.Who has said about it.
func (p *Pod) About() any { return p.about }

// Address is where it has connected from.
func (p *Pod) Address() netip.Addr { return p.address }

// Done is closed when the pod is lost.
func (p *Pod) Done() <-chan struct{} { return p.done }

func (p *Pod) replaceable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.begun
}

// Broken says whether a program has been started in the pod, nothing carries its connection now, and it is waited for.
func (p *Pod) Broken() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun && !p.ended && p.conns == 0 && p.stream.Err() == nil
}

// note changes the state of the pod. It closes the stream of one that has ended and has no connection.
func (p *Pod) note(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	if p.ended && p.conns == 0 {
		_ = p.stream.Close()
	}
}

func (p *Pod) over() { p.note(func() { p.ended = true }) }

// failed says what is wrong with a pod that does not do what it is asked.
func (p *Pod) failed(err error) error {
	if coded := new(problem.Error); errors.As(err, &coded) {
		return err
	}
	if end := p.stream.Err(); end != nil {
		return problem.Wrap(errors.Join(err, end), problem.JailFailed, "it ends by itself, and what needs it is started anew", "the connection with the pod %s is over", p.name)
	}
	return problem.Wrap(err, problem.JailFailed, "look at its log: kubectl logs", "the pod %s does not do what it is asked", p.name)
}

// ask opens a stream with a request and reads the reply. The stream is the caller's to close.
func (p *Pod) ask(ctx context.Context, r Request) (*yamux.Stream, Reply, error) {
	var answer Reply
	st, err := p.session.OpenStream(ctx)
	if err != nil {
		return nil, answer, p.failed(cmp.Or(ctx.Err(), err))
	}
	stop := context.AfterFunc(ctx, func() { _ = st.Reset() })
	err = WriteMessage(st, r)
	if err == nil && r.Do != DoStdio {
		err = ReadMessage(st, &answer)
	}
	if err == nil {
		err = answer.Refused.Err()
	}
	if !stop() {
		err = cmp.Or(ctx.Err(), err)
	}
	if err != nil {
		_ = st.Reset()
		return nil, answer, p.failed(fmt.Errorf("%s: %w", r.Do, err))
	}
	return st, answer, nil
}

// once asks for something that ends with its reply.
func (p *Pod) once(ctx context.Context, r Request) (Reply, error) {
	st, answer, err := p.ask(ctx, r)
	if err != nil {
		return answer, err
	}
	return answer, st.Close()
}

// Prepare confines the pod's programs as far as a process can confine itself, and says how they are confined.
func (p *Pod) Prepare(ctx context.Context, how Prepare) (Report, error) {
	answer, err := p.once(ctx, Request{Do: DoPrepare, Prepare: &how})
	if err == nil && answer.Report == nil {
		err = p.failed(errors.New("it has said nothing of itself"))
	}
	if err != nil {
		return Report{}, err
	}
	return *answer.Report, nil
}

// Ready says to Kubernetes that the pod is ready: clawjail-shim ready succeeds in it from then on.
func (p *Pod) Ready(ctx context.Context) error {
	_, err := p.once(ctx, Request{Do: DoReady})
	return err
}

// Token gives the pod its token, atomically: a reader sees the one before or this one.
func (p *Pod) Token(ctx context.Context, token []byte) error {
	_, err := p.once(ctx, Request{Do: DoToken, Token: token})
	return err
}

// Usage is what the pod consumes, as it says itself.
func (p *Pod) Usage(ctx context.Context) (jail.Usage, error) {
	answer, err := p.once(ctx, Request{Do: DoUsage})
	if err != nil || answer.Usage == nil {
		return jail.Usage{}, err
	}
	return *answer.Usage, nil
}

// Dial connects to a port on the loopback of the pod.
func (p *Pod) Dial(ctx context.Context, port uint16) (*os.File, error) {
	st, _, err := p.ask(ctx, Request{Do: DoDial, Port: port})
	if err != nil {
		return nil, err
	}
	theirs, ours, err := jail.SocketPair() // ours is given away, and theirs is copied
	if err != nil {
		return nil, errors.Join(err, st.Reset())
	}
	conn, err := net.FileConn(theirs)
	if err := errors.Join(err, theirs.Close()); err != nil {
		return nil, errors.Join(err, ours.Close(), st.Reset())
	}
	half := conn.(*net.UnixConn)
	p.working.Go(func() {
		defer func() { _ = half.Close() }()
		var back sync.WaitGroup
		back.Go(func() {
			if _, err := io.Copy(half, st); err != nil {
				_ = half.Close() // the other direction ends, too
			}
			_ = half.CloseWrite()
		})
		if _, err := io.Copy(st, half); err != nil {
			_ = st.Reset()
		}
		_ = st.CloseWrite()
		back.Wait()
		_ = st.Close()
	})
	return ours, nil
}

// End ends everything in the pod. Its programs have so long to end by themselves.
func (p *Pod) End(ctx context.Context, grace time.Duration) error {
	_, err := p.once(ctx, Request{Do: DoEnd, GraceMS: grace.Milliseconds()})
	if err == nil {
		p.over()
	}
	if p.stream.Err() != nil {
		return nil
	}
	return err
}

// Forget ends the connection, and the pod with it once its window is over.
func (p *Pod) Forget() { _ = p.stream.Close() }

// Running is a program that runs in a pod.
type Running struct {
	jail.Joined
	PID int // in the pod

	pod    *Pod
	stream *yamux.Stream
}

// Run starts a program. Its stdio is what is given, which is closed when it is used no more.
func (p *Pod) Run(ctx context.Context, run Run, stdio [3]*os.File) (*Running, error) {
	var streams [3]*yamux.Stream
	fail := func(err error) (*Running, error) {
		for n, st := range streams {
			if st != nil {
				_ = st.Reset()
			}
			_ = stdio[n].Close() // Run owns it
		}
		return nil, err
	}
	p.note(func() { p.begun = true })
	for n := range streams {
		st, _, err := p.ask(ctx, Request{Do: DoStdio})
		if err != nil {
			return fail(err)
		}
		streams[n] = st
		run.Stdio[n] = st.StreamID()
	}
	st, answer, err := p.ask(ctx, Request{Do: DoRun, Run: &run})
	if err != nil {
		return fail(err)
	}
	r := &Running{PID: answer.PID, pod: p, stream: st, Joined: jail.Joined{Over: make(chan struct{})}}
	var copying sync.WaitGroup
	p.working.Go(func() {
		_ = pour(streams[0], stdio[0]) // the program that is given less than it expects says so
		_ = streams[0].CloseWrite()
	})
	for n := 1; n < len(streams); n++ {
		copying.Go(func() {
			if err := pour(stdio[n], streams[n]); err != nil {
				_ = streams[n].Reset() // the program cannot write any more when the output is not read any more
			}
			_ = errors.Join(streams[n].Close(), stdio[n].Close()) // nothing of them is left to lose
		})
	}
	// When the pod is lost, closing stdio ends copies that a slow reader holds up.
	stop := make(chan struct{})
	p.working.Go(func() {
		select {
		case <-p.done:
		case <-stop:
		}
		for _, f := range stdio {
			_ = f.Close() // it may be closed
		}
	})
	p.working.Go(func() {
		var last Reply
		r.Err = ReadMessage(st, &last)
		switch {
		case r.Err != nil:
			r.Err = p.failed(fmt.Errorf("wait for a program: %w", r.Err))
		case last.Exit == nil:
			r.Err = p.failed(cmp.Or(last.Refused.Err(), errors.New("it does not say how its program ended")))
		default:
			r.Exit = *last.Exit
		}
		close(r.Over)
		copying.Wait()
		close(stop)
		_ = streams[0].Reset()
		_ = st.Close() // the pod waits for it: everything has arrived
		if run.Main && r.Err == nil {
			p.over()
		}
	})
	return r, nil
}

// smallRead and largeRead are how many bytes are read at once.
const smallRead, largeRead = 1 << 10, 32 << 10

var large = sync.Pool{New: func() any { return new([largeRead]byte) }}

// pour is io.Copy for streams of which there may be thousands, and on which mostly nothing comes: it has room for a large read only while much comes.
func pour(to io.Writer, from io.Reader) error {
	small := make([]byte, smallRead)
	buf := small
	var room *[largeRead]byte
	for {
		n, err := from.Read(buf)
		if n > 0 {
			_, failed := to.Write(buf[:n])
			err = cmp.Or(failed, err)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case room == nil && n == smallRead:
			room = large.Get().(*[largeRead]byte)
			buf = room[:]
		case room != nil && n <= smallRead:
			large.Put(room)
			room, buf = nil, small
		}
	}
}

// End implements jail.Execution.
func (r *Running) End(ctx context.Context) error {
	if err := WriteMessage(r.stream, Request{Do: DoEnd}); err != nil && !wake.Closed(r.Over) {
		return r.pod.failed(err)
	}
	_, err := r.Wait(ctx)
	return err
}
