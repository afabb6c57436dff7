package hostd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestClientIsADriver(t *testing.T) {
	jailtest.Run(t, func(t *testing.T) jailtest.Subject {
		f := newFixture(t, nil)
		c := f.client(t)
		return jailtest.Subject{Driver: c, Template: "tiny", Resources: c.HostResources, Missing: "btest00000"}
	})
}

func TestSixtyFourCreatesAtOnce(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.MaxCreates = 8 }) // most of them have to wait
	c := f.client(t)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			j, err := c.Create(t.Context(), spec("exec cat"))
			if err != nil {
				t.Errorf("create %d: %v", i, err)
				return
			}
			defer j.Stdio.Close()
			line := fmt.Sprintf("%s %d\n", j.Name, i)
			if _, err := io.WriteString(j.Stdio.In, line); err != nil {
				t.Errorf("write to %s: %v", j.Name, err)
			}
			if got, err := bufio.NewReader(j.Stdio.Out).ReadString('\n'); got != line {
				t.Errorf("jail %s echoes %q, %v; want %q", j.Name, got, err, line)
			}
			if err := c.Destroy(t.Context(), j.Name); err != nil {
				t.Errorf("destroy %s: %v", j.Name, err)
			}
		})
	}
	all.Wait()
	f.empty(t)
}

func TestNoMoreJailsThanAllowed(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.MaxJails = 2 })
	c := f.client(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	made, refused := 0, 0
	for range 8 {
		all.Go(func() {
			j, err := c.Create(t.Context(), spec("exec cat"))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				made++
				t.Cleanup(j.Stdio.Close)
			case hasCode(err, problem.PoolExhausted):
				refused++
			default:
				t.Errorf("create: %v", err)
			}
		})
	}
	all.Wait()
	if made != 2 || refused != 6 {
		t.Fatalf("%d jails were made and %d refused, want 2 and 6", made, refused)
	}
	list, err := c.List(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("list: %v, %v", list, err)
	}
	if err := c.Destroy(t.Context(), list[0].Name); err != nil {
		t.Fatal(err)
	}
	create(t, c, spec("exec cat")) // there is room again
}

