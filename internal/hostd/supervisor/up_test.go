package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// pretend is the program that Up starts: a whole host daemon on a host in memory, and a control plane that only says
// that it is well.
func pretend(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	path := ""
	if i := slices.Index(args, "--config"); i >= 0 {
		path = args[i+1]
	}
	c, err := config.Load(path)
	if err == nil && args[0] == "hostd" {
		err = pretendHost(ctx, c, slices.Contains(args, "--end-jails"))
	} else if err == nil {
		err = pretendServe(ctx, c)
	}
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

func pretendHost(ctx context.Context, c config.Config, endJails bool) error {
	fmt.Printf("end jails %t notify %q\n", endJails, os.Getenv("NOTIFY_SOCKET"))
	return hostd.Run(ctx, hostd.RunOptions{
		Config: c, EndJails: endJails, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Templates: func(context.Context) ([]hostd.Template, error) { return nil, nil },
		Substrate: hostd.Substrate{
			FreeSubnet: func(context.Context, jail.Installation) (netip.Prefix, error) {
				return netip.ParsePrefix("10.99.0.0/24")
			},
			Assemble: func(context.Context, hostd.AssembleOptions) (hostd.Parts, error) {
				return hostd.Parts{Parts: jailtest.NewMemory(jailtest.NewHost()).Options().Parts}, nil
			},
		},
	})
}

func pretendServe(ctx context.Context, c config.Config) error {
	groups, err := os.Getgroups()
	if err != nil {
		return err
	}
	fmt.Printf("uid %d gid %d groups %v home %s notify %q secret %q\n", os.Geteuid(), os.Getegid(), groups,
		os.Getenv("HOME"), os.Getenv("NOTIFY_SOCKET"), os.Getenv("ROOT_SECRET"))
	// The control plane does this first: it writes to its own folder, and the host daemon answers it.
	if err := os.WriteFile(hostd.AdminKeyPath(c), []byte("key"), 0o600); err != nil {
		return err
	}
	info, err := hostd.NewClient(hostd.SocketPath(c), nil).Info(ctx)
	if err != nil {
		return err
	}
	fmt.Println("host daemon of", info.Subnet)
	l, err := net.Listen("tcp", c.Listen.String())
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/health" {
			http.NotFound(w, r)
		}
	})}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	<-ctx.Done()
	fmt.Println("sessions are closed")
	err = server.Close()
	<-done
	return err
}

