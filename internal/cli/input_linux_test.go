package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func shown(t *testing.T, terminal *os.File) bool {
	t.Helper()
	settings, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return settings.Lflag&unix.ECHO != 0
}

// hidden waits until the terminal does not show what is typed.
func hidden(t *testing.T, terminal *os.File) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); shown(t, terminal); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the terminal shows what is typed")
		}
	}
}

func TestATerminalDoesNotShowACredential(t *testing.T) {
	person, program := testenv.Terminal(t)
	cmd := &cobra.Command{}
	cmd.SetIn(program)
	var asked bytes.Buffer
	cmd.SetErr(&asked)
	cmd.SetContext(t.Context())
	type result struct {
		data []byte
		err  error
	}
	read := make(chan result, 1)
	go func() {
		data, err := readCredential(cmd, "value of github")
		read <- result{data, err}
	}()
	hidden(t, program)
	if _, err := person.WriteString(canary + "\n"); err != nil {
		t.Fatal(err)
	}
	got := <-read
	if got.err != nil || string(got.data) != canary {
		t.Fatalf("it read %q (%v)", got.data, got.err)
	}
	if !strings.Contains(asked.String(), "value of github") || strings.Contains(asked.String(), canary) {
		t.Errorf("it asked %q", asked.String())
	}
	if !shown(t, program) {
		t.Error("the terminal was left without echo")
	}
	// Whatever the terminal showed is waiting at the other end.
	if _, err := program.WriteString("end"); err != nil {
		t.Fatal(err)
	}
	var screen strings.Builder
	for piece := make([]byte, 1024); !strings.Contains(screen.String(), "end"); {
		n, err := person.Read(piece)
		if err != nil {
			t.Fatal(err)
		}
		screen.Write(piece[:n])
	}
	if strings.Contains(screen.String(), canary) {
		t.Errorf("the terminal showed %q", screen.String())
	}
}

func TestAnInterruptedQuestionLeavesTheTerminalAsItWas(t *testing.T) {
	person, program := testenv.Terminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	cmd := &cobra.Command{}
	cmd.SetIn(program)
	cmd.SetErr(&bytes.Buffer{})
	cmd.SetContext(ctx)
	read := make(chan error, 1)
	go func() {
		_, err := readCredential(cmd, "value")
		read <- err
	}()
	hidden(t, program)
	cancel()
	if err := <-read; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if !shown(t, program) {
		t.Error("the terminal was left without echo")
	}
	// In a process that goes on, unlike the command, the read is still waiting for its line.
	if _, err := person.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
}

func TestACredentialOnStandardInput(t *testing.T) {
	for in, want := range map[string]string{"a": "a", "a\n": "a", "a\r\n": "a", "a\nb\n\n": "a\nb\n", " a ": " a "} {
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetIn(strings.NewReader(in))
		if got, err := readCredential(cmd, "value"); err != nil || string(got) != want {
			t.Errorf("%q is %q (%v)", in, got, err)
		}
	}
	for in, want := range map[string]string{"": problem.BadUsage, "\n": problem.BadUsage, strings.Repeat("a", maxTyped+1): problem.BadRequest} {
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetIn(strings.NewReader(in))
		if _, err := readCredential(cmd, "value"); problem.CodeOf(err) != want {
			t.Errorf("%d bytes: %v", len(in), err)
		}
	}
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetIn(strings.NewReader(strings.Repeat("a", maxTyped)))
	if got, err := readCredential(cmd, "value"); err != nil || len(got) != maxTyped {
		t.Errorf("the longest one is %d bytes (%v)", len(got), err)
	}
}

// What a service manager or an engine keeps of `up` is read by others, and has no link that signs in.
func TestUpPrintsALinkForATerminalAlone(t *testing.T) {
	_, screen := testenv.Terminal(t)
	kept, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close() // nothing is written
	p := &program{getenv: func(string) string { return "" }}
	if p.linkForUp(kept, config.Default()) != nil || p.linkForUp(&bytes.Buffer{}, config.Default()) != nil {
		t.Error("a link is made for a log")
	}
	if p.linkForUp(screen, config.Default()) == nil {
		t.Error("no link is made for a terminal")
	}
}
