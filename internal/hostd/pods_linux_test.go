package hostd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestTheKeyForPodsIsMadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), podsKeyName)
	first, err := podsKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := podsKey(path); err != nil || !first.Equal(again) {
		t.Errorf("the second time it is another one: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := podsKey(path); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("a file that is no key: %v", err)
	}
}

func TestWhatNoPodMayReachIsTried(t *testing.T) {
	server := netip.MustParseAddrPort("10.96.0.1:443")
	all := probes(config.Kubernetes{Unreachable: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("198.51.100.7:80")}}, "10.244.0.9:40001", server)
	for _, want := range []shim.Probe{
		{Name: "another port of the control plane", Network: "tcp", Address: netip.MustParseAddrPort("10.244.0.9:40001")},
		{Name: "the API server", Network: "tcp", Address: server},
		{Name: "10.96.0.10:53", Network: "dns", Address: netip.MustParseAddrPort("10.96.0.10:53")},
		{Name: "198.51.100.7:80", Network: "tcp", Address: netip.MustParseAddrPort("198.51.100.7:80")},
	} {
		if !slices.Contains(all, want) {
			t.Errorf("%+v is not tried: %+v", want, all)
		}
	}
}

// Who lets jails be pods from now on is told of those that are on the machine itself: nobody would look after them.
func TestJailsOfTheMachineAreEndedBeforeJailsArePods(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	c := runConfig(dir, "nobody")
	if err := makeFolders(c, account{os.Geteuid(), os.Getegid()}); err != nil {
		t.Fatal(err)
	}
	own := jail.Journal(nil)
	closed := 0
	o := RunOptions{Config: c, Log: slog.New(slog.DiscardHandler), Now: time.Now, Substrate: Substrate{FreeSubnet: subnet("10.99.0.0/24"),
		Assemble: func(context.Context, AssembleOptions) (Parts, error) {
			return Parts{Journal: own, Close: func(context.Context) error { closed++; return nil }}, nil
		}}}
	used := func() (journal jail.Journal, err error) {
		err = o.withParts(t.Context(), func(_ Installation, _ *jail.Pool, _ Parts, j jail.Journal) error {
			journal = j
			return nil
		})
		return journal, err
	}
	files, err := used()
	if err != nil || files == nil {
		t.Fatalf("%v, %v", files, err)
	}
	own = kubernetes.Unwritten{}
	if journal, err := used(); err != nil || journal != own {
		t.Errorf("where there are none: %v, %v", journal, err)
	}
	own = nil
	if err := o.withParts(t.Context(), func(in Installation, _ *jail.Pool, _ Parts, j jail.Journal) error {
		name, err := jail.NewName(jail.KindBrowser, in.ID, 1)
		if err != nil {
			return err
		}
		return j.Put(t.Context(), jail.Record{Version: 1, Name: name, State: jail.StateReserved, Spec: spec("true"), Lease: jail.Lease{Index: 1}, Created: time.Now(), Deadline: time.Now()})
	}); err != nil {
		t.Fatal(err)
	}
	own, closed = kubernetes.Unwritten{}, 0
	if _, err := used(); problem.CodeOf(err) != problem.Conflict || closed != 1 {
		t.Errorf("where there is one: %v, closed %d times", err, closed)
	}
}

// scarce is a listener that has no descriptor left for its first connection.
type scarce struct {
	net.Listener
	had bool
}

func (s *scarce) Accept() (net.Conn, error) {
	if !s.had {
		s.had = true
		return nil, syscall.EMFILE
	}
	return s.Listener.Accept()
}

// A port that takes no connections any more would look as if the network kept pods from it.
func TestThePortThatPodsMustNotReachGoesOnAfterAWantOfDescriptors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		refuseAll(&scarce{Listener: l}, slog.New(slog.DiscardHandler))
		close(ended)
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("nobody takes the connection: %v", err)
	}
	if err := errors.Join(conn.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	<-ended
}
