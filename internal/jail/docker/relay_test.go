//go:build linux

package docker

import (
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/testenv"
)

// playRelay listens where the relay does, and at the next port as well. It never returns.
func playRelay(args []string) {
	at, err := netip.ParseAddrPort(args[1]) // after --listen
	if err == nil {
		_, err = os.ReadFile(args[5]) // after --to and --key
	}
	for _, port := range []uint16{at.Port() + 1, at.Port()} {
		l, errListen := net.Listen("tcp4", netip.AddrPortFrom(at.Addr(), port).String())
		if err := errors.Join(err, errListen); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		go func() { // until the container is killed
			for {
				if c, err := l.Accept(); err == nil {
					_ = c.Close()
				}
			}
		}()
	}
	select {}
}

func withRelay(t *testing.T) func(*Options) {
	key := filepath.Join(t.TempDir(), "relay.key")
	if err := os.WriteFile(key, []byte(strings.Repeat("k", RelayKeySize)), 0o400); err != nil {
		t.Fatal(err)
	}
	return func(o *Options) {
		o.Relay = &Relay{KeyFile: key, UID: 990, GID: 990, Binary: "/proc/self/exe", Listen: netip.MustParseAddr("127.0.0.1"), To: "127.0.0.1:9"}
	}
}

// The rules decide: an admitted container reaches the relay's port, and nothing else of it, of the host or of others.
func TestWithARelayAContainerReachesItAndNothingElse(t *testing.T) {
	h := newHost(t, withRelay(t))
	j, p := h.probe(t)
	k, q := h.probe(t, named("other"))
	bridge := h.network.subnet.Addr().Next().String()
	_, _ = listener(t, bridge+":3000")
	relay := h.Gateway().String()
	if relay == bridge || h.pool.IndexOf(h.Gateway()) >= 0 {
		t.Fatalf("the relay is at %s", relay)
	}
	dial := func(p *inside.Probe, addr string) inside.Answer { return p.Ask("dial", "tcp4", addr, "2000") }
	reached := func(when string, p *inside.Probe, addr string, want bool) {
		t.Helper()
		if a := dial(p, addr); a.OK != want {
			t.Errorf("%s: %s answers: %v (%s), want %v", when, addr, a.OK, a.Error, want)
		}
	}
	reached("before Admit", p, relay+":3000", false)
	if err := h.Admit(t.Context(), j.Name); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return dial(p, relay+":3000").OK }, "an admitted container does not reach the relay")
	reached("admitted", p, "gateway:3000", true)
	reached("admitted", p, "hermit_shell:3000", true)
	reached("not admitted", q, relay+":3000", false)
	reached("admitted", p, relay+":3001", false)
	reached("admitted", p, bridge+":3000", false)
	if a := q.Ask("listen", k.Lease.Addr.String()+":3000"); !a.OK {
		t.Fatalf("listen: %+v", a)
	}
	reached("another container", p, k.Lease.Addr.String()+":3000", false)
	if err := h.Admit(t.Context(), k.Name); err != nil {
		t.Fatal(err)
	}
	reached("another container, admitted too", p, k.Lease.Addr.String()+":3000", false)

	// The relay answers, and begins nothing: neither from a port of its own choice nor from that which it answers at.
	if a := p.Ask("listen", j.Lease.Addr.String()+":8000"); !a.OK {
		t.Fatalf("listen: %+v", a)
	}
	begins := func(port uint16) bool {
		answered, err := h.knock(netip.AddrPortFrom(h.Gateway(), port), netip.AddrPortFrom(j.Lease.Addr, 8000))
		if err != nil {
			t.Fatal(err)
		}
		return answered
	}
	if begins(40000) || begins(3000) {
		t.Error("the relay connects to a container")
	}

	// Without the rules all of it answers: they, and nothing else, are what refuses.
	h.mu.Lock()
	firewall := h.firewall
	h.mu.Unlock()
	for _, l := range []jail.Lease{j.Lease, k.Lease} {
		if err := firewall.Remove(t.Context(), jail.TableAgents, l); err != nil {
			t.Fatal(err)
		}
	}
	reached("removed from the table", p, relay+":3000", false)
	if err := firewall.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{relay + ":3001", bridge + ":3000", k.Lease.Addr.String() + ":3000"} {
		testenv.Eventually(t, 10*time.Second, func() bool { return dial(p, addr).OK }, "without rules %s does not answer: the test shows nothing", addr)
	}
	if !begins(40000) || !begins(3000) {
		t.Error("without rules the relay does not connect to a container: the test shows nothing")
	}
	if err := h.guard(t.Context()); err != nil {
		t.Fatal(err)
	}
	reached("rules put back", p, relay+":3001", false)
	reached("rules put back", p, bridge+":3000", false)
	reached("rules put back", p, relay+":3000", true)
}

