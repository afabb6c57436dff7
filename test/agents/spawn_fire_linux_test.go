//go:build linux

package agents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	agents "github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// killHalf ends one of the halves at once, and waits until a fresh one answers.
func killHalf(e *testkit.Deployment, which string) {
	e.T.Helper()
	for _, pid := range e.Victims(which) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			e.T.Fatal(err)
		}
	}
	e.Ready()
}

// Of a program whose control plane was killed while it was started, or while it ran, nothing is left.
func TestNothingOfAProgramIsLeftWhenTheControlPlaneIsKilled(t *testing.T) {
	e := testkit.NewEstate(t, "")
	identities(e, "writer")
	barriers := filepath.Join(e.Config.RunDir, "barriers")
	if err := os.Mkdir(barriers, 0o700); err != nil {
		t.Fatal(err)
	}
	sign := mark("22360679")
	program := op.ProcessRequest{Argv: []string{"/bin/sh", "-c", "setsid sleep " + sign + " & exec sleep " + sign}}
	killed := func(step jail.Step) {
		t.Helper()
		armed := filepath.Join(barriers, string(step))
		if err := os.WriteFile(armed, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			defer close(done)
			_, _ = client.Call(ctx, e.API, op.StartProcess(), op.NewProcess{Name: "writer", Body: op.With(program)}) // its control plane is killed meanwhile
		}()
		testenv.Eventually(t, 20*time.Second, func() bool { _, err := os.Lstat(armed + ".reached"); return err == nil }, "the step %s was not reached", step)
		if err := syscall.Kill(e.Victims("serve")[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(armed), os.Remove(armed+".reached")); err != nil {
			t.Error(err)
		}
		<-done
		e.Ready()
	}
	// Until it was handed over it is nobody's, and goes at once.
	for _, step := range []jail.Step{jail.StepClone, jail.StepVerify, jail.StepDeliver} {
		killed(step)
		e.Clean(20 * time.Second)
	}
	// Then it goes after the grace. So does one that ran.
	started, err := client.Call(t.Context(), e.API, op.StartProcess(), op.NewProcess{Name: "writer", Body: op.With(program)})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return len(inJail(t, string(started.Jail))) > 1 }, "it does not run")
	killed(jail.StepBegin)
	e.Clean(45 * time.Second)
	if left := hostProcesses(t, "cmdline", sign); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if all, err := client.Call(t.Context(), e.API, op.ListProcesses(), op.OneAgent{Name: "writer"}); err != nil || len(all.Processes) > 0 {
		t.Errorf("the new control plane has %+v, %v", all, err)
	}
}

// A host daemon that is killed while a program runs in an agent's jail ends it when it is back, with what was staged for it. The
// agent's own program goes on.
func TestAKilledHostDaemonEndsWhatItHasStartedInJails(t *testing.T) {
	e := testkit.NewEstate(t, "")
	e.Sync("clawbots: [{name: bot, command: [/bin/sleep, infinity]}]")
	was, sign := e.Running("bot").Jail, mark("26457513")
	for range 2 {
		started, err := client.Call(t.Context(), e.API, op.StartProcess(), op.NewProcess{Name: "bot", Body: op.With(op.ProcessRequest{Jail: &op.ProcessJail{Name: "bot"},
			Argv: []string{"/bin/sh", "-c", "(setsid sleep " + sign + " &); echo '{}'; exec sleep " + sign}})})
		if err != nil {
			t.Fatal(err)
		}
		firstLine(e, "bot", started.ID)
		testenv.Eventually(t, 20*time.Second, func() bool { return len(hostProcesses(t, "cmdline", sign)) > 1 }, "its processes do not run")
		killHalf(e, "hostd")
		testenv.Eventually(t, 30*time.Second, func() bool { return len(hostProcesses(t, "cmdline", sign)) == 0 }, "its processes are left")
		testenv.Eventually(t, 30*time.Second, func() bool {
			all, err := client.Call(t.Context(), e.API, op.ListProcesses(), op.OneAgent{Name: "bot"})
			return err == nil && len(all.Processes) > 0 && all.Processes[len(all.Processes)-1].Exit != nil
		}, "nobody is told that it has ended")
		// This very command is staged there too.
		if out := e.MustIn("bot", "ls -d "+jail.StageDir+"/????????????????????????????????"); strings.Count(out, "\n") > 1 {
			t.Errorf("what was staged is left: %q", out)
		}
	}
	if is := e.Running("bot").Jail; is.Name != was.Name || is.PID != was.PID {
		t.Errorf("the agent's own program was %s, %d and is %s, %d", was.Name, was.PID, is.Name, is.PID)
	}
}

