package supervisor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/problem"
)

// UpOptions are what Up needs.
type UpOptions struct {
	Config config.Config
	// ConfigPath is the file that Config came from; both halves read it again. Empty is the defaults.
	ConfigPath string
	// Executable is this program.
	Executable string
	Stdout     io.Writer // for people: where things are, what to do next
	Stderr     io.Writer // for the lines of both halves
	Log        *slog.Logger
	// ConsoleLink makes a link that signs the person who has started this in to the console. May be nil.
	ConsoleLink func(ctx context.Context) (string, error)
	// Prepare makes what jails are made of, before anything is started: when it fails, nothing is. May be nil.
	Prepare func(ctx context.Context) error
	// EndJails ends every jail when no host daemon runs. It is called when a half was given up. Required.
	EndJails func(ctx context.Context) error
	// Notify tells a service manager when both halves are ready. May be nil.
	Notify func(state string) error
}

const (
	// serveGrace is for closing the sessions, hostGrace for ending what jails are left.
	serveGrace, hostGrace = 30 * time.Second, 90 * time.Second
	// askEvery is between two questions whether a process is ready.
	askEvery = 20 * time.Millisecond
)

// Up runs clawjail on this machine until the context ends.
func Up(ctx context.Context, o UpOptions) error {
	if os.Geteuid() != 0 {
		return problem.New(problem.NoRoot, "sudo clawjail up", "clawjail up must run as root: it starts the host daemon, which makes jails")
	}
	home := hostd.ControlDir(o.Config)
	made, err := EnsureAccount(ctx, o.Config.User, home)
	if err != nil {
		return err
	}
	if made {
		fmt.Fprintf(o.Stdout, "made the system user %s for the control plane\n", o.Config.User)
	}
	control, err := user.Lookup(o.Config.User)
	if err != nil {
		return fmt.Errorf("look up user %s: %w", o.Config.User, err)
	}
	credential, err := credentialOf(control)
	if err != nil {
		return err
	}
	if err := portIsFree(ctx, o.Config.Listen); err != nil {
		return err
	}
	if o.Prepare != nil {
		if err := o.Prepare(ctx); err != nil {
			return err
		}
	}
	client := hostd.NewClient(hostd.SocketPath(o.Config), nil)
	children := []Child{
		{
			Name: "hostd", Code: problem.HostdUnreachable, Grace: hostGrace,
			// Everything that this command has started ends with it: the jails as well.
			Command: func() *exec.Cmd { return o.command(nil, without(os.Environ(), "GOMEMLIMIT"), "hostd", "--end-jails") },
			Ready:   func(ctx context.Context, pid int) error { return hostReady(ctx, client, pid) },
		},
		{
			Name: "serve", Code: problem.ControlPlaneUnreachable, Grace: serveGrace,
			Command: func() *exec.Cmd {
				return o.command(credential, controlEnvironment(os.Environ(), control.Username, home), "serve")
			},
			Ready: func(ctx context.Context, _ int) error { return serveReady(ctx, o.Config) },
		},
	}
	err = Run(ctx, Options{
		Children: children, Output: o.Stderr, Log: o.Log,
		Pace: func(ctx context.Context) pace.Pace { return pace.Measure(ctx, time.Now) },
		Up: func() {
			fmt.Fprint(o.Stdout, welcome(o.Config, o.console(ctx), nextStep(ctx, client)))
			if o.Notify != nil {
				if err := o.Notify("READY=1"); err != nil {
					o.Log.Warn("tell the service manager", "error", err)
				}
			}
		},
	})
	if err != nil {
		// A host daemon that was given up has left its jails, which would run on beyond their wall clock.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostGrace)
		defer cancel()
		// A conflict is another host daemon of this installation: the jails are its.
		if left := o.EndJails(end); problem.CodeOf(left) != problem.Conflict {
			err = errors.Join(err, left)
		}
	}
	return err
}

// command starts a half of this program in a process group of its own: Ctrl-C in a terminal reaches this process
// alone, which then ends them in their order.
func (o UpOptions) command(c *syscall.Credential, environment []string, name string, args ...string) *exec.Cmd {
	args = append([]string{name}, args...)
	if o.ConfigPath != "" {
		args = append(args, "--config", o.ConfigPath)
	}
	cmd := exec.Command(o.Executable, args...)
	cmd.Path, cmd.Err = startable(o.Executable), nil
	cmd.Dir = "/"
	cmd.Env = without(environment, "NOTIFY_SOCKET") // speaking to the service manager is this process's
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c}
	endWithParent(cmd.SysProcAttr)
	return cmd
}

