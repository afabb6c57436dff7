package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// logPiece is how much of a log is asked for at once, and logWait how long an answer is waited for.
	logPiece = 1 << 20
	logWait  = 30 * time.Second
	// tailPiece is how much of the end of a log is looked at for its last lines.
	tailPiece = 4 << 20
	// typePiece is how much is typed at once.
	typePiece = 64 << 10
)

// logOptions are what of a log was asked for.
type logOptions struct {
	tenant         string
	follow         bool
	stdout, stderr bool
	tail           int
	asJSON         bool
}

// streams are those that are shown.
func (o logOptions) streams() []jail.Stream {
	switch {
	case o.stdout && !o.stderr:
		return []jail.Stream{jail.Stdout}
	case o.stderr && !o.stdout:
		return []jail.Stream{jail.Stderr}
	}
	return []jail.Stream{jail.Stdout, jail.Stderr}
}

func newAgentLogs(p *program) *cobra.Command {
	var o logOptions
	cmd := &cobra.Command{
		Use:     "logs NAME",
		Aliases: []string{"log"},
		Short:   "Show what an agent has printed",
		Long: "Shows what the jails of an agent have printed, also those that it had before: what went to their standard output on standard " +
			"output, and what went to their standard error on standard error, in the order in which it came. What is shown on a terminal has no control characters.",
		Example:           "  clawjail agent logs dev-bot --tail 20 -f\n  clawjail agent logs dev-bot --stderr > dev-bot.err",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.tail < -1 {
				return usage(cmd, "--tail %d is not a number of lines", o.tail)
			}
			if o.asJSON && o.tail != -1 {
				return usage(cmd, "--tail counts lines, and --json prints events: give one of them")
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			if o.asJSON {
				return showEvents(cmd, c, args[0], o)
			}
			return showLogs(cmd, c, args[0], o)
		},
	}
	p.tenantFlag(cmd, &o.tenant)
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what is printed, until it is interrupted; starts and ends are told on standard error")
	f.BoolVar(&o.stdout, "stdout", false, "only what went to standard output")
	f.BoolVar(&o.stderr, "stderr", false, "only what went to standard error")
	f.IntVar(&o.tail, "tail", -1, "only the last `lines` of each; -1 is all that is kept")
	f.BoolVar(&o.asJSON, "json", false, "print events as JSON, one a line: lines that were printed, starts and ends")
	return cmd
}

// showEvents writes what an agent does, one event a line.
func showEvents(cmd *cobra.Command, c *client.Client, name string, o logOptions) error {
	wanted := o.streams()
	out := encoder(cmd.OutOrStdout())
	return c.Events(cmd.Context(), client.EventsQuery{Tenant: o.tenant, Agent: name, Follow: o.follow}, func(e agent.Event) error {
		if e.Stream != "" && !slices.Contains(wanted, e.Stream) {
			return nil
		}
		return out.Encode(e)
	})
}