// A command whose host daemon is killed ends, also at the moment at which its program is handed over and has not begun: nobody
// would tell it of the end of a program that no journal knows.
func TestSpawnEndsWhenTheHostDaemonIsKilledAtAnyStep(t *testing.T) {
	e := testkit.NewEstate(t, "")
	identities(e, "writer")
	barriers := filepath.Join(e.Config.RunDir, "barriers")
	if err := os.Mkdir(barriers, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, errs, status := spawned(e, nil, "--agent", "writer", "--", "/bin/echo", "hello"); status != 0 || out != "hello\n" {
		t.Fatalf("without a kill: %d %q %q", status, out, errs)
	}
	sign := mark("31622776")
	for _, step := range []jail.Step{jail.StepClone, jail.StepVerify, jail.StepDeliver, jail.StepBegin} {
		armed := filepath.Join(barriers, string(step))
		if err := os.WriteFile(armed, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer // read after the end only
		cmd := e.Command(t.Context(), "spawn", "--agent", "writer", "--", "/bin/sleep", sign)
		cmd.Stdout, cmd.Stderr = &said, &said
		ended := testkit.Child(t, cmd)
		testenv.Eventually(t, 20*time.Second, func() bool { _, err := os.Lstat(armed + ".reached"); return err == nil }, "the step %s was not reached", step)
		if err := syscall.Kill(e.Victims("hostd")[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(armed), os.Remove(armed+".reached")); err != nil {
			t.Error(err)
		}
		select {
		case <-ended:
			if cmd.ProcessState.ExitCode() == 0 {
				t.Errorf("killed at %s, it says that all is well: %s", step, said.String())
			}
		case <-time.After(45 * time.Second):
			t.Errorf("killed at %s, the command waits: %s", step, said.String())
		}
		e.Ready()
		testenv.Eventually(t, 30*time.Second, func() bool { return len(hostProcesses(t, "cmdline", sign)) == 0 }, "killed at %s, its processes are left", step)
	}
}

// The programs of a jail may put anything into its home folder, where programs were staged once. It is in nobody's way, nothing is
// followed and nothing is written through it.
func TestAPlantedStageIsInNobodysWay(t *testing.T) {
	e := testkit.NewEstate(t, "")
	shared := filepath.Join(e.Dir, "workspaces", "own")
	e.Sync("clawbots: [{name: bot, workspace: ./workspaces/own, command: [/bin/sh]}]")
	e.Running("bot")
	said := 0
	// plant runs a command in the jail without anything being staged: the agent's own program reads it.
	plant := func(command string) {
		t.Helper()
		said++
		mark := fmt.Sprintf("done-%d-", said)
		if _, err := e.API.TypeToAgent(t.Context(), "", "bot", []byte("{ cd /state; rm -rf .cache; "+command+"; } 2>&1; echo "+mark+"$?\n")); err != nil {
			t.Fatal(err)
		}
		var text []byte
		testenv.Eventually(t, 20*time.Second, func() bool {
			c, err := e.API.AgentLog(t.Context(), jail.LogRequest{Name: "bot", Stream: jail.Stdout})
			text = c.Data
			return err == nil && bytes.Contains(c.Data, []byte(mark))
		}, "the agent does not do it")
		if !bytes.Contains(text, []byte(mark+"0\n")) {
			t.Fatalf("%s: %s", command, text)
		}
	}
	for what, command := range map[string]string{
		"a link to the workspace":          "mkdir -p .cache/clawjail && ln -s /workspace .cache/clawjail/stage",
		"a link on the way":                "mkdir /workspace/clawjail; ln -s /workspace .cache",
		"a link to the host":               "mkdir -p .cache && ln -s /proc/1/root/tmp .cache/clawjail",
		"a link that leads nowhere":        "mkdir -p .cache/clawjail && ln -s /state/nowhere .cache/clawjail/stage",
		"a FIFO":                           "mkdir -p .cache/clawjail && mkfifo .cache/clawjail/stage",
		"a FIFO on the way":                "mkfifo .cache",
		"a file":                           "mkdir -p .cache/clawjail && : > .cache/clawjail/stage",
		"another name of a file elsewhere": "mkdir -p .cache/clawjail && echo whole > file && ln file .cache/clawjail/stage",
	} {
		plant(command)
		before, err := os.ReadDir(shared)
		if err != nil {
			t.Fatal(err)
		}
		out, errs, status := spawned(e, nil, "--jail", "bot", "--", "/bin/sh", "-c", "echo it runs")
		if status != 0 || out != "it runs\n" {
			t.Errorf("%s keeps a program from starting: %q, %q, %d", what, out, errs, status)
		}
		after, err := os.ReadDir(shared)
		if err != nil || len(before) != len(after) {
			t.Errorf("%s: beside the jail were %v, and are %v, %v", what, before, after, err)
		}
		if nested, err := os.ReadDir(filepath.Join(shared, "clawjail")); err == nil && len(nested) > 0 {
			t.Errorf("%s: beside the jail there is %v", what, nested)
		}
	}
	plant("test \"$(cat file)\" = whole && ! test -e nowhere")
	if out, errs, status := spawned(e, nil, "--jail", "bot", "--", "echo", "it runs"); status != 0 || out != "it runs\n" {
		t.Errorf("when nothing is in the way: %q, %q, %d", out, errs, status)
	}
}

// A reader of an agent's events goes on where it was, whatever was restarted.
func TestEventsGoOnAfterARestartOfTheControlPlane(t *testing.T) {
	e := testkit.NewEstate(t, "")
	e.Sync(`
clawbots:
  - name: counter
    command: [/bin/sh, -c, 'i=0; while :; do i=$((i+1)); echo "{\"type\":\"tick\",\"n\":$i}"; sleep 0.02; done']
`)
	e.Running("counter")
	var lines []string
	last := ""
	enough := errors.New("enough")
	// read goes on until there are so many lines, or the control plane is gone.
	read := func(limit int) error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		return e.API.Events(ctx, client.EventsQuery{Agent: "counter", After: last, Follow: true}, func(ev agents.Event) error {
			if ev.Type == agents.EventJSON {
				lines = append(lines, string(ev.JSON))
			} else if ev.Type != agents.EventStarted {
				t.Errorf("between the lines is %+v", ev)
			}
			if last = ev.ID; len(lines) >= limit {
				return enough
			}
			return nil
		})
	}
	for round, half := range []string{"serve", "hostd", "serve"} {
		if err := read(30 * (round + 1)); !errors.Is(err, enough) {
			t.Fatalf("round %d: %v after %d lines", round, err, len(lines))
		}
		if half == "serve" {
			// It is killed while somebody reads.
			broken := make(chan error, 1)
			go func() { broken <- read(1 << 30) }()
			killHalf(e, half)
			if err := <-broken; err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("round %d: the reader is told %v", round, err)
			}
		} else {
			killHalf(e, half)
		}
	}
	if err := read(len(lines) + 30); !errors.Is(err, enough) {
		t.Fatal(err)
	}
	for i, line := range lines {
		if want := fmt.Sprintf(`{"type":"tick","n":%d}`, i+1); line != want {
			t.Fatalf("line %d is %q, want %q", i+1, line, want)
		}
	}
}

// The agent does not wait for whoever reads slowly, who is told how much is missing.
func TestASlowReaderIsToldWhatItHasMissed(t *testing.T) {
	e := testkit.NewEstate(t, "agents: {log: 1MiB}\n")
	e.Sync(`
clawbots:
  - name: loud
    limits: {cpu: 2}
    command: [/bin/sh, -c, 'read go; seq -f "%09.0f abcdefghijklmnopqrstuvwxyz abcdefghijklmnopqrstuvwxyz" 1 400000; exec sleep infinity']
`)
	e.Running("loud")
	const width, count = 64, 400000
	full := func() bool {
		c, err := e.API.AgentLog(t.Context(), jail.LogRequest{Name: "loud", Stream: jail.Stdout, Offset: -1})
		return err == nil && c.End == width*count
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	got, missed, next := 0, int64(0), 1
	enough := errors.New("enough")
	err := e.API.Events(ctx, client.EventsQuery{Agent: "loud", Follow: true}, func(ev agents.Event) error {
		switch ev.Type {
		case agents.EventStarted:
			if _, err := e.API.TypeToAgent(ctx, "", "loud", []byte("go\n")); err != nil {
				return err
			}
			testenv.Eventually(t, time.Minute, full, "it waits for its reader")
		case agents.EventMissed:
			missed += ev.Missed
			next = 0
		case agents.EventText:
			if ev.Cut { // the rest of a line whose beginning is gone
				missed += int64(len(ev.Text)) + 1
				return nil
			}
			number, _, _ := strings.Cut(ev.Text, " ")
			n, err := strconv.Atoi(number)
			if err != nil || next != 0 && n != next {
				return fmt.Errorf("after line %d comes %q", next-1, ev.Text)
			}
			got, next = got+1, n+1
			if n == count {
				return enough
			}
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatalf("%v after %d lines and %d missed bytes", err, got, missed)
	}
	if missed == 0 || int64(got)*width+missed != width*count {
		t.Errorf("%d lines came and %d bytes were missed, of %d", got, missed, width*count)
	}
}