// installation makes a folder with a copy of this program that everyone can run, and a configuration file.
func installation(t *testing.T) UpOptions {
	t.Helper()
	dir, err := os.MkdirTemp("", "up")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		notes := hostd.CheckpointsPath(config.Config{DataDir: filepath.Join(dir, "data")})
		if err := errors.Join(checkpoint.Unprotect(notes), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	o := UpOptions{Executable: filepath.Join(dir, "clawjail"), ConfigPath: filepath.Join(dir, "clawjail.yml"), Log: slog.New(slog.DiscardHandler),
		EndJails: func(context.Context) error { return nil }}
	text := fmt.Sprintf("data_dir: %s/data\nrun_dir: %s/run\nuser: nobody\nlisten: 127.0.0.1:%d\n", dir, dir, testenv.FreePort(t))
	for path, data := range map[string][]byte{o.Executable: program, o.ConfigPath: []byte(text)} {
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if o.Config, err = config.LoadTrusted(o.ConfigPath); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestUpRunsBothHalvesAndEndsThem(t *testing.T) {
	testenv.Need(t, testenv.Root)
	t.Setenv("ROOT_SECRET", "hunter2")
	t.Setenv("NOTIFY_SOCKET", "@nobody-listens")
	o := installation(t)
	stdout, stderr := &output{}, &output{}
	o.Stdout, o.Stderr = stdout, stderr
	ready := make(chan struct{})
	o.Notify = func(state string) error {
		if state == "READY=1" {
			close(ready)
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Up(ctx, o) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("up ended: %v\n%s", err, stderr)
	case <-time.After(patience):
		t.Fatalf("up is not ready:\n%s", stderr)
	}
	resp, err := http.Get("http://" + o.Config.Listen.String() + "/v1/health")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Fatalf("the end: %v\n%s", err, stderr)
	}
	said := stderr.String()
	for _, want := range []string{
		"hostd: end jails true notify \"\"\n",
		"serve: uid 65534 gid 65534 groups [] home " + hostd.ControlDir(o.Config) + " notify \"\" secret \"\"\n",
		"serve: host daemon of 10.99.0.0/24\n",
		"serve: sessions are closed\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in the output:\n%s", want, said)
		}
	}
	if want := welcome(o.Config, o.console(t.Context()), "sudo clawjail template build browser"); stdout.String() != want {
		t.Errorf("it says %q, want %q", stdout, want)
	}
	if _, err := os.Lstat(hostd.SocketPath(o.Config)); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestUpSaysThatThePortIsTaken(t *testing.T) {
	testenv.Need(t, testenv.Root)
	o := installation(t)
	o.Stdout, o.Stderr = io.Discard, io.Discard
	l, err := net.Listen("tcp", o.Config.Listen.String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := Up(t.Context(), o); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("the error is %v", err)
	}
}

func TestNothingIsStartedWhenWhatItNeedsCannotBeMade(t *testing.T) {
	testenv.Need(t, testenv.Root)
	o := installation(t)
	said := &output{}
	o.Stdout, o.Stderr = said, said
	wrong := errors.New("no template")
	o.Prepare = func(context.Context) error { return wrong }
	if err := Up(t.Context(), o); !errors.Is(err, wrong) || strings.Contains(said.String(), "hostd") {
		t.Errorf("it ended with %v, and said:\n%s", err, said)
	}
}

func TestTheControlPlaneGetsLittleOfRootsEnvironment(t *testing.T) {
	got := controlEnvironment([]string{"PATH=/bin", "AWS_SECRET_ACCESS_KEY=x", "https_proxy=p", "LD_PRELOAD=/x.so", "HOME=/root",
		"GODEBUG=x", "SUDO_USER=me", "TZ=UTC", "GOMEMLIMIT=1GiB"}, "claw", "/h")
	want := []string{"PATH=/bin", "https_proxy=p", "TZ=UTC", "GOMEMLIMIT=1GiB", "HOME=/h", "USER=claw", "LOGNAME=claw"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestWelcomeSaysWhereEverythingIs(t *testing.T) {
	c := config.Default()
	c.DataDir = "/var/lib/clawjail"
	want := `clawjail is up.
  API        http://127.0.0.1:18780
  console    it is there
  admin key  /var/lib/clawjail/control/admin.key
  next       do this
Ctrl-C ends it, with every jail.
`
	if diff := cmp.Diff(want, welcome(c, "it is there", "do this")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	c.TLS = config.TLS{Cert: "/a", Key: "/b"}
	if got := welcome(c, "", ""); !strings.Contains(got, "https://127.0.0.1:18780") {
		t.Errorf("with TLS: %s", got)
	}
}

func TestUpSaysHowToGetIntoTheConsole(t *testing.T) {
	o := UpOptions{Config: config.Default(), Log: slog.New(slog.DiscardHandler)}
	const plain = "http://127.0.0.1:18780/console/ (sign in: sudo clawjail console)"
	if got := o.console(t.Context()); got != plain {
		t.Errorf("without links: %s", got)
	}
	o.ConsoleLink = func(context.Context) (string, error) { return "http://link", nil }
	if got := o.console(t.Context()); !strings.HasPrefix(got, "http://link\n") {
		t.Errorf("with a link: %s", got)
	}
	o.ConsoleLink = func(context.Context) (string, error) { return "", errors.New("no") }
	if got := o.console(t.Context()); got != plain {
		t.Errorf("when none can be made: %s", got)
	}
	o.Config.Console.Enabled = false
	if got := o.console(t.Context()); got != "switched off" {
		t.Errorf("without a console: %s", got)
	}
}

func TestAListenerOnEveryAddressIsAskedOnLoopback(t *testing.T) {
	for in, want := range map[string]string{"0.0.0.0:1": "127.0.0.1:1", "[::]:1": "[::1]:1", "10.0.0.1:1": "10.0.0.1:1"} {
		if got := reachable(netip.MustParseAddrPort(in)).String(); got != want {
			t.Errorf("%s is asked at %s, want %s", in, got, want)
		}
	}
}

// A checkout in somebody's home is in a folder that the user of the control plane cannot enter.
func TestAHalfIsStartedAsAnotherUserFromAClosedFolder(t *testing.T) {
	testenv.Root(t)
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: only Linux has a way past the folder")
	}
	closed, err := os.MkdirTemp("", "clawjail-closed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(closed) })
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	cmd := UpOptions{Executable: filepath.Join(closed, "clawjail")}.command(nobody, append(os.Environ(), helperVariable+"=whoami"), "serve")
	out, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(out)) != "65534" {
		t.Fatalf("it said %q, %v", out, err)
	}
}
