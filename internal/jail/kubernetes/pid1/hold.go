//go:build linux

package pid1

import (
	"errors"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/jail/linux"
)

// HoldCommand is the argument that makes of a shim what Hold does. The next one is how many descriptors the program has.
const HoldCommand = "hold"

// Hold starts a program beside the pod's own and becomes the parent of what it leaves behind, so that everything that it has started ends with
// it, or with SIGTERM to this process. To the descriptor behind the program's it says two things: that the program runs, and how it has ended.
func Hold(args []string) int {
	if len(args) < 2 {
		return ExitUsage
	}
	count, err := strconv.ParseUint(args[0], 10, 8)
	if err != nil {
		return ExitUsage
	}
	told := os.NewFile(uintptr(count), "told")
	say := func(r shim.Reply) { _ = shim.WriteMessage(told, r) } // it fails only when the reader has ended
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM)
	files := make([]uintptr, count)
	for n := range files {
		files[n] = uintptr(n)
	}
	err = errors.Join(linux.HideSelf(), linux.CloseFrom(uint(count)), linux.BecomeSubreaper())
	var pid int
	if err == nil {
		pid, err = syscall.ForkExec(args[1], args[1:], &syscall.ProcAttr{Env: os.Environ(), Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	}
	if err != nil {
		say(shim.Reply{Refused: shim.RefusalOf(errors.New(plain(err)))})
		return ExitFailed
	}
	for n := range files {
		_ = syscall.Close(n) // the program alone has them
	}
	say(shim.Reply{PID: pid})
	over := false
	var status syscall.WaitStatus
	reap := func() (left bool) {
		return collect(func(one int, how syscall.WaitStatus) {
			if one == pid {
				over, status = true, how
			}
		})
	}
	for reap() && !over {
		if <-signals == syscall.SIGTERM {
			break
		}
	}
	for reap() {
		for _, one := range descendants(os.Getpid()) {
			_ = syscall.Kill(one, syscall.SIGKILL) // it may have ended
		}
		time.Sleep(time.Millisecond)
	}
	exit := exitOf(status)
	say(shim.Reply{Exit: &exit})
	return 0
}

// descendants are the processes that a process has started, and those that they have.
func descendants(of int) []int {
	children := map[int][]int{}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil // Hold kills and asks in rounds
	}
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		// The name stands in parentheses, and may have some itself; behind it are the state and the parent.
		after := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(after) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(after[1]); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	out := slices.Clone(children[of])
	for n := 0; n < len(out); n++ {
		out = append(out, children[out[n]]...)
	}
	return out
}