func TestATenantDeclaresNoMoreMemoryThanItsShare(t *testing.T) {
	asked := make(chan int64, 100)
	f := newFixture(t, func(o *Options) {
		o.Memory = 10 * spec("").Limits.Memory
		o.Parts.Divide = func(_ context.Context, share func(int64) int64) error {
			asked <- share(1000)
			return nil
		}
	})
	c := f.client(t)
	of := func(tenant string, agent bool) jail.Spec {
		s := spec("exec cat")
		if s.For = tenant; agent {
			s.For, s.Kind, s.Agent = "", jail.KindAgent, &jail.Agent{Tenant: tenant, Name: "bot"}
		}
		return s
	}
	share := func(tenants int) Declared {
		t.Helper()
		d, err := c.Share(t.Context(), tenants)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	// The number of tenants was not told yet.
	for n := range 8 {
		create(t, c, of("greedy", n%2 == 0))
	}
	refused := func() {
		t.Helper()
		_, err := c.Create(t.Context(), of("greedy", false))
		if p, _ := problem.As(err); p == nil || p.Code != problem.PoolExhausted || !strings.Contains(p.Message, "tenant greedy has") ||
			!strings.Contains(p.Hint, "quotas.memory") && !strings.Contains(p.Hint, "quotas.tenant") {
			t.Fatalf("the ninth of ten: %v", err)
		}
	}
	refused()
	share(2)
	refused()
	create(t, c, of("other", true)) // has its own share
	create(t, c, spec("exec cat"))  // nobody's
	one := spec("").Limits.Memory
	if d := share(3); d.Whole != 10*one || d.Tenants["greedy"] != 8*one || d.Tenants["other"] != one {
		t.Errorf("%+v", d)
	}
	if a := share(3).Held(quota.Holder{Tenant: "greedy"})[0]; a.Held.Tenant != 8*one || a.Held.All != 10*one {
		t.Errorf("%+v", a)
	}
	// While there is one tenant it has everything, and more.
	share(1)
	for range 4 {
		create(t, c, of("greedy", false))
	}
	share(2)
	refused()
	list, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range list {
		if st.Spec.Tenant() == "greedy" {
			if err := c.Destroy(t.Context(), st.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	create(t, c, of("greedy", false))
	if _, err := c.Share(t.Context(), 0); !hasCode(err, problem.BadRequest) {
		t.Errorf("no tenant at all: %v", err)
	}
	close(asked)
	var shares []int64
	for s := range asked {
		shares = append(shares, s)
	}
	if want := []int64{800, 800, 800, 1000, 800}; !slices.Equal(shares, want) {
		t.Errorf("tenants may take %v of 1000, want %v", shares, want)
	}
}

// createRequest is a create by hand, for callers that do not behave.
func createRequest(t *testing.T, owner string) string {
	t.Helper()
	args, err := json.Marshal(createArguments{Owner: owner, Spec: spec("exec sleep 1000")}, durations())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"protocol":7,"op":"create","args":%s}`, args)
}

func TestAJailWhoseStdioNobodyTookIsDestroyed(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(*testing.T, *net.UnixConn)
	}{
		{"the caller leaves after the answer", func(t *testing.T, conn *net.UnixConn) { _ = conn.Close() }},
		{"the caller says nothing", func(t *testing.T, conn *net.UnixConn) {}},
		{"the caller says something else", func(t *testing.T, conn *net.UnixConn) {
			if _, err := conn.Write([]byte{'n'}); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, func(o *Options) { o.Patience, o.Grace = 300*time.Millisecond, time.Hour })
			client := f.client(t)
			conn := f.raw(t, createRequest(t, client.owner))
			// The program does not care about its stdin, so that only a destroy ends it.
			body, files, err := readFrameWithFiles(conn, maxAnswer)
			defer closeFiles(files)
			if err != nil || len(files) != stdioCount {
				t.Fatalf("answer %s with %d files, %v", body, len(files), err)
			}
			c.then(t, conn)
			f.empty(t)
		})
	}
	t.Run("one that was taken stays", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Patience, o.Grace = 300*time.Millisecond, time.Hour })
		client := f.client(t)
		j := create(t, client, spec("exec sleep 1000"))
		testenv.Eventually(t, patience, func() bool { // the call has ended by now, and with it what could destroy it
			st, err := client.Inspect(t.Context(), j.Name)
			return err == nil && time.Since(st.Created) > 600*time.Millisecond
		}, "the jail is gone")
	})
}

func TestCreateNeedsAHold(t *testing.T) {
	f := newFixture(t, nil)
	if got := f.code(t, createRequest(t, strings.Repeat("ab", 16))); got != problem.Forbidden {
		t.Errorf("an owner that nobody holds: code %q", got)
	}
	if got := f.code(t, createRequest(t, "short")); got != problem.BadRequest {
		t.Errorf("a token that is none: code %q", got)
	}
	if _, err := NewClient(f.socket, nil).Create(t.Context(), spec("exec cat")); err == nil {
		t.Error("a client without a hold makes a jail")
	}
	if n := len(f.host.Resources()); n != 0 {
		t.Errorf("%d things were made", n)
	}
}

func TestOwnerJailsEndWithTheirOwner(t *testing.T) {
	f := newFixture(t, nil)
	leaves, stays := f.client(t), f.client(t)
	gone, there := create(t, leaves, spec("exec sleep 1000")), create(t, stays, spec("exec cat"))
	leaves.Close()
	exit, err := stays.Wait(t.Context(), gone.Name)
	if err != nil && !errors.Is(err, jail.ErrNotFound) {
		t.Fatal(err)
	}
	if err == nil && exit.Cause != jail.CauseOwnerLost {
		t.Errorf("the cause is %s, want %s", exit.Cause, jail.CauseOwnerLost)
	}
	testenv.Eventually(t, patience, func() bool { return !f.host.Runs(gone.Name) }, "the jail outlives its owner")
	if !f.host.Runs(there.Name) {
		t.Errorf("jail %s ended, which is another owner's", there.Name)
	}
	if err := stays.Destroy(t.Context(), there.Name); err != nil {
		t.Error(err)
	}
	f.empty(t)
}

func TestTwoUsersDoNotShareAnOwner(t *testing.T) {
	life, err := jail.NewLifecycle(t.Context(), jailtest.NewMemory(jailtest.NewHost()).Options())
	if err != nil {
		t.Fatal(err)
	}
	defer life.Close()
	o := &owners{drivers: []driver{life}, held: map[string]*holding{}}
	token := strings.Repeat("0f", 16)
	release, err := o.hold(token, peer{uid: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.hold(token, peer{uid: 0}); !hasCode(err, problem.Forbidden) {
		t.Errorf("another user holds the same owner: %v", err)
	}
	if err := o.has(token, peer{uid: 0}); !hasCode(err, problem.Forbidden) {
		t.Errorf("another user creates for the owner: %v", err)
	}
	again, err := o.hold(token, peer{uid: 1000})
	if err != nil {
		t.Fatal(err)
	}
	release()
	release() // the second call does nothing
	if err := o.has(token, peer{uid: 1000}); err != nil {
		t.Errorf("one of two connections ended, and the owner is gone: %v", err)
	}
	again()
	if err := o.has(token, peer{uid: 1000}); err == nil {
		t.Error("the owner is here without a connection")
	}
}

func TestSessionsSurviveARestartOfTheHostDaemon(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Grace, o.EndJails = time.Hour, false })
	c := f.client(t)
	j := create(t, c, spec("exec cat"))
	type end struct {
		exit jail.Exit
		err  error
	}
	waited := make(chan end, 1)
	go func() {
		x, err := c.Wait(t.Context(), j.Name)
		waited <- end{x, err}
	}()
	if err := f.stop(); err != nil {
		t.Fatalf("stop: %v", err)
	}
	if _, err := c.Info(t.Context()); !hasCode(err, problem.HostdUnreachable) {
		t.Fatalf("nobody is there: %v", err)
	}
	again := startServer(t, f.host, f.socket, func(o *Options) { o.Grace = time.Hour })
	fmt.Fprintln(j.Stdio.In, "still here")
	if line, err := bufio.NewReader(j.Stdio.Out).ReadString('\n'); line != "still here\n" {
		t.Fatalf("the jail answers %q, %v", line, err)
	}
	second := create(t, c, spec("exec cat")) // the hold was taken again by itself
	j.Stdio.Close()
	if e := <-waited; e.err != nil || e.exit.Cause != jail.CauseExited {
		t.Errorf("wait over the restart: %+v, %v", e.exit, e.err)
	}
	for _, name := range []jail.Name{j.Name, second.Name} {
		if err := c.Destroy(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	again.empty(t)
}

func TestWhatADeadHostDaemonLeftIsGoneBeforeTheSocketOpens(t *testing.T) {
	host := jailtest.NewHost()
	host.Plant(jail.HostResource{Kind: jail.ResourceClone, Name: "btest00007", Index: -1, ID: "btest00007"})
	started := -1
	startServer(t, host, newSocket(t), func(o *Options) {
		o.Parts.Start = func(context.Context) error { started = len(host.Resources()); return nil }
	})
	if started != 0 {
		t.Errorf("%d things were there when the driver was started", started)
	}
}

func TestEndJailsLeavesNothing(t *testing.T) {
	for _, end := range []bool{true, false} {
		t.Run(fmt.Sprint(end), func(t *testing.T) {
			closed := false
			f := newFixture(t, func(o *Options) {
				o.EndJails, o.Grace = end, time.Hour
				o.Parts.Close = func(context.Context) error { closed = true; return nil }
			})
			c := f.client(t)
			for range 20 {
				create(t, c, spec("exec sleep 1000"))
			}
			c.Close()
			if err := f.stop(); err != nil {
				t.Fatal(err)
			}
			if left := len(f.host.Resources()); (left == 0) != end {
				t.Errorf("%d things are left", left)
			}
			if !closed {
				t.Error("the driver was not closed")
			}
			if _, err := os.Lstat(f.socket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket is left: %v", err)
			}
			if !end {
				startServer(t, f.host, f.socket, func(o *Options) { o.EndJails = true }) // cleans up
			}
		})
	}
}

func TestACallerThatLeavesCancelsItsCall(t *testing.T) {
	waiting := make(chan struct{})
	cancelled := make(chan error, 1)
	f := newFixture(t, func(o *Options) {
		o.Templates = func(ctx context.Context) ([]Template, error) {
			close(waiting)
			<-ctx.Done()
			cancelled <- context.Cause(ctx)
			return nil, ctx.Err()
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := NewClient(f.socket, nil).Templates(ctx)
		answered <- err
	}()
	<-waiting
	cancel()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	select {
	case err := <-cancelled:
		if !hasCode(err, problem.Canceled) {
			t.Errorf("the reason is %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the call goes on without its caller")
	}
}

func TestStoppingTellsThoseWhoWait(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.EndJails = true })
	c := f.client(t)
	j := create(t, c, spec("exec cat"))
	conn := f.raw(t, fmt.Sprintf(`{"protocol":7,"op":"wait","args":{"name":%q}}`, j.Name))
	testenv.Eventually(t, patience, func() bool { return f.busy(t) }, "the wait has not begun")
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	body, err := readFrame(conn, maxAnswer)
	if err != nil {
		t.Fatal(err)
	}
	if a := decodeAnswer(t, body); a.Error == nil || a.Error.Code != problem.ShuttingDown {
		t.Errorf("whoever waits is told %s", body)
	}
}

func TestACallThatDoesNotEndIsCutWhenTheHostDaemonStops(t *testing.T) {
	begun := make(chan struct{})
	f := newFixture(t, func(o *Options) {
		o.Patience = 50 * time.Millisecond
		o.Templates = func(ctx context.Context) ([]Template, error) {
			close(begun)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	answered := make(chan error, 1)
	go func() {
		_, err := NewClient(f.socket, nil).Templates(context.Background())
		answered <- err
	}()
	<-begun
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; !hasCode(err, problem.ShuttingDown) {
		t.Errorf("the caller was told %v", err)
	}
}

// busy asks something, which proves that what was sent before has been accepted.
func (f *fixture) busy(t *testing.T) bool {
	_, err := NewClient(f.socket, nil).Info(t.Context())
	return err == nil
}

func decodeAnswer(t *testing.T, body []byte) answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal(body, &a, strict()); err != nil {
		t.Fatalf("decode %s: %v", body, err)
	}
	return a
}

func TestInfoTemplatesAndTraces(t *testing.T) {
	f := newFixture(t, nil)
	c := f.client(t)
	j := create(t, c, spec("exec cat"))
	info, err := c.Info(t.Context())
	if err != nil || info.PID != os.Getpid() || info.Installation != "test" || info.Jails != 1 ||
		info.Gateway.String() != "10.99.0.1" || info.Subnet.String() != "10.99.0.0/24" || info.Version != "test" {
		t.Errorf("info: %+v, %v", info, err)
	}
	templates, err := c.Templates(t.Context())
	if err != nil || len(templates) != 1 || templates[0].Name != "tiny" || templates[0].Programs["sh"].Path != "/bin/sh" {
		t.Errorf("templates: %+v, %v", templates, err)
	}
	resources, err := c.HostResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[jail.ResourceKind]bool{}
	for _, resource := range resources {
		seen[resource.Kind] = true
	}
	for _, kind := range []jail.ResourceKind{jail.ResourceRecord, jail.ResourceProcess, jail.ResourceInterface, jail.ResourceCgroup} {
		if !seen[kind] {
			t.Errorf("no resource of kind %s of jail %s in %v", kind, j.Name, resources)
		}
	}
}

func TestReapReportsWhatCouldNotBeRemoved(t *testing.T) {
	f := newFixture(t, nil)
	f.host.Plant(jail.HostResource{Kind: jail.ResourceClone, Name: "btest00009", Index: -1, ID: "btest00009"})
	c := NewClient(f.socket, nil)
	dry, err := c.Reap(t.Context(), jail.ReapOptions{DryRun: true})
	if err != nil || len(dry.Findings) != 1 || dry.Findings[0].Removed {
		t.Fatalf("dry run: %+v, %v", dry, err)
	}
	wet, err := c.Reap(t.Context(), jail.ReapOptions{})
	if err != nil || len(wet.Findings) != 1 || !wet.Findings[0].Removed {
		t.Fatalf("reap: %+v, %v", wet, err)
	}
	f.empty(t)

	broken := errors.New("the firewall does not answer")
	g := newFixture(t, func(o *Options) { o.Parts.Firewall = brokenFirewall{o.Parts.Firewall, broken} })
	report, err := NewClient(g.socket, nil).Reap(t.Context(), jail.ReapOptions{})
	if err == nil || !strings.Contains(err.Error(), broken.Error()) || report.Findings == nil {
		t.Errorf("a host that cannot be read: %+v, %v", report, err)
	}
}

type brokenFirewall struct {
	jail.Firewall
	err error
}

func (b brokenFirewall) List(context.Context) ([]jail.HostResource, error) { return nil, b.err }

func TestAPanicIsAnErrorOfItsCallAlone(t *testing.T) {
	socket := newSocket(t)
	startServer(t, jailtest.NewHost(), socket, func(o *Options) {
		before := o.HasTemplate
		o.HasTemplate = func(ctx context.Context, name string) error {
			if name == "broken" {
				panic("a mistake of ours")
			}
			return before(ctx, name)
		}
	})
	c := NewClient(socket, nil)
	if err := c.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	spec := jailtest.Subject{Template: "broken"}.Spec("exec cat")
	if _, err := c.Create(t.Context(), spec); !hasCode(err, problem.Internal) {
		t.Errorf("the call that panics answers %v", err)
	}
	spec.Template = "tiny"
	j, err := c.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("the next call: %v", err)
	}
	j.Stdio.Close()
}
