package doctor

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// realHost is this host with one trial, and with services that answer.
func realHost(t *testing.T, tr *trial) (Options, Host) {
	t.Helper()
	o := Options{Config: tr.c, ControlURL: "http://127.0.0.1:1"}
	h := ThisHost(o)
	h.Trials = tr.trials()
	return o, h
}

func statusOf(r Report, name string) Result {
	i := slices.IndexFunc(r.Checks, func(c Result) bool { return c.Name == name })
	if i < 0 {
		return Result{}
	}
	return r.Checks[i]
}

func TestTheTrialsWorkHereAndLeaveNothing(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	templates := filepath.Dir(testenv.Template(t))
	tr := testTrial(t, func(c *config.Config) { c.TemplatesDir = templates })
	began := time.Now()
	o, h := realHost(t, tr)
	r := Run(t.Context(), o, h)
	var text strings.Builder
	if err := r.Write(&text, false); err != nil {
		t.Fatal(err)
	}
	t.Logf("in %s:\n%s", time.Since(began), &text)
	for _, name := range []string{"privileges", "kernel", "runtime", "storage", "agent_state", "cgroups", "seccomp", "user_namespaces", "subnet",
		"gateway_port", "network", "nft", "other_firewall", "sandboxed_renderer"} {
		if c := statusOf(r, name); c.Status != OK {
			t.Errorf("%s: %+v", name, c)
		}
	}
	nothingLeft(t, tr)
}

func TestAnInterruptedDoctorLeavesNothing(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	templates := filepath.Dir(testenv.Template(t))
	for _, after := range []string{"network", "renderer"} {
		tr := testTrial(t, func(c *config.Config) { c.TemplatesDir = templates })
		o, h := realHost(t, tr)
		ctx, cancel := context.WithCancel(t.Context())
		switch after {
		case "network": // in the middle of everything
			network := h.Network
			h.Network = func(ctx context.Context) (Facts, error) {
				defer cancel()
				return network(ctx)
			}
		case "renderer":
			h.Renderer = func(ctx context.Context) (Facts, error) {
				found, err := tr.template(ctx)
				if err != nil {
					return nil, err
				}
				spec, err := tr.browserSpec(found)
				if err != nil {
					return nil, err
				}
				spec.Program.Argv = []string{"/bin/sleep", "60"} // a browser that never answers
				time.AfterFunc(500*time.Millisecond, cancel)
				return tr.watchBrowser(ctx, spec)
			}
		}
		r := Run(ctx, o, h)
		cancel()
		if after == "renderer" && statusOf(r, "sandboxed_renderer").Status != Fail {
			t.Errorf("%+v", statusOf(r, "sandboxed_renderer"))
		}
		if undo := statusOf(r, "undo"); undo.Name != "" {
			t.Errorf("%+v", undo)
		}
		nothingLeft(t, tr)
	}
}

func TestAnotherFirewallThatDropsIsNamedAndItsHintHelps(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	nft := testenv.Tool(t, "nft")
	iptables := testenv.Tool(t, "iptables")
	for _, tt := range []struct{ what, set, names, hint, unset string }{
		{"a dropping input chain",
			nft + ` 'table inet filter { chain input { type filter hook input priority 0; policy drop; iif lo accept; }; }'`,
			"inet filter input", "sudo nft insert rule inet filter input", nft + " delete table inet filter"},
		{"a chain that rejects at its end",
			nft + ` 'table ip mine { chain first { type filter hook input priority -5; iif lo accept; ct state established accept; counter reject; }; }'`,
			"ip mine first", "sudo nft insert rule ip mine first", nft + " delete table ip mine"},
		{"iptables", iptables + " -P INPUT DROP", "ip filter INPUT", "sudo iptables -I INPUT", iptables + " -P INPUT ACCEPT; " + nft + " delete table ip filter"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			look := func() Result {
				tr := testTrial(t)
				o, h := realHost(t, tr)
				checks := slices.DeleteFunc(table(), func(c check) bool { return c.name != "other_firewall" })
				return run(t.Context(), &exam{o, h.complete()}, checks).Checks[0]
			}
			if r := look(); r.Status != OK {
				t.Fatalf("before: %+v", r)
			}
			sh(t, tt.set)
			r := look()
			if r.Status != Fail || !strings.Contains(r.Message, tt.names) || !strings.HasPrefix(r.Hint, tt.hint) {
				t.Fatalf("with it: %+v", r)
			}
			t.Logf("%s\n%s", r.Message, r.Hint)
			sh(t, r.Hint)
			if r := look(); r.Status != OK {
				t.Errorf("after its hint: %+v", r)
			}
			sh(t, tt.unset)
			if r := look(); r.Status != OK {
				t.Errorf("without it: %+v", r)
			}
		})
	}
}

