package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
)

const (
	// askLimit is how long a browser may take to close when asked, and termLimit when it gets SIGTERM.
	askLimit  = 5 * time.Second
	termLimit = 3 * time.Second
	// shownLines and shownColumns bound what an error shows of it.
	shownLines, shownColumns = 8, 300
)

// process is a browser's process, in a group of its own with its children.
type process struct {
	cmd    *exec.Cmd
	words  texts.Tail
	exited chan struct{}
	// replies and commands are our ends of the pipe.
	replies, commands *os.File
}

// startProcess starts a program with the pipe on the file descriptors 3 and 4.
func startProcess(line, env []string, dir string) (*process, error) {
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the browser's pipe: %w", err)
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the browser's pipe: %w", errors.Join(err, theirIn.Close(), ourOut.Close()))
	}
	p := &process{exited: make(chan struct{}), replies: ourIn, commands: ourOut}
	p.cmd = exec.Command(line[0], line[1:]...)
	p.cmd.Env, p.cmd.Dir = env, dir
	p.cmd.Stdout, p.cmd.Stderr = &p.words, &p.words
	p.cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	// A group of its own: Ctrl-C in the terminal of serve is for serve, which closes the browser properly.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A child that keeps the browser's standard error must not keep us.
	p.cmd.WaitDelay = time.Second
	err = p.cmd.Start()
	err = errors.Join(err, theirIn.Close(), theirOut.Close())
	if err != nil {
		return nil, errors.Join(err, ourIn.Close(), ourOut.Close())
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.exited)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// gone waits for the process, but not for long.
func (p *process) gone(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
		return false
	}
}

// end makes sure that nothing of the browser is left. The caller has closed the pipe, which ends a healthy browser.
func (p *process) end() {
	if !p.gone(termLimit) {
		_ = syscall.Kill(p.pid(), syscall.SIGTERM) // it may just have gone
		p.gone(termLimit)
	}
	// Children of a browser that crashed may hang on. An error means that there are none.
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL)
	<-p.exited
}

// epitaph says how the process ended, and what it wrote last.
func (p *process) epitaph() string {
	how := "it runs"
	if state := p.cmd.ProcessState; state != nil {
		how = state.String()
	}
	if words := p.words.Lines(shownLines, shownColumns); len(words) > 0 {
		how += "; its last words: " + strings.Join(words, " | ")
	}
	return how
}
