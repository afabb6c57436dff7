//go:build linux

// Package pid1 is clawjail-shim, the first process of a pod. It dials the control plane, does what it is asked, and ends with everything else
// in the pod when its program ends, or when the connection is lost for longer than its window. Package shim has the other side.
//
// Programs of the pod are of the same user as this process. They cannot read its memory or trace it, and the kernel keeps them from killing it.
package pid1

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/libp2p/go-yamux/v5"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/link"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// connectLimit is how long the control plane is tried to be reached by a pod in which nothing has begun.
	connectLimit = 5 * time.Minute
	dialLimit    = 10 * time.Second
	// maxFile bounds the file of the token.
	maxFile = 1 << 20
	// maxStreams bounds what the control plane may ask for at once.
	maxStreams = 256
	// termGrace is how long programs have to end by themselves when Kubernetes ends the pod. It waits 30 s itself.
	termGrace = 10 * time.Second
	// lastWords is how long what is said last may take.
	lastWords = 5 * time.Second
)

// Exit statuses of the shim, when it is not its program's that it ends with.
const (
	ExitUsage  = 64 // as in sysexits.h
	ExitLost   = 69
	ExitFailed = 70
)

// Options are what a shim is started with.
type Options struct {
	Gateway string // HOST:PORT
	Pin     string // of the control plane's key: see shim.ServerTLS
	Token   string // a file, which is read for each connection
	Log     io.Writer
}

type pod struct {
	o        Options
	children children
	comm     *os.File // the name of this process, which says to Kubernetes that it is ready

	mu       sync.Mutex // guards what follows
	prepared bool
	begun    bool // a program has been started, so that the pod ends with its connection
	main     bool // and it was the pod's own
	stdio    map[uint32]*yamux.Stream
	talking  int // how many have something to say before everything ends
	changed  *sync.Cond
	over     chan struct{} // closed when everything ends
	status   int           // with this, if it was decided
	decided  bool
}

// Serve is the first process of a pod, until the pod ends. The answer is the exit status.
func Serve(ctx context.Context, o Options) int {
	if os.Getpid() != 1 {
		return o.fail(ExitUsage, problem.New(problem.BadUsage, "give the pod process numbers of its own: neither hostPID nor shareProcessNamespace", "clawjail-shim is not the first process of its pod"))
	}
	// Opened before Hide gives it to root.
	comm, err := os.OpenFile("/proc/self/comm", os.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err == nil {
		err = linux.HideSelf()
	}
	if err != nil {
		return o.fail(ExitFailed, err)
	}
	s := &pod{o: o, comm: comm, stdio: map[uint32]*yamux.Stream{}, over: make(chan struct{})}
	s.changed = sync.NewCond(&s.mu)
	s.children.waiting = map[int]chan<- syscall.WaitStatus{}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	signal.Notify(make(chan os.Signal, 1), others()...)
	if err := ignoreLibrarySignals(); err != nil {
		return o.fail(ExitFailed, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lost := make(chan error, 1)
	go func() { lost <- s.connected(ctx) }()
	var ending sync.Once
	for {
		select {
		case sig := <-signals:
			if sig == syscall.SIGCHLD {
				s.children.reap()
				continue
			}
			ending.Do(func() {
				go func() {
					s.children.end(termGrace)
					s.finish(128 + int(sig.(syscall.Signal)))
				}()
			})
		case err := <-lost:
			s.children.end(0)
			s.mu.Lock()
			decided, status := s.decided, s.status
			s.mu.Unlock()
			if decided { // it was over before
				return status
			}
			return o.fail(ExitLost, err)
		case <-s.over:
			return s.said()
		}
	}
}

// others are the signals that would end this process, and that programs of the pod can send to it. Nothing comes of them. They are not ignored, as
// that would be inherited.
func others() (all []os.Signal) {
	const last = 64 // of Linux
	for n := syscall.Signal(1); n <= last; n++ {
		switch n {
		case syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT: // these are waited for
		case syscall.SIGURG: // Go's own
		default:
			all = append(all, n)
		}
	}
	return all
}

// ignoreLibrarySignals ignores the two signals of C libraries that Go leaves alone: [signal.Notify] and [signal.Ignore] do nothing for them. A
// first process with the default action is killed after all when such a signal arrives while the main thread blocks signals, as it does
// when it forks. Programs inherit that, and their libraries replace it when they use these signals.
func ignoreLibrarySignals() error {
	const ignore, maskSize = 1, 8
	action := [8]uint64{ignore} // a sigaction of the kernel begins with the handler, and is shorter
	for _, n := range []uintptr{32, 34} {
		if _, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, n, uintptr(unsafe.Pointer(&action)), 0, maskSize, 0, 0); errno != 0 {
			return os.NewSyscallError("rt_sigaction", errno)
		}
	}
	return nil
}

// fail says what is wrong, and returns the status that this process ends with.
func (o Options) fail(status int, err error) int {
	o.say(err)
	return status
}

func (o Options) say(err error) {
	_, _ = fmt.Fprintf(o.Log, "clawjail-shim: error: %v\n", err)
	if coded := new(problem.Error); errors.As(err, &coded) && coded.Hint != "" {
		_, _ = fmt.Fprintf(o.Log, "clawjail-shim: hint: %s\n", coded.Hint)
	}
}

// decide says with which status the pod ends. The first one counts.
func (s *pod) decide(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.decided {
		s.decided, s.status = true, status
	}
}

// finish ends the pod.
func (s *pod) finish(status int) {
	s.decide(status)
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.over:
	default:
		close(s.over)
	}
}

// talk keeps the pod from ending until done, so that an answer can be sent.
func (s *pod) talk() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.talking++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.talking--
		s.changed.Broadcast()
	}
}