func TestARuleForOneBridgeIsSeenInTheKernel(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	nft := testenv.Tool(t, "nft")
	sh(t, nft+` 'table inet filter { chain user { iifname "cjbrk3x9" tcp dport 3000 accept; iifname "eth9" drop; }; chain input { type filter hook input priority 0; policy drop; jump user; }; chain out { type filter hook output priority 0; policy drop; }; }; table inet clawjail_k3x9 { chain p { type filter hook prerouting priority -300; policy drop; }; }'`)
	filters, err := inputFilters(within(t))
	if err != nil || len(filters) != 1 {
		t.Fatalf("%+v, %v", filters, err)
	}
	f := filters[0]
	if f.String() != "inet filter input" || !f.Drops || !slices.Equal(f.Accepts, []string{"cjbrk3x9"}) {
		t.Errorf("%+v", f)
	}
}

func TestTheTrialOfTheTableNoticesThatNothingIsRefused(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	nft := testenv.Tool(t, "nft")
	tr := testTrial(t)
	if _, err := tr.tryElement(within(t)); err != nil {
		t.Fatalf("with its rules: %v", err)
	}
	err := tr.withSlot(within(t), 7, func(s slot) error {
		if err := tr.refused(within(t), s); err != nil {
			t.Errorf("with its rules: %v", err)
		}
		sh(t, nft+" delete table inet clawjail_"+string(tr.id))
		if err := tr.refused(within(t), s); err == nil || !strings.Contains(err.Error(), "was not refused") {
			t.Errorf("without its rules: %v", err)
		}
		sh(t, nft+` 'table inet silent { chain input { type filter hook input priority 0; policy drop; }; }'`)
		if err := tr.refused(within(t), s); err == nil || !strings.Contains(err.Error(), "not refused at once") {
			t.Errorf("with silence: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAPortThatIsTakenIsNoticed(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	tr := testTrial(t)
	wildcard(t, tr.c.Gateway.Port)
	if err := tr.tryPort(within(t)); !errors.Is(err, errPort) {
		t.Errorf("port: %v", err)
	}
	if _, err := tr.tryReach(within(t)); !errors.Is(err, errPort) {
		t.Errorf("reach: %v", err)
	}
	if _, err := tr.tryElement(within(t)); !errors.Is(err, errPort) {
		t.Errorf("element: %v", err)
	}
}

func TestASubnetInUseIsNoticed(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	network := netip.MustParsePrefix("10.213.0.0/20")
	if got, err := trySubnet(within(t), "k3x9", network); err != nil || got != network {
		t.Errorf("free: %s, %v", got, err)
	}
	if got, err := trySubnet(within(t), "k3x9", netip.Prefix{}); err != nil || !got.IsValid() {
		t.Errorf("automatic: %s, %v", got, err)
	}
	sh(t, testenv.Tool(t, "ip")+" route add blackhole 10.213.8.0/24")
	if _, err := trySubnet(within(t), "k3x9", network); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("in use: %v", err)
	}
}

func TestStorageThatIsNotThereIsNoticed(t *testing.T) {
	testenv.Need(t, testenv.Root)
	tr := testTrial(t, func(c *config.Config) {
		c.Storage = config.StorageBtrfs
		c.DataDir = t.TempDir() + "/data"
	})
	if facts, err := tr.tryStorage(within(t)); err == nil && facts["kind"] != "btrfs" {
		t.Errorf("%v", facts)
	} else if err != nil && problem.CodeOf(err) != problem.BadConfig {
		t.Error(err)
	}
}

func TestARuntimeThatDoesNotWorkIsNoticed(t *testing.T) {
	testenv.Need(t, testenv.Root)
	fake := filepath.Join(t.TempDir(), "runc")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fake, fake + ".gone"} {
		tr := testTrial(t, func(c *config.Config) { c.Runtime = path })
		if got, err := tr.tryRuntime(within(t)); problem.CodeOf(err) != problem.RuntimeMissing {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}

func TestALimitThatIsNotHitIsNoticed(t *testing.T) {
	testenv.Need(t, testenv.Root)
	tr := testTrial(t)
	if _, err := tr.tryLimits(within(t)); err != nil {
		t.Errorf("with limits: %v", err)
	}
	if err := tr.hit(within(t), 2, "read go", jail.LimitMemory); err == nil || !strings.Contains(err.Error(), "lived") {
		t.Errorf("a program that eats nothing: %v", err)
	}
	if err := tr.hit(within(t), 2, "read go; exit 3", jail.LimitMemory); err == nil || !strings.Contains(err.Error(), "not killed") {
		t.Errorf("a program that fails: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := tr.hit(short, 3, "read go; read end", jail.LimitTasks); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a program that starts nothing: %v", err)
	}
}

func TestABrowserWithoutItsSandboxIsNoticed(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	templates := filepath.Dir(testenv.Template(t))
	tr := testTrial(t, func(c *config.Config) { c.TemplatesDir = templates })
	found, err := tr.template(within(t))
	if err != nil {
		t.Fatal(err)
	}
	spec, err := tr.browserSpec(found)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	bound, cancel := context.WithTimeout(t.Context(), BrowserBound)
	defer cancel()
	facts, err := tr.watchBrowser(bound, spec)
	if err != nil {
		t.Fatalf("with its sandbox: %v", err)
	}
	t.Logf("%v", facts)
	spec.Program.Argv = slices.Insert(spec.Program.Argv, 1, "--no-sandbox")
	// It starts as quickly, and then its renderer is watched until the end.
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second+4*time.Since(began))
	defer cancel()
	if _, err = tr.watchBrowser(short, spec); problem.CodeOf(err) != problem.JailUnconfined {
		t.Errorf("without its sandbox: %v", err)
	}
	spec.Program.Argv = []string{"/bin/sh", "-c", "sleep 0.3; echo no usable sandbox >&2"}
	if facts, err = tr.watchBrowser(bound, spec); problem.CodeOf(err) != problem.JailFailed || !strings.Contains(failed(err).Hint, "user_namespaces") {
		t.Errorf("a browser that ends at once: %v, %v", facts, err)
	}
}

func TestATemplateThatIsMissingIsNotMade(t *testing.T) {
	testenv.Need(t, testenv.Root)
	tr := testTrial(t)
	if _, err := tr.tryRenderer(within(t)); problem.CodeOf(err) != problem.TemplateMissing {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(tr.c.TemplatesDir); !os.IsNotExist(err) {
		t.Errorf("the folder of templates: %v", err)
	}
}

// ownUsers names the test that runs in a user namespace of its own.
const ownUsers = "CLAWJAIL_DOCTOR_TEST_OWN_USERS"

func TestUserNamespacesThatAreForbiddenAreNoticed(t *testing.T) {
	const jailUser = 60123
	if os.Getenv(ownUsers) != t.Name() {
		testenv.Need(t, testenv.Root)
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}}
		again(t, ownUsers, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true})
		return
	}
	if err := tryUserNamespace(within(t), jailUser); err != nil {
		t.Errorf("allowed: %v", err)
	}
	// The setting belongs to the user namespace, so the host's is as it was.
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte(strconv.Itoa(0)), 0); err != nil {
		t.Fatal(err)
	}
	if err := tryUserNamespace(within(t), jailUser); err == nil {
		t.Error("forbidden, and it is said to work")
	}
	if os.Geteuid() != 0 {
		t.Error("the process has become another user")
	}
	if _, err := os.ReadFile("/proc/self/environ"); err != nil {
		t.Errorf("the process is hidden from itself: %v", err)
	}
}

