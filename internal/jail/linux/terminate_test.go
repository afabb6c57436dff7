//go:build linux

package linux

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// The first process of a jail never gets a signal that it does not handle: where nobody would act on it, nobody waits.
func TestTerminateWaitsForThoseWhoHandleIt(t *testing.T) {
	const wait = `while :; do read x; done`
	for what, c := range map[string]struct {
		script string
		code   int
	}{
		"nobody handles it":                   {`echo ready; ` + wait, 128 + int(syscall.SIGKILL)},
		"all have it ignored":                 {`trap '' TERM; sh -c 'echo ready; ` + wait + `'; exit 7`, 128 + int(syscall.SIGKILL)},
		"the first handles it":                {`trap 'exit 5' TERM; echo ready; ` + wait, 5},
		"another than the first handles it":   {`sh -c 'trap "exit 3" TERM; echo ready; ` + wait + `'; exit 7`, 7},
		"one in the background with children": {`(trap 'exit 4' TERM; echo ready; ` + wait + `) <&0 & wait $!; exit $?`, 4},
	} {
		t.Run(what, func(t *testing.T) {
			onEachRuntime(t, func(t *testing.T, h *testHost) {
				spec := probeSpec(jail.KindAgent)
				spec.Program.Argv = []string{"/bin/sh", "-c", c.script}
				j := h.start(t, spec, nil)
				if _, err := j.Try("ignored"); err == nil { // returns when the shell has said that it is ready
					t.Fatal("the shell answered like the probe")
				}
				must(t, h.runtime.Terminate(t.Context(), j.place.Name, j.proc))
				ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience*5*time.Second)
				defer cancel()
				if code, _, err := h.runtime.Wait(ctx, j.place.Name, j.proc); code != c.code || err != nil {
					t.Errorf("ended with %d %v, want %d", code, err, c.code)
				}
			})
		})
	}
}

func TestSetsOfSignalsAreRead(t *testing.T) {
	for set, want := range map[string]bool{
		"0000000000000000": false, "0000000000004000": true, "fffffffffffbbeff": false, "fffffffffffbfeff": true,
		"0000000000002000": false, "0000000000008000": false, "": true, "not a number": true,
	} {
		status := fmt.Sprintf("Name:\tSigCgt:\nSigPnd:\t0000000000004000\nSigIgn:\t0000000000004000\nSigCgt:\t%s\n", set)
		if got := hasSignal([]byte(status), "SigCgt", syscall.SIGTERM); got != want {
			t.Errorf("%q: %v", set, got)
		}
	}
	if !hasSignal([]byte("Name:\tx\n"), "SigBlk", syscall.SIGTERM) {
		t.Error("a set that is not there is taken for an empty one")
	}
}
