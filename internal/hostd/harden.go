package hostd

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

const (
	// searchPath is where the host daemon finds the few programs that it runs.
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// The host daemon keeps little: a small heap that is collected often costs less than memory that stays taken. There is no limit besides: where
	// it has thousands of pods it needs hundreds of megabytes, and would do nothing but collect.
	gcPercent = 50
)

// stageDirVariable says where programs that join a running jail are staged: an absolute path inside the jail. It is root's
// environment that counts, not that of the program's caller.
const stageDirVariable = "CLAWJAIL_STAGE_DIR"

// Harden gives the process what it starts with by itself, whoever started it: an environment without surprises, no
// files for others, no core dumps, the root as its folder, and no descriptor that a jail could inherit. It is for a
// process that is nothing but the host daemon, and is called first.
func Harden() error {
	debug.SetGCPercent(gcPercent)
	unix.Umask(0o077)
	keep := map[string]string{"PATH": searchPath}
	for _, name := range []string{"NOTIFY_SOCKET", "TZ", stageDirVariable, "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"} {
		if v, ok := os.LookupEnv(name); ok {
			keep[name] = v
		}
	}
	os.Clearenv()
	var errs []error
	for name, v := range keep {
		errs = append(errs, os.Setenv(name, v))
	}
	errs = append(errs, os.Chdir("/"), unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: noCores, Max: noCores}), hardenPlatform())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("harden the host daemon: %w", err)
	}
	return nil
}