func TestWhatACheckLeftIsRemovedWithThePartsThatItOpened(t *testing.T) {
	testenv.Need(t, testenv.Root)
	cloned, limited := testTrial(t), testTrial(t) // each looks at the end whether anything of it is there
	_, sampleErr := cloned.sample.get()
	s, storageErr := cloned.storage.get()
	l, limiterErr := limited.limiter.get()
	clone, group := cloned.name(9), limited.name(9)
	if err := errors.Join(sampleErr, storageErr, limiterErr); err != nil {
		t.Fatal(err)
	}
	_, cloneErr := s.Clone(within(t), clone, jail.Spec{Template: tiny})
	groupErr := l.Apply(within(t), group, "", jail.Limits{Memory: limitMemory, MilliCPU: 1000, Tasks: limitTasks, Disk: jail.MinDisk,
		SharedMemory: jail.MinDisk, Files: jail.MinFiles, WallClock: time.Minute})
	clones, clonesErr := s.List(within(t))
	groups, groupsErr := l.List(within(t))
	if err := errors.Join(cloneErr, groupErr, clonesErr, groupsErr); err != nil || len(clones) == 0 || len(groups) == 0 {
		t.Errorf("nothing was left that could be removed: %v", err)
	}
}

func TestTheNextDoctorClearsUpAfterOneThatWasKilled(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	killed := newTrial(testConfig(t), nil)
	ctx := within(t)
	if _, err := killed.folders.get(); err != nil {
		t.Fatal(err)
	}
	// Everything that a trial can be in the middle of.
	if _, err := killed.tryStorage(ctx); err != nil {
		t.Fatal(err)
	}
	name := killed.name(9)
	s, _ := killed.storage.get()
	if _, err := s.Clone(ctx, name, jail.Spec{Template: tiny}); err != nil {
		t.Fatal(err)
	}
	l, err := killed.limiter.get()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Apply(ctx, name, "", jail.Limits{Memory: limitMemory, MilliCPU: 1000, Tasks: limitTasks, Disk: jail.MinDisk,
		SharedMemory: jail.MinDisk, Files: jail.MinFiles, WallClock: time.Minute}); err != nil {
		t.Fatal(err)
	}
	n, err := killed.network.get()
	if err != nil {
		t.Fatal(err)
	}
	lease, err := n.Reserve(ctx)
	if err != nil {
		t.Fatal(err)
	}
	f, err := killed.firewall.get()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Add(ctx, jail.TableBrowsers, lease); err != nil {
		t.Fatal(err)
	}

	alive := newTrial(killed.c, nil) // it must leave alone what is locked
	if _, err := alive.folders.get(); err != nil {
		t.Fatal(err)
	}
	if err := alive.undo(ctx); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(killed.run, "netns")); err != nil {
		t.Errorf("a trial that is under way was removed: %v", err)
	}

	// The kernel gives the lock up when the process is gone; so does closing it.
	killed.cancel()
	if err := errors.Join(killed.lock.Close(), f.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	next := newTrial(killed.c, nil)
	if _, err := next.folders.get(); err != nil {
		t.Errorf("the next doctor: %v", err)
	}
	if err := next.undo(ctx); err != nil {
		t.Error(err)
	}
	for _, dir := range killed.made { // made by the one that was killed, so nobody else's to remove
		_ = os.Remove(dir)
	}
	if err := os.Remove(killed.c.DataDir); err != nil && !os.IsNotExist(err) {
		t.Errorf("the data directory is not empty: %v", err)
	}
	if err := os.Remove(killed.c.RunDir); err != nil && !os.IsNotExist(err) {
		t.Errorf("the run directory is not empty: %v", err)
	}
	nothingLeft(t, killed)
}

