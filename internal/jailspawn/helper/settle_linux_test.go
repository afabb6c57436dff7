package helper

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/testenv"
)

// settleVariable makes the test's binary a process that settles, and says what it is then.
const settleVariable = "HELPER_TEST_SETTLE"

func TestMain(m *testing.M) {
	if os.Getenv(settleVariable) != "" {
		os.Exit(settled())
	}
	os.Exit(m.Run())
}

func settled() int {
	was, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err == nil {
		err = settle()
	}
	is, isErr := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	dir, dirErr := os.Getwd()
	if err != nil || isErr != nil || dirErr != nil {
		fmt.Println(err, isErr, dirErr)
		return 1
	}
	fmt.Printf("dumpable %d, then %d; %s; umask %04o", was, is, dir, unix.Umask(0))
	return 0
}

// The kernel hides a setuid program by itself, unless fs.suid_dumpable says otherwise; here it is the helper that does.
func TestSettlingHidesTheMemoryAndLeavesTheFolder(t *testing.T) {
	testenv.Need(t, testenv.Root)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env, cmd.Dir = []string{settleVariable + "=1", "PWD=/tmp"}, "/tmp"
	if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "dumpable 1, then 0; /; umask 0077" {
		t.Errorf("%v: %s", err, out)
	}
}