// credentialOf is the user with its own group and no others.
func credentialOf(u *user.User) (*syscall.Credential, error) {
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("user %s: %w", u.Username, err)
	}
	if uid == 0 || gid == 0 {
		return nil, problem.New(problem.BadConfig, "name an unprivileged user, or remove the key for the user clawjail",
			"the user %s of the control plane has root's rights", u.Username)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// controlEnvironment is what the control plane gets of root's environment: how to reach the outside, its bound of memory, and no more.
// Other variables of root's shell may be secret.
func controlEnvironment(environment []string, name, home string) []string {
	keep := []string{"PATH", "TZ", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "GOMEMLIMIT"}
	var out []string
	for _, v := range environment {
		key, _, _ := strings.Cut(v, "=")
		if slices.Contains(keep, strings.ToUpper(key)) {
			out = append(out, v)
		}
	}
	return append(out, "HOME="+home, "USER="+name, "LOGNAME="+name)
}

func without(environment []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(v string) bool { return strings.HasPrefix(v, name+"=") })
}

// portIsFree tells early, and in plain words, what the control plane would fail with.
func portIsFree(ctx context.Context, listen netip.AddrPort) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", listen.String())
	if err != nil {
		return problem.Wrap(err, problem.Conflict, "stop what uses it (is clawjail up already running?), or set listen in the configuration",
			"the API cannot listen on %s", listen)
	}
	return l.Close()
}

// hostReady waits until the host daemon with this process id answers. An older one may still be ending.
func hostReady(ctx context.Context, client *hostd.Client, pid int) error {
	return poll(ctx, func(ctx context.Context) error {
		info, err := client.Info(ctx)
		if err == nil && info.PID != pid {
			err = fmt.Errorf("process %d answers, not %d", info.PID, pid)
		}
		return err
	})
}

// serveReady waits until the API answers.
func serveReady(ctx context.Context, c config.Config) error {
	// The certificate is for the names that people use, and this asks by address: only that somebody answers counts.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	client := http.Client{Transport: transport, Timeout: 5 * time.Second}
	return poll(ctx, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, apiURL(c, reachable(c.Listen))+"/v1/health", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close() // nothing of it is read
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("the API answers %s", resp.Status)
		}
		return nil
	})
}

// reachable is an address by which a listener is reached from here.
func reachable(a netip.AddrPort) netip.AddrPort {
	if a.Addr().IsUnspecified() {
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if a.Addr().Is6() {
			loopback = netip.IPv6Loopback()
		}
		return netip.AddrPortFrom(loopback, a.Port())
	}
	return a
}

func apiURL(c config.Config, a netip.AddrPort) string {
	scheme := "http"
	if c.TLS.Set() {
		scheme = "https"
	}
	return scheme + "://" + a.String()
}

// poll asks until the answer is nil. When the context ends first, the last answer is the error.
func poll(ctx context.Context, ask func(context.Context) error) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// nextStep is what somebody who has just started clawjail does next.
func nextStep(ctx context.Context, client *hostd.Client) string {
	templates, err := client.Templates(ctx)
	if err == nil && len(templates) == 0 {
		return "sudo clawjail template build browser"
	}
	return "sudo clawjail session open https://example.com"
}

// console is where the console is, and how to get in.
func (o UpOptions) console(ctx context.Context) string {
	if !o.Config.Console.Enabled {
		return "switched off"
	}
	if o.ConsoleLink != nil {
		link, err := o.ConsoleLink(ctx)
		if err == nil {
			return link + "\n             (signs you in once, within ten minutes; another: sudo clawjail console)"
		}
		o.Log.Warn("make a link to the console", "error", err)
	}
	return apiURL(o.Config, o.Config.Listen) + "/console/ (sign in: sudo clawjail console)"
}

func welcome(c config.Config, console, next string) string {
	return fmt.Sprintf(`clawjail is up.
  API        %s
  console    %s
  admin key  %s
  next       %s
Ctrl-C ends it, with every jail.
`, apiURL(c, c.Listen), console, hostd.AdminKeyPath(c), next)
}