func TestALinkToADiskThatIsNotMountedStays(t *testing.T) {
	c := testConfig(t)
	if err := errors.Join(os.MkdirAll(filepath.Dir(c.DataDir), 0o755), os.Symlink(c.DataDir+".disk", c.DataDir)); err != nil {
		t.Fatal(err)
	}
	tr := newTrial(c, nil)
	defer tr.cancel()
	if _, err := tr.folders.get(); err == nil {
		t.Error("a trial was made where there is no folder")
	}
	if _, err := os.Lstat(c.DataDir); err != nil {
		t.Errorf("the link is gone: %v", err)
	}
}

func TestTrialsKeepOffTheNetworksOfInstallations(t *testing.T) {
	for _, c := range candidates() {
		if c.Bits() != 24 || !c.Addr().IsPrivate() {
			t.Errorf("%s is no small private network", c)
		}
	}
	if slices.Equal(candidates(), candidates()) {
		t.Error("two doctors would look at the same networks in the same order")
	}
	if len(jail.DefaultSubnets()) == 0 {
		t.Error("there is nothing to keep off")
	}
}

func TestTrialsUseTheLastUsersOfTheRange(t *testing.T) {
	tr := newTrial(config.Default(), nil)
	defer tr.cancel()
	pool, err := tr.poolOf(netip.MustParsePrefix("10.200.1.0/24"))
	if err != nil {
		t.Fatal(err)
	}
	_, last, err := uids(tr.c, installation{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := pool.Lease(pool.Size() - 1)
	if err != nil || uint64(l.UID) != last {
		t.Errorf("the last lease is %+v, the range ends with %d", l, last)
	}
}