// knock sends the first packet of a connection from within the relay's network, and says whether it was answered.
func (h *host) knock(from, to netip.AddrPort) (answered bool, err error) {
	err = linux.InNetworkOf(h.relay, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		const header, syn, ack = 20, 0x02, 0x10
		p := make([]byte, header)
		binary.BigEndian.PutUint16(p, from.Port())
		binary.BigEndian.PutUint16(p[2:], to.Port())
		p[12], p[13], p[14] = header/4<<4, syn, 0xff // and a window
		pseudo := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
		sum := uint32(0)
		for all := append(append(pseudo, 0, unix.IPPROTO_TCP, 0, header), p...); len(all) > 0; all = all[2:] {
			sum += uint32(binary.BigEndian.Uint16(all))
		}
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(p[16:], ^uint16(sum>>16+sum))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}); err != nil {
			return err
		}
		for range 10 { // the first may go while the neighbour's address is asked for
			if err := unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil && !errors.Is(err, unix.EHOSTUNREACH) {
				return err
			}
			buf := make([]byte, 1500)
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if errors.Is(err, unix.EAGAIN) {
				continue
			}
			if err != nil {
				return err
			}
			tcp := buf[min(n, int(buf[0]&15)*4):n]
			if len(tcp) >= header && binary.BigEndian.Uint16(tcp[2:]) == from.Port() && tcp[13]&(syn|ack) == syn|ack {
				answered = true
				return nil
			}
		}
		return nil
	})
	return answered, err
}

// The relay is adopted as it is, made anew when it is not what it should be, and gone with the network.
func TestTheRelayIsMadeOnceAndMadeAgain(t *testing.T) {
	h := newHost(t, withRelay(t))
	if _, err := h.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	was := h.relay
	h.relay = jail.Process{} // as for the next process
	if _, err := h.prepare(t.Context()); err != nil || h.relay != was {
		t.Fatalf("a relay that runs is not adopted: %+v, %v", h.relay, err)
	}
	if err := os.WriteFile(h.o.Relay.KeyFile, []byte(strings.Repeat("n", RelayKeySize)), 0o400); err != nil {
		t.Fatal(err)
	}
	h.relay = jail.Process{}
	if _, err := h.prepare(t.Context()); err != nil || h.relay == was {
		t.Fatalf("a relay with another key is kept: %v", err)
	}
	all, err := h.relays(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("there are %d relays, %v", len(all), err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(h.o.RunDir, relayFolder, relayKeyName), &st); err != nil || st.Mode&0o777 != 0o400 || st.Uid != 990 {
		t.Errorf("the key is of %d with mode %o, %v", st.Uid, st.Mode, err)
	}
	if text, err := sharedEngine(t).Ask(http.MethodGet, "/containers/"+all[0].ID+"/json"); err != nil || strings.Contains(text, "nnnn") || strings.Contains(text, "6e6e6e6e") {
		t.Errorf("the engine shows the key, or nothing: %v", err)
	}
	if err := h.removeContainer(t.Context(), all[0].ID); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return h.guardRelay(t.Context()) == nil && h.relayRuns() }, "the relay does not come back")
	if err := h.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, err = h.relays(t.Context())
	outsides, errNetworks := h.outsides(t.Context())
	if err := errors.Join(err, errNetworks); err != nil || len(all)+len(outsides) != 0 {
		t.Errorf("after its end there are %d relays and %d networks, %v", len(all), len(outsides), err)
	}
}

// A file that the control plane puts at the place of the key is not believed.
func TestOnlyAFileIsAKey(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, size int) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, size), 0o400); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, link, fifo := write("good", RelayKeySize), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.Symlink(good, link), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{good: true, link: false, fifo: false, dir: false, write("short", 31): false, write("long", 33): false,
		filepath.Join(dir, "none"): false} {
		if _, err := readRelayKey(path); (err == nil) != want {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
	}
}

func TestARelaysOptionsAreLookedAt(t *testing.T) {
	o := Options{Installation: "k3x9", Socket: "/s", RunDir: "/r", DataDir: "/d", Port: 3000, Journal: &memoryJournal{}, Relay: &Relay{}}
	err := o.Validate()
	for _, field := range []string{"relay.key", "relay.binary", "relay.user", "gateway.relay", "gateway.relay_to"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not reported: %v", field, err)
		}
	}
}
