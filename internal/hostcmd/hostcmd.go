// Package hostcmd runs the commands of a host that jails are made with: zfs(8), jail(8), ifconfig(8) and their like.
//
// A command gets an environment of two variables, no standard input unless one is given, and a bounded time; what it prints
// is read up to a bound. It is found at one absolute path, never by the caller's PATH. A status that is not zero is a
// *Failure: what was run, how it ended and what it said. Secrets do not belong into arguments, which are shown.
package hostcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	// Timeout bounds a command whose context has no deadline of its own.
	Timeout = time.Minute
	// MaxOutput is how much of each of its two outputs is kept.
	MaxOutput = 8 << 20
	// Finish is how long a command may go on when its context has ended: one that is killed half-way leaves an unknown state.
	Finish = 2 * time.Second
	// shown is how much of what a command said becomes part of an error.
	shown = 400
)

// Runner finds and runs commands.
type Runner struct {
	// Dir is the folder that holds every command. Empty on a real host, where each has a place of its own: see Places.
	Dir string
	// Places are the absolute paths of commands by their names. A name that is not in it is looked for in the system's
	// folders of programs.
	Places map[string]string
}

// Folders are where the programs of a system are, those that only root may write.
var Folders = []string{"/sbin", "/bin", "/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"}

// Path is where a command is. Its error is exec.ErrNotFound when it is nowhere.
func (r Runner) Path(name string) (string, error) {
	folders := Folders
	if r.Dir != "" {
		folders = []string{r.Dir}
	} else if place := r.Places[name]; place != "" {
		return place, nil
	}
	for _, dir := range folders {
		if file, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

// Command prepares a command, which the caller connects and starts. When ctx ends it is killed, after Finish.
func (r Runner) Command(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	file, err := r.Path(name)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Env = []string{"PATH=" + strings.Join(Folders, ":"), "LC_ALL=C"}
	cmd.Dir = "/"
	cmd.Cancel = func() error { return nil }
	cmd.WaitDelay = Finish // nor does a child that it left behind hold its outputs open for us for longer
	return cmd, nil
}

// Run runs a command to its end and returns what it printed on standard output.
func (r Runner) Run(ctx context.Context, name string, args ...string) (string, error) {
	return r.RunWith(ctx, "", name, args...)
}

// RunWith is Run with a text on standard input.
func (r Runner) RunWith(ctx context.Context, input, name string, args ...string) (string, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Timeout)
		defer cancel()
	}
	cmd, err := r.Command(ctx, name, args...)
	if err != nil {
		return "", err
	}
	var out, errs bounded
	cmd.Stdout, cmd.Stderr = &out, &errs
	if input != "" {
		cmd.Stdin = strings.NewReader(input)
	}
	err = cmd.Run()
	if ctx.Err() != nil {
		return out.String(), fmt.Errorf("run %s: %w", name, ctx.Err())
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out.String(), &Failure{Name: name, Args: args, Code: exit.ExitCode(), Stderr: errs.String()}
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return out.String(), fmt.Errorf("run %s: %w", name, err)
	}
	return out.String(), nil
}

// Failure is a command that ended with a status that is not zero.
type Failure struct {
	Name   string
	Args   []string
	Code   int // its status; -1 when a signal ended it
	Stderr string
}

// Error says what was run, and the first line of what the command said of it.
func (f *Failure) Error() string {
	line, _, _ := strings.Cut(strings.TrimSpace(f.Stderr), "\n")
	if len(line) > shown {
		line = line[:shown] + "…"
	}
	if line == "" {
		line = fmt.Sprintf("status %d", f.Code)
	}
	return fmt.Sprintf("%s %s: %s", f.Name, strings.Join(f.Args, " "), line)
}

// Says reports whether an error is a Failure that said something.
func Says(err error, text string) bool {
	var f *Failure
	return errors.As(err, &f) && strings.Contains(f.Stderr, text)
}

// bounded keeps the beginning of what is written to it.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if room := MaxOutput - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