// showLogs writes each stream where it belongs: what there is in the order in which it was printed, and then both at the same
// time when it follows.
func showLogs(cmd *cobra.Command, c *client.Client, name string, o logOptions) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	var mu sync.Mutex // what both write comes whole
	streams := o.streams()
	readers := make([]*logReader, len(streams))
	for n, stream := range streams {
		w := cmd.OutOrStdout()
		if stream == jail.Stderr && len(streams) > 1 {
			w = cmd.ErrOrStderr()
		}
		out := &logWriter{w: w, mu: &mu}
		_, out.terminal = terminal(w)
		readers[n] = &logReader{client: c, request: jail.LogRequest{Tenant: o.tenant, Name: name, Stream: stream}, out: out}
		if o.tail >= 0 {
			if err := readers[n].last(ctx, o.tail); err != nil {
				return err
			}
		}
	}
	if err := showKept(ctx, readers); err != nil {
		return err
	}
	if !o.follow {
		for _, r := range readers {
			if err := r.out.end(); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make([]error, len(readers))
	var all sync.WaitGroup
	for n := range readers {
		all.Go(func() {
			defer cancel() // one alone would look like both
			errs[n] = readers[n].follow(ctx)
		})
	}
	// The log is worth having also where nobody can say when the program begins and ends.
	all.Go(func() { _ = tellRuns(ctx, c, name, o.tenant, func(text string) { note(cmd.ErrOrStderr(), &mu, text) }) })
	all.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return cmd.Context().Err()
}

// showKept writes what the logs have, in the order in which it was printed. It does not wait for lines that come meanwhile.
func showKept(ctx context.Context, readers []*logReader) error {
	waiting := make([][]jail.LogRun, len(readers))
	asked, ends := make([]bool, len(readers)), make([]int64, len(readers))
	for {
		next := -1
		for n, r := range readers {
			if len(waiting[n]) == 0 && (!asked[n] || r.at < ends[n]) {
				piece, err := r.read(ctx, 0)
				if err != nil {
					return err
				}
				if !asked[n] {
					asked[n], ends[n] = true, piece.End
				}
				if waiting[n] = piece.Runs(); len(piece.Data) == 0 {
					waiting[n], ends[n] = nil, 0
				}
			}
			if len(waiting[n]) > 0 && (next < 0 || waiting[n][0].At.Before(waiting[next][0].At)) {
				next = n
			}
		}
		if next < 0 {
			return nil
		}
		if err := readers[next].out.show(waiting[next][0].Data); err != nil {
			return err
		}
		waiting[next] = waiting[next][1:]
	}
}

// tellRuns tells of starts and ends of an agent's program from now on, and of a crash loop.
func tellRuns(ctx context.Context, c *client.Client, name, tenant string, tell func(string)) error {
	inLoop := func() string {
		a, err := client.Call(ctx, c, op.ShowAgent(), op.OneAgent{Name: name, InTenant: op.InTenant{Tenant: tenant}})
		if err != nil || a.Jail == nil || a.Jail.Crashes == 0 {
			return ""
		}
		return a.Jail.CrashLoop()
	}
	if text := inLoop(); text != "" {
		tell(text)
	}
	return c.Events(ctx, client.EventsQuery{Tenant: tenant, Agent: name, Follow: true, After: agent.Newest}, func(e agent.Event) error {
		switch e.Type {
		case agent.EventStarted:
			tell("the program has started")
		case agent.EventExit:
			text := "the program has ended"
			if e.Exit != nil {
				text += ": " + printable(e.Exit.Words())
			}
			if loop := inLoop(); loop != "" {
				text += "; " + loop
			}
			tell(text)
		}
		return nil
	})
}

// note writes a line that is clawjail's own among those of an agent.
func note(w io.Writer, mu *sync.Mutex, text string) {
	mu.Lock()
	defer mu.Unlock()
	_, _ = fmt.Fprintln(w, "clawjail: "+text) // an error shows at the next write of the log
}

// logReader reads a log from a place on.
type logReader struct {
	client  *client.Client
	request jail.LogRequest
	out     *logWriter
	at      int64
	begun   bool
}

// read returns the next piece, and tells what is missing before it.
func (r *logReader) read(ctx context.Context, wait time.Duration) (jail.LogChunk, error) {
	request := r.request
	request.Offset, request.Limit, request.Wait, request.Times = r.at, logPiece, wait, wait == 0
	piece, err := r.client.AgentLog(ctx, request)
	if err != nil {
		return piece, err
	}
	if missed := piece.Offset - r.at; missed > 0 && (r.begun || r.at > 0) {
		if err := r.out.missed(missed); err != nil {
			return piece, err
		}
	}
	r.begun = true
	if len(piece.Data) > 0 || piece.Offset > r.at {
		r.at = piece.Offset + int64(len(piece.Data))
	}
	if r.at > piece.End { // an answer of nobody's
		return piece, problem.New(problem.ControlPlaneUnreachable, "see whether it is clawjail that listens there", "the log ends at %d, before %d, where it is read", piece.End, r.at)
	}
	return piece, nil
}

// follow writes what comes.
func (r *logReader) follow(ctx context.Context) error {
	for {
		piece, err := r.read(ctx, logWait)
		if err == nil {
			err = r.out.show(piece.Data)
		}
		if err != nil {
			return err
		}
	}
}

// last goes to where the last lines begin. An answer may be shorter than what was asked for, so it is asked until the end that
// there was at first.
func (r *logReader) last(ctx context.Context, lines int) error {
	request := r.request
	request.Offset, request.Limit = -tailPiece, tailPiece
	var text []byte
	var from, end int64
	for {
		piece, err := r.client.AgentLog(ctx, request)
		if err != nil {
			return err
		}
		if end == 0 {
			end = piece.End
		}
		if piece.Offset != from+int64(len(text)) { // what was in between is not kept any more
			from, text = piece.Offset, nil
		}
		text = append(text, piece.Data...)
		request.Offset = from + int64(len(text))
		if len(piece.Data) == 0 || request.Offset >= end || len(text) >= 2*tailPiece {
			r.at = from + int64(lastLines(text, lines))
			return nil
		}
	}
}

// lastLines is where the last n lines of a text begin. A line without an end is one.
func lastLines(data []byte, n int) int {
	if n == 0 {
		return len(data)
	}
	at := len(bytes.TrimSuffix(data, []byte("\n")))
	for range n {
		if at = bytes.LastIndexByte(data[:at], '\n'); at < 0 {
			return 0
		}
	}
	return at + 1
}

// logWriter shows a log. A jail chose every byte of it.
type logWriter struct {
	w        io.Writer
	mu       *sync.Mutex
	terminal bool
	rest     []byte // of a line, for a terminal
}

func (l *logWriter) show(data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.terminal {
		_, err := l.w.Write(data)
		return err
	}
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		if end < 0 {
			l.rest = append(l.rest, data...)
			if len(l.rest) < logPiece {
				return nil
			}
			return l.flush()
		}
		l.rest = append(l.rest, data[:end]...)
		data = data[end+1:]
		if err := l.flush(); err != nil {
			return err
		}
	}
	return nil
}

