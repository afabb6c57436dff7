package jail

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/clawjail/clawjail/internal/problem"
)

// Places in an installation's subnet.
const (
	gatewayOffset  = 1   // .1, the only address a jail can reach
	templateOffset = 6   // .6, for templates that are started to be built
	firstJail      = 150 // jails from .150 upward
)

// Pool hands out the leases of one installation: an address and the uid that goes with it. The address after
// the last one handed out comes first, so that one is reused as late as possible.
type Pool struct {
	subnet  netip.Prefix
	uidBase uint32
	size    int

	mu    sync.Mutex
	next  int
	taken map[int]bool
}

// NewPool makes the pool of a subnet of IPv4, /16 to /24. The uids are uidBase plus the lease's index.
func NewPool(subnet netip.Prefix, uidBase uint32) (*Pool, error) {
	if !subnet.Addr().Is4() || subnet.Bits() < 16 || subnet.Bits() > 24 {
		return nil, problem.New(problem.BadConfig, "use something like 10.213.0.0/20",
			"the subnet %s is not an IPv4 network between /16 and /24", subnet)
	}
	size := 1<<(32-subnet.Bits()) - firstJail - 1 // without the broadcast address
	return &Pool{subnet: subnet.Masked(), uidBase: uidBase, size: size, taken: map[int]bool{}}, nil
}

// Subnet is the network of the pool.
func (p *Pool) Subnet() netip.Prefix { return p.subnet }

// Gateway is the address of the gateway.
func (p *Pool) Gateway() netip.Addr { return p.offset(gatewayOffset) }

// TemplateAddr is the address of a template that is started to be built.
func (p *Pool) TemplateAddr() netip.Addr { return p.offset(templateOffset) }

// Size is the number of leases there are.
func (p *Pool) Size() int { return p.size }

// Lease is the lease of an index, whether it is held or not.
func (p *Pool) Lease(index int) (Lease, error) {
	if index < 0 || index >= p.size {
		return Lease{}, fmt.Errorf("lease %d is not between 0 and %d", index, p.size-1)
	}
	return Lease{Index: index, Addr: p.offset(firstJail + index), UID: p.uidBase + uint32(index)}, nil
}

// Check makes sure that index and address belong together, because both become names of things on the host.
func (p *Pool) Check(l Lease) error {
	want, err := p.Lease(l.Index)
	if err == nil && l.Addr != want.Addr {
		err = fmt.Errorf("lease %d has the address %s, not %s", l.Index, want.Addr, l.Addr)
	}
	return err
}

// IndexOf is the index that an address belongs to, or -1.
func (p *Pool) IndexOf(a netip.Addr) int {
	if !p.subnet.Contains(a) {
		return -1
	}
	b, base := a.As4(), p.subnet.Addr().As4()
	n := int(be32(b)-be32(base)) - firstJail
	if n < 0 || n >= p.size {
		return -1
	}
	return n
}

// Take leases the next free index.
func (p *Pool) Take() (Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range p.size {
		i := p.next
		p.next = (p.next + 1) % p.size
		if !p.taken[i] {
			p.taken[i] = true
			return p.Lease(i)
		}
	}
	return Lease{}, problem.New(problem.PoolExhausted, "close sessions, or configure a larger subnet",
		"all %d addresses of %s are in use", p.size, p.subnet)
}

// Claim takes a given index at the start, for a jail that is already there: the one after it comes next. It reports whether the
// index was free.
func (p *Pool) Claim(index int) bool {
	if !p.Hold(index) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = (index + 1) % p.size
	return true
}

// Hold takes a given index, so that no jail gets it. It reports whether the index was free.
func (p *Pool) Hold(index int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if index < 0 || index >= p.size || p.taken[index] {
		return false
	}
	p.taken[index] = true
	return true
}

// Release gives an index back.
func (p *Pool) Release(index int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, index)
}

// InUse is the number of leases that are out.
func (p *Pool) InUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.taken)
}

// Has reports whether an index is leased.
func (p *Pool) Has(index int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken[index]
}

func (p *Pool) offset(n int) netip.Addr {
	v := be32(p.subnet.Addr().As4()) + uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

func be32(b [4]byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// DefaultSubnets are the networks that an installation takes the first free one of, in this order. They stay clear
// of what container engines, virtual machines, home routers and VPNs commonly use (172.17.0.0/16 and up,
// 192.168.0.0/23, 192.168.122.0/24, 10.0.0.0/16, 10.42.0.0/15, 10.96.0.0/12, 10.244.0.0/16, 100.64.0.0/10).
func DefaultSubnets() []netip.Prefix {
	var subnets []netip.Prefix
	for _, s := range []string{
		"10.213.0.0/20", "10.213.16.0/20", "10.214.0.0/20", "10.187.0.0/20", "10.91.0.0/20",
		"172.30.208.0/20", "172.31.208.0/20", "192.168.208.0/20",
	} {
		subnets = append(subnets, netip.MustParsePrefix(s))
	}
	return subnets
}