// said waits until everything is said, and returns the status.
func (s *pod) said() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wait(lastWords, func() bool { return s.talking == 0 })
	return s.status
}

// wait waits, with the lock, until something is so, but not for longer than a while.
func (s *pod) wait(limit time.Duration, is func() bool) {
	late := false
	timer := time.AfterFunc(limit, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		late = true
		s.changed.Broadcast()
	})
	defer timer.Stop()
	for !is() && !late {
		s.changed.Wait()
	}
}

// connected keeps the connection with the control plane, and returns why that is over. As long as nothing has begun, a new one is as good.
func (s *pod) connected(ctx context.Context) error {
	since := time.Now()
	for {
		err := s.serve(ctx, &since)
		s.mu.Lock()
		begun := s.begun
		s.prepared, s.stdio = false, map[uint32]*yamux.Stream{}
		s.mu.Unlock()
		if begun || ctx.Err() != nil {
			return problem.Wrap(err, problem.JailFailed, "", "the control plane is lost, and with it whom the program is for")
		}
		if time.Since(since) > connectLimit {
			return problem.Wrap(err, problem.ControlPlaneUnreachable, "look at its log, and at the policies of the network", "the control plane could not be reached for %s", connectLimit)
		}
		s.o.say(err)
		wake.Sleep(ctx, time.Second+rand.N(time.Second))
	}
}

// serve is one stream, from its first connection to its end.
func (s *pod) serve(ctx context.Context, since *time.Time) error {
	stream := link.New(connectLimit) // what the window is is said in the welcome
	defer func() { _ = stream.Close() }()
	conn, welcome, err := s.greet(ctx, stream, "")
	if err != nil {
		return err
	}
	window := min(max(time.Duration(welcome.WindowMS)*time.Millisecond, time.Second), connectLimit)
	stream.SetWindow(window)
	session, err := yamux.Server(stream, shim.Session(maxStreams), nil)
	if err != nil {
		stream.Leave(conn)
		return err
	}
	defer func() { _ = session.Close() }()
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() {
		for {
			st, err := session.AcceptStream()
			if err != nil {
				_ = stream.Close() // it is over, or the other side speaks no yamux
				return
			}
			go s.answer(ctx, st) // not waited for: it ends with the stream, or with the pod
		}
	})
	for {
		err := stream.Carry(conn, welcome.Arrived)
		*since = time.Now()
		if over := stream.Err(); over != nil {
			return errors.Join(over, err)
		}
		if conn, welcome, err = s.again(ctx, stream, welcome.Link); err != nil {
			return errors.Join(err, stream.Close())
		}
	}
}

// again connects for a stream whose connection has broken, within its window.
func (s *pod) again(ctx context.Context, stream *link.Stream, id string) (net.Conn, shim.Welcome, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		conn, welcome, err := s.greet(ctx, stream, id)
		if err == nil {
			welcome.Link = id
			return conn, welcome, nil
		}
		// The control plane does not know this stream any more: another try does not help.
		if coded := new(problem.Error); errors.As(err, &coded) && coded.Code == problem.NotFound {
			return nil, welcome, err
		}
		if over := stream.Err(); over != nil {
			return nil, welcome, errors.Join(over, err)
		}
		if !wake.Sleep(ctx, pause+rand.N(pause)) {
			return nil, welcome, ctx.Err()
		}
	}
}

// greet connects, and says which pod this is and which stream goes on.
func (s *pod) greet(ctx context.Context, stream *link.Stream, id string) (net.Conn, shim.Welcome, error) {
	var welcome shim.Welcome
	token, err := readFile(s.o.Token)
	if err != nil {
		return nil, welcome, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*dialLimit)
	defer cancel()
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialLimit}, Config: shim.ClientTLS(s.o.Pin)}
	conn, err := d.DialContext(ctx, "tcp", s.o.Gateway)
	if err != nil {
		return nil, welcome, fmt.Errorf("connect to the gateway: %w", err)
	}
	arrived, err := stream.Take(conn)
	if err != nil {
		return nil, welcome, errors.Join(err, conn.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = shim.WriteMessage(conn, shim.Hello{Version: shim.Version, Token: string(token), Link: id, Arrived: arrived})
	if err == nil {
		err = shim.ReadMessage(conn, &welcome)
	}
	if err == nil {
		err = welcome.Refused.Err()
	}
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		stream.Leave(conn)
		return nil, welcome, fmt.Errorf("greet the gateway: %w", err)
	}
	return conn, welcome, nil
}

func readFile(path string) (data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, maxFile))
}
