package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/clawjail/clawjail/internal/problem"
)

// standardInput is the name of a file that is none.
const standardInput = "-"

// maxTyped bounds what is read of a credential, in bytes: more than the control plane takes.
const maxTyped = 64 << 10

// input is standard input, which ends when the command is interrupted: a read from a pipe or a terminal does not.
func input(cmd *cobra.Command) io.Reader {
	in := cmd.InOrStdin()
	if in == nil {
		return nil
	}
	return interruptible{cmd.Context(), in}
}

type interruptible struct {
	ctx context.Context
	in  io.Reader
}

func (r interruptible) Read(into []byte) (int, error) {
	type taken struct {
		n   int
		err error
	}
	// The text after an interruption is not read: the process ends.
	read, own := make(chan taken, 1), make([]byte, len(into))
	go func() {
		n, err := r.in.Read(own)
		read <- taken{n, err}
	}()
	select {
	case t := <-read:
		copy(into, own[:t.n])
		clear(own)
		return t.n, t.err
	case <-r.ctx.Done():
		return 0, context.Cause(r.ctx)
	}
}

// readInput reads standard input to its end, at most so many bytes. It reads into one piece of memory, which the caller
// clears: a buffer that grows leaves copies of what was in it.
func readInput(cmd *cobra.Command, maximum int) ([]byte, error) {
	data := make([]byte, maximum+1)
	n, err := io.ReadFull(input(cmd), data)
	if err == nil || n > maximum {
		clear(data)
		return nil, problem.New(problem.BadRequest, "give less", "standard input has more than %d bytes", maximum)
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		clear(data)
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	return data[:n], nil
}

// readCredential reads a credential: from standard input, or, when that is a terminal, as somebody types it, without
// showing it. One end of a line behind it is not part of it. The caller clears it.
func readCredential(cmd *cobra.Command, what string) ([]byte, error) {
	var data []byte
	var err error
	if f, ok := cmd.InOrStdin().(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		data, err = typed(cmd.Context(), f, cmd.ErrOrStderr(), what)
	} else {
		data, err = readInput(cmd, maxTyped)
	}
	if err != nil {
		return nil, err
	}
	data = bytes.TrimSuffix(data, []byte("\n"))
	data = bytes.TrimSuffix(data, []byte("\r"))
	if len(data) == 0 {
		return nil, usage(cmd, "%s is empty: give it on standard input", what)
	}
	return data, nil
}

// typed reads a line from a terminal that does not show it.
func typed(ctx context.Context, terminal *os.File, out io.Writer, what string) ([]byte, error) {
	fd := int(terminal.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return nil, fmt.Errorf("look at the terminal: %w", err)
	}
	fmt.Fprintf(out, "%s (it is not shown): ", what) // a user who misses the question sees that something waits
	type line struct {
		data []byte
		err  error
	}
	read := make(chan line, 1)
	// Nothing ends a read from a terminal but a line. When the command is interrupted, the process ends with it.
	go func() {
		data, err := term.ReadPassword(fd)
		read <- line{data, err}
	}()
	select {
	case l := <-read:
		fmt.Fprintln(out)
		if l.err != nil && !errors.Is(l.err, io.EOF) {
			return nil, fmt.Errorf("read from the terminal: %w", l.err)
		}
		return l.data, nil
	case <-ctx.Done():
		fmt.Fprintln(out)
		return nil, errors.Join(context.Cause(ctx), term.Restore(fd, before))
	}
}
