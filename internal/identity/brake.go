package identity

import (
	"container/list"
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

// DefaultBrake is the Brake when nobody configured another.
func DefaultBrake() Brake { return Brake{Burst: 10, Every: 3 * time.Second, Addresses: 4096} }

func (b Brake) validate(m *problem.Many) {
	if b.Burst < 1 || b.Every <= 0 || b.Addresses < 1 {
		m.Add("brake", "has a burst of %d, every %s, of %d addresses; each must be positive", b.Burst, b.Every, b.Addresses)
	}
}

// brake counts wrong keys. What counts is where they come from, never what they are: it answers before a key is read.
type brake struct {
	limits Brake
	now    func() time.Time

	mu     sync.Mutex
	known  map[netip.Prefix]*list.Element
	recent list.List // of *guesser, the latest one first
}

type guesser struct {
	from netip.Prefix
	left *rate.Limiter
	told bool // that it is braked now was recorded
}

func newBrake(limits Brake, now func() time.Time) *brake {
	return &brake{limits: limits, now: now, known: map[netip.Prefix]*list.Element{}}
}

// place is what one guesser can be expected to have: an IPv4 address, or the /64 of an IPv6 address. What has no
// address, such as a Unix socket, is one place.
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

// blocked says how long a place has to wait until its keys are looked at again; first, that this is news.
func (b *brake) blocked(remote netip.Addr) (wait time.Duration, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	element, ok := b.known[place(remote)]
	if !ok {
		return 0, false
	}
	g := element.Value.(*guesser)
	left := g.left.TokensAt(b.now())
	if left >= float64(b.limits.Burst) {
		g.told = false // it has been quiet for long: the next time is news again
	}
	if left >= 1 {
		return 0, false
	}
	first, g.told = !g.told, true
	return time.Duration((1 - left) * float64(b.limits.Every)), first
}

// wrong counts one wrong key.
func (b *brake) wrong(remote netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	from := place(remote)
	element, ok := b.known[from]
	if ok {
		b.recent.MoveToFront(element)
	} else {
		if len(b.known) >= b.limits.Addresses {
			last := b.recent.Back()
			delete(b.known, b.recent.Remove(last).(*guesser).from)
		}
		element = b.recent.PushFront(&guesser{from: from, left: rate.NewLimiter(rate.Every(b.limits.Every), b.limits.Burst)})
		b.known[from] = element
	}
	element.Value.(*guesser).left.AllowN(b.now(), 1)
}
