package identity

import (
	"container/list"
	"context"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/clawjail/clawjail/internal/problem"
)

// Brake bounds how fast wrong keys may come from one place. A key cannot be guessed anyway; the brake keeps guessing
// from filling the log and the database's time.
type Brake struct {
	// Burst is how many wrong keys an address may present at once, and Every how soon it gets one of them back.
	Burst int
	Every time.Duration
	// Addresses bounds the memory: of so many the brake knows. The one that was wrong least recently is forgotten first.
	Addresses int
}

// proxyShare is for how many guessing clients a connection's peer may speak at once: it has the burst of so many, and gets
// it back as fast. One client that guesses is braked by itself then, long before its proxy is.
const proxyShare = 3

// DefaultBrake is the Brake when nobody configured another.
func DefaultBrake() Brake { return Brake{Burst: 10, Every: 3 * time.Second, Addresses: 4096} }

type proxyKey struct{}

// Through tells [Service.Braked] and [Service.Wrong] who has connected: a proxy, or a program of this host. Such a program
// can invent a client for each guess, or take another loopback address, so wrong keys count for the peer as well.
func Through(ctx context.Context, proxy netip.Addr) context.Context {
	return context.WithValue(ctx, proxyKey{}, proxy)
}

func proxyOf(ctx context.Context) netip.Addr {
	proxy, _ := ctx.Value(proxyKey{}).(netip.Addr)
	return proxy
}

func (b Brake) validate(m *problem.Many) {
	if b.Burst < 1 || b.Every <= 0 || b.Addresses < 1 {
		m.Add("brake", "has a burst of %d, every %s, of %d addresses; each must be positive", b.Burst, b.Every, b.Addresses)
	}
}

// brake counts wrong keys. It counts by where they come from, never by what they are: it answers before a key is read.
type brake struct {
	limits Brake
	now    func() time.Time

	mu     sync.Mutex
	known  map[guessing]*list.Element
	recent list.List // of *guesser, the latest one first
}

// guessing is where wrong keys come from: a client, or a proxy for all of its clients.
type guessing struct {
	place netip.Prefix
	proxy bool
}

// peers is the record that is shared by all who connect from one place. The loopback addresses are one: a user of this host
// has them all.
func peers(at netip.Addr) guessing {
	if at = at.Unmap(); at.IsLoopback() {
		at = netip.IPv6Loopback()
	}
	return guessing{place(at), true}
}

type guesser struct {
	from guessing
	left *rate.Limiter
	told bool // that it is braked now was recorded
	good bool // its last key was a good one; it is not held up by what others behind its proxy guess
}

func newBrake(limits Brake, now func() time.Time) *brake {
	return &brake{limits: limits, now: now, known: map[guessing]*list.Element{}}
}

// place is what one guesser can be expected to have: an IPv4 address, or the /64 of an IPv6 address. A caller without an
// address, such as one of a Unix socket, is one place.
func place(remote netip.Addr) netip.Prefix {
	remote = remote.Unmap()
	bits := 64
	if !remote.IsValid() {
		return netip.Prefix{}
	}
	if remote.Is4() {
		bits = 32
	}
	prefix, err := remote.Prefix(bits)
	if err != nil {
		return netip.Prefix{} // not for 32 and 64
	}
	return prefix
}

// blocked says how long a place has to wait until its keys are looked at again; first, that this is news. proxy is who hands
// its requests on, or not valid.
func (b *brake) blocked(remote, proxy netip.Addr) (wait time.Duration, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own, ok := b.known[guessing{place: place(remote)}]
	if ok {
		if wait, first := b.waits(own.Value.(*guesser)); wait > 0 {
			return wait, first
		}
	}
	if !proxy.IsValid() || ok && own.Value.(*guesser).good {
		return 0, false
	}
	if through, ok := b.known[peers(proxy)]; ok {
		return b.waits(through.Value.(*guesser))
	}
	return 0, false
}

// waits is called with mu held.
func (b *brake) waits(g *guesser) (wait time.Duration, first bool) {
	left := g.left.TokensAt(b.now())
	if left >= float64(g.left.Burst()) {
		g.told = false // it has been quiet for long: the next time is news again
	}
	if left >= 1 {
		return 0, false
	}
	first, g.told = !g.told, true
	return time.Duration((1 - left) / float64(g.left.Limit()) * float64(time.Second)), first
}

// wrong counts one wrong key, for a place and for the proxy that hands its requests on.
func (b *brake) wrong(remote, proxy netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.guesser(guessing{place: place(remote)})
	own.left.AllowN(b.now(), 1)
	own.good = false
	if proxy.IsValid() {
		b.guesser(peers(proxy)).left.AllowN(b.now(), 1)
	}
}

// right notes a good key of a place behind a proxy. Without a proxy there is nobody else to wait for.
func (b *brake) right(remote, proxy netip.Addr) {
	if !proxy.IsValid() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.guesser(guessing{place: place(remote)}).good = true
}

// guesser is the record of a place, the latest one now. It is called with mu held.
func (b *brake) guesser(from guessing) *guesser {
	if element, ok := b.known[from]; ok {
		b.recent.MoveToFront(element)
		return element.Value.(*guesser)
	}
	if len(b.known) >= b.limits.Addresses {
		last := b.recent.Back()
		delete(b.known, b.recent.Remove(last).(*guesser).from)
	}
	every, burst := b.limits.Every, b.limits.Burst
	if from.proxy {
		every, burst = every/proxyShare, burst*proxyShare
	}
	g := &guesser{from: from, left: rate.NewLimiter(rate.Every(every), burst)}
	b.known[from] = b.recent.PushFront(g)
	return g
}
