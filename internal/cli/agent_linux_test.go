package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// written is an output that can be looked at meanwhile.
type written struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// sitting runs a command for somebody at a terminal.
func sitting(ctx context.Context, terminal *os.File, out, errs io.Writer, args ...string) int {
	root := New("v1.2.3")
	root.SetArgs(args)
	root.SetIn(terminal)
	root.SetOut(out)
	root.SetErr(errs)
	return exitStatus(errs, root.ExecuteContext(ctx))
}

func TestWhatCannotBeUndoneIsAskedAboutOnATerminal(t *testing.T) {
	w := newFixture(t)
	file := filepath.Join(t.TempDir(), "clawbots.yml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("clawbots: [{name: dev-bot}, {name: other}]\n")
	if status, _, errs := run(t, "", "agent", "sync", "-f", file); status != 0 {
		t.Fatal(errs)
	}
	write("clawbots: [{name: other}]\n")
	there := func() string {
		_, out, _ := run(t, "", "agent", "ls")
		return out
	}
	person, program := testenv.Terminal(t)
	ask := func(answer string, args ...string) (int, string) {
		errs := &written{}
		ended := make(chan int, 1)
		go func() { ended <- sitting(t.Context(), program, io.Discard, errs, args...) }()
		testenv.Eventually(t, 10*time.Second, func() bool { return strings.Contains(errs.String(), "go on? [y/N]") }, "it asks")
		if _, err := person.WriteString(answer + "\n"); err != nil {
			t.Fatal(err)
		}
		return <-ended, errs.String()
	}
	for _, args := range [][]string{{"agent", "sync", "-f", file, "--prune"}, {"agent", "rm", "dev-bot"}} {
		for _, answer := range []string{"", "n", "yesterday"} {
			if status, errs := ask(answer, args...); status != exitFailure || !strings.Contains(errs, "this removes dev-bot, with everything in /state") {
				t.Errorf("%v, %q: %d %s", args, answer, status, errs)
			}
			if !strings.Contains(there(), "dev-bot") {
				t.Fatalf("%v removes it when the answer is %q", args, answer)
			}
		}
	}
	if status, errs := ask("y", "agent", "sync", "-f", file, "--prune"); status != exitDone || strings.Contains(there(), "dev-bot") || !slices.Equal(w.agents.removes, []string{"dev-bot"}) {
		t.Errorf("%d %s: it asks to remove %v", status, errs, w.agents.removes)
	}
	if status, errs := ask("yes", "agent", "remove", "other"); status != exitDone || strings.Contains(there(), "other") {
		t.Errorf("%d %s", status, errs)
	}
}

// A read from a pipe to which nobody writes ends with the command.
func TestAnInterruptionEndsWhatReadsStandardInput(t *testing.T) {
	newFixture(t)
	if status, _, errs := run(t, "", "agent", "add", "dev-bot"); status != 0 {
		t.Fatal(errs)
	}
	for _, args := range [][]string{{"agent", "type", "dev-bot"}, {"agent", "sync", "-f", "-"}, {"secret", "set", "token"}, {"rules", "test", "-"}} {
		in, other, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended, errs := make(chan int, 1), &written{}
		go func() { ended <- sitting(ctx, in, io.Discard, errs, args...) }()
		select {
		case status := <-ended:
			t.Errorf("%v does not wait for its input: %d %s", args, status, errs)
		case <-time.After(200 * time.Millisecond): // it waits for ever
		}
		cancel()
		select {
		case status := <-ended:
			if status != exitFailure {
				t.Errorf("%v ends with %d: %s", args, status, errs)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%v goes on", args)
		}
		if err := errors.Join(other.Close(), in.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestALogIsFollowed(t *testing.T) {
	w := newFixture(t)
	if status, _, errs := run(t, "", "agent", "add", "dev-bot"); status != 0 {
		t.Fatal(errs)
	}
	say := func(s jail.Stream, text string) {
		w.agents.mu.Lock()
		defer w.agents.mu.Unlock()
		w.agents.log[s] += text
	}
	say(jail.Stdout, "old\n")
	ctx, cancel := context.WithCancel(t.Context())
	out, errs := &written{}, &written{}
	ended := make(chan int, 1)
	go func() { ended <- sitting(ctx, nil, out, errs, "agent", "logs", "-f", "--tail", "0", "dev-bot") }()
	for _, want := range []string{"one", "two", "three"} {
		// What is said before it has begun to look is not followed.
		testenv.Eventually(t, 10*time.Second, func() bool {
			if !strings.Contains(out.String(), want) {
				say(jail.Stdout, want+"\n")
			}
			say(jail.Stderr, "warning\n")
			return strings.Contains(out.String(), want+"\n") && strings.Contains(errs.String(), "warning\n")
		}, want)
	}
	cancel()
	if status := <-ended; status != exitFailure || strings.Contains(out.String(), "old") || strings.Contains(out.String(), "warning") {
		t.Errorf("%d %s", status, out)
	}
}
