package vault

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

// childLock names the lock that a test's child process takes.
const childLock = "CLAWJAIL_TEST_VAULT_LOCK"

// holdLock is the child: it takes the lock, says so, and keeps it until it is killed or its input ends.
func holdLock() {
	release, err := tryLock(os.Getenv(childLock))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer release()
	fmt.Println("locked")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestLockIsBetweenProcessesAndEndsWithTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), self)
	child.Env = append(os.Environ(), childLock+"="+path)
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil || line != "locked\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	if _, err := tryLock(path); !errors.Is(err, errLocked) {
		t.Errorf("a lock that another process has: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for it: %v", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	testenv.Eventually(t, 5*time.Second, func() bool {
		release, err := tryLock(path)
		return err == nil && release() == nil
	}, "the lock is free after its process was killed")
}

func TestLockIsNotTakenThroughALink(t *testing.T) {
	target := filepath.Join(t.TempDir(), "target")
	writeFile(t, target, nil)
	path := filepath.Join(t.TempDir(), "lock")
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	if _, err := tryLock(path); err == nil {
		t.Error("a link was followed")
	}
}