// flush writes a line that a terminal can be shown.
func (l *logWriter) flush() error {
	_, err := fmt.Fprintln(l.w, printable(strings.ReplaceAll(strings.ToValidUTF8(string(l.rest), "\ufffd"), "\t", "    ")))
	l.rest = l.rest[:0]
	return err
}

func (l *logWriter) end() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rest) == 0 {
		return nil
	}
	return l.flush()
}

// missed says that something is not kept any more.
func (l *logWriter) missed(n int64) error {
	if !l.terminal {
		return nil // it is for a program, and not part of what was printed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := fmt.Fprintf(l.w, "… %s are not kept any more …\n", size(n))
	return err
}

func newAgentType(p *program) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:   "type NAME",
		Short: "Write standard input to the standard input of an agent",
		Long: "Writes standard input to the standard input of an agent's jail, byte by byte, until it ends. The agent's own standard input " +
			"does not end with it.",
		Example:           "  echo '{\"type\":\"prompt\",\"message\":\"hello\"}' | clawjail agent type dev-bot",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(agentNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			return typeTo(cmd.Context(), c, tenant, args[0], input(cmd))
		},
	}
	p.tenantFlag(cmd, &tenant)
	return cmd
}

// typeTo writes what comes to the agent, as it comes.
func typeTo(ctx context.Context, c *client.Client, tenant, name string, in io.Reader) error {
	buffer := make([]byte, typePiece)
	total := int64(0)
	for {
		n, err := in.Read(buffer)
		if n > 0 {
			written, failed := c.TypeToAgent(ctx, tenant, name, buffer[:n])
			total += int64(written)
			if failed != nil {
				return partly(failed, total)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read standard input: %w", err)
		}
	}
}

// partly says how much of what was typed the agent has.
func partly(err error, written int64) error {
	p, ok := problem.As(err)
	if !ok || written == 0 {
		return err
	}
	out := *p
	out.Message = fmt.Sprintf("%s (the agent has the first %d bytes)", p.Message, written)
	return &out
}
