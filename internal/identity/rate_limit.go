package identity

import (
	"cmp"
	"container/list"
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// RateLimit bounds how fast wrong keys may come from one place. A key cannot be guessed anyway; the limit keeps guessing
// from filling the log and the database's time.
type RateLimit struct {
	// Burst is how many wrong keys an address may present at once, and Every how soon it gets one of them back.
	Burst int
	Every time.Duration
	// Addresses is how many addresses are remembered. The one that was wrong least recently is forgotten first.
	Addresses int
}

// proxyShare is for how many guessing clients a connection's peer may speak at once: it has the burst of so many, and gets
// it back as fast. One client that guesses is limited by itself then, long before its proxy is.
const proxyShare = 3

// DefaultRateLimit is the RateLimit when none is configured.
func DefaultRateLimit() RateLimit {
	return RateLimit{Burst: 10, Every: 3 * time.Second, Addresses: 4096}
}

// sharePause is between two exchanges of wrong keys with other processes, so that many wrong keys are few of them.
const sharePause = 100 * time.Millisecond

type proxyKey struct{}

// Through tells [Service.RateLimited] and [Service.Wrong] who has connected: a proxy, or a program of this host. Such a program
// can invent a client for each guess, or take another loopback address, so wrong keys count for the peer as well.
func Through(ctx context.Context, proxy netip.Addr) context.Context {
	return context.WithValue(ctx, proxyKey{}, proxy)
}

func proxyOf(ctx context.Context) netip.Addr {
	proxy, _ := ctx.Value(proxyKey{}).(netip.Addr)
	return proxy
}

func (b RateLimit) validate(m *problem.ValidationError) {
	if b.Burst < 1 || b.Every <= 0 || b.Addresses < 1 {
		m.Add("rate_limit", "has a burst of %d, every %s, of %d addresses; each must be positive", b.Burst, b.Every, b.Addresses)
	}
}

// network says where an address means something, when it is not the network of this host: a jail, or another host, which has handed
// the request on.
type network struct{ jail, host string }

type networkKey struct{}

// Inside tells that a caller is in a jail. Its address means something on this host only, whatever has the same one elsewhere, and
// there is no proxy before it.
func Inside(ctx context.Context, jail string) context.Context {
	return context.WithValue(ctx, networkKey{}, network{jail: cmp.Or(jail, "one without a name")})
}

// Forwarded tells that a caller is connected with another host of the installation.
func Forwarded(ctx context.Context, host string) context.Context {
	return context.WithValue(ctx, networkKey{}, network{host: cmp.Or(host, "one without a name")})
}

// IsForwarded says whether another host has handed a request on.
func IsForwarded(ctx context.Context) bool { return networkOf(ctx).host != "" }

func networkOf(ctx context.Context) network {
	n, _ := ctx.Value(networkKey{}).(network)
	return n
}

// rateLimiter counts wrong keys. It counts by where they come from, never by what they are: it answers before a key is read.
type rateLimiter struct {
	limits RateLimit
	now    func() time.Time
	shared store.Guesses // nil: no other process has the database
	share  wake.Signal

	mu     sync.Mutex
	known  map[guessing]*list.Element
	recent list.List                      // of *guesser, the latest one first
	untold map[netip.Prefix]time.Duration // what others have not been told
	swept  time.Time                      // when places were last looked at that can be forgotten
}

// guessing is where wrong keys come from: a client, or a proxy for all of its clients.
type guessing struct {
	place   netip.Prefix
	proxy   bool
	network network
}

// caller is the client that presents a key, and the proxy that hands its requests on, if there is one.
type caller struct {
	remote, proxy netip.Addr
	network       network
}

func callerIn(ctx context.Context, remote netip.Addr) caller {
	return caller{remote, proxyOf(ctx), networkOf(ctx)}
}

func (c caller) client() guessing {
	return guessing{place: place(c.remote), network: c.network.of(c.remote)}
}

// peers is the record that is shared by all who connect from one place. The loopback addresses are one: a user of this host
// has them all.
func (c caller) peers() guessing {
	at := c.proxy.Unmap()
	if at.IsLoopback() {
		at = netip.IPv6Loopback()
	}
	return guessing{place: place(at), proxy: true, network: c.network.of(at)}
}

// of is the network of an address: another host has the same one by most addresses.
func (n network) of(at netip.Addr) network {
	if n.jail == "" && everywhere(at) {
		return network{}
	}
	return n
}

// everywhere says whether an address means the same on all hosts of an installation.
func everywhere(at netip.Addr) bool {
	return at.IsValid() && !at.IsLoopback() && !at.IsLinkLocalUnicast() && !at.IsUnspecified()
}

type guesser struct {
	from  guessing
	until time.Time // when its wrong keys are forgotten: each makes it later by what limits say
	told  bool      // that it is limited now was recorded
	good  bool      // its last key was a good one; it is not held up by what others behind its proxy guess
}

func newRateLimiter(limits RateLimit, shared store.Guesses, now func() time.Time) *rateLimiter {
	return &rateLimiter{limits: limits, shared: shared, now: now, share: wake.New(), known: map[guessing]*list.Element{}, untold: map[netip.Prefix]time.Duration{}}
}

// bounds are how many wrong keys may come at once from there, and how soon one of them is forgotten.
func (l *rateLimiter) bounds(from guessing) (burst int, every time.Duration) {
	if from.proxy {
		return l.limits.Burst * proxyShare, l.limits.Every / proxyShare
	}
	return l.limits.Burst, l.limits.Every
}

// limit is how long the wrong keys of a place are remembered by one process: twice as many as may come at once.
func (l *rateLimiter) limit() time.Duration { return time.Duration(2*l.limits.Burst) * l.limits.Every }

// maxOfAll is how long they are remembered where several processes were given some.
func (l *rateLimiter) maxOfAll() time.Duration { return 5 * l.limit() }

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

// blocked says how long a caller has to wait until its keys are looked at again; first, that this is news.
func (l *rateLimiter) blocked(by caller) (wait time.Duration, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own, ok := l.known[by.client()]
	if ok {
		if wait, first := l.waits(own.Value.(*guesser)); wait > 0 {
			return wait, first
		}
	}
	if !by.proxy.IsValid() || ok && own.Value.(*guesser).good {
		return 0, false
	}
	if through, ok := l.known[by.peers()]; ok {
		return l.waits(through.Value.(*guesser))
	}
	return 0, false
}

// waits is called with mu held.
func (l *rateLimiter) waits(g *guesser) (wait time.Duration, first bool) {
	left := l.left(g)
	if left <= 0 {
		g.told = false // it has been quiet for long: the next time is news again
	}
	burst, every := l.bounds(g.from)
	if wait = left - time.Duration(burst-1)*every; wait <= 0 {
		return 0, false
	}
	first, g.told = !g.told, true
	return wait, first
}

// wrong counts one wrong key, for a client and for the proxy that hands its requests on.
func (l *rateLimiter) wrong(by caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := by.client()
	l.count(from).good = false
	if by.proxy.IsValid() {
		l.count(by.peers())
	}
	if l.shared != nil && from.network == (network{}) && everywhere(from.place.Addr()) && (len(l.untold) < l.limits.Addresses || l.untold[from.place] > 0) {
		l.untold[from.place] = min(l.untold[from.place]+l.limits.Every, l.limit())
		l.share.Send()
	}
}

// left is how long it takes until the wrong keys of a place are forgotten, also when the clock has gone back. It is called with
// mu held.
func (l *rateLimiter) left(g *guesser) time.Duration {
	now := l.now()
	if latest := now.Add(l.maxOfAll()); g.until.After(latest) {
		g.until = latest
	}
	return max(g.until.Sub(now), 0)
}

// count is called with mu held.
func (l *rateLimiter) count(from guessing) *guesser {
	g := l.guesser(from)
	_, every := l.bounds(from)
	left := l.left(g)
	g.until = l.now().Add(max(left, min(left+every, l.limit())))
	return g
}

// exchange shares counts of wrong keys with other processes through the database. Counts that the database does not take stay with
// this process, and so do those of proxies and of clients that had a good key.
func (l *rateLimiter) exchange(ctx context.Context) {
	defer wake.Sleep(ctx, sharePause)
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	l.mu.Lock()
	untold := l.untold
	l.untold = map[netip.Prefix]time.Duration{}
	l.mu.Unlock()
	var more []store.Guess
	for place, left := range untold {
		more = append(more, store.Guess{Place: place.String(), Left: left})
	}
	if len(more) > 0 && l.shared.AddGuesses(asking, more, l.maxOfAll()) != nil {
		return
	}
	all, err := l.shared.ListGuesses(asking, l.limits.Addresses, l.maxOfAll())
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, guess := range all {
		if at, err := netip.ParsePrefix(guess.Place); err == nil && everywhere(at.Addr()) {
			l.heard(guessing{place: at}, guess.Left)
		}
	}
}

// heard notes how long the wrong keys of a place are remembered by others. A place of which only others know makes nobody else be
// forgotten. It is called with mu held.
func (l *rateLimiter) heard(from guessing, left time.Duration) {
	element, ok := l.known[from]
	if !ok {
		if l.full() {
			return
		}
		element = l.recent.PushBack(&guesser{from: from})
		l.known[from] = element
	}
	g := element.Value.(*guesser)
	if until := l.now().Add(left); until.After(g.until) {
		g.until = until
	}
}

// full says whether there is no room for another place, also when those are gone of which there is nothing to remember. It looks for
// them now and then, and is called with mu held.
func (l *rateLimiter) full() bool {
	if now := l.now(); len(l.known) >= l.limits.Addresses && now.Sub(l.swept).Abs() >= l.limits.Every {
		l.swept = now
		for element := l.recent.Back(); element != nil; {
			g, before := element.Value.(*guesser), element.Prev()
			if l.left(g) == 0 && !g.good {
				l.forget(element)
			}
			element = before
		}
	}
	return len(l.known) >= l.limits.Addresses
}

// forget is called with mu held.
func (l *rateLimiter) forget(element *list.Element) {
	delete(l.known, l.recent.Remove(element).(*guesser).from)
}

// right notes a good key of a client behind a proxy. Without a proxy there is nothing to note.
func (l *rateLimiter) right(by caller) {
	if !by.proxy.IsValid() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.guesser(by.client()).good = true
}

// guesser is the record of a place, the latest one now. It is called with mu held.
func (l *rateLimiter) guesser(from guessing) *guesser {
	if element, ok := l.known[from]; ok {
		l.recent.MoveToFront(element)
		return element.Value.(*guesser)
	}
	if l.full() {
		l.forget(l.recent.Back())
	}
	g := &guesser{from: from}
	l.known[from] = l.recent.PushFront(g)
	return g
}
