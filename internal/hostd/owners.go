package hostd

import (
	"sync"

	"github.com/clawjail/clawjail/internal/problem"
)

// ownerTokenLength is that of an owner's token: 128 bits as 32 hexadecimal digits. A token is not a secret against the caller's own user; it tells one
// run of the control plane from the next.
const ownerTokenLength = 32

func validOwner(token string) error {
	ok := len(token) == ownerTokenLength
	for i := 0; ok && i < len(token); i++ {
		c := token[i]
		ok = c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
	}
	if !ok {
		return problem.New(problem.BadRequest, "send 32 hexadecimal digits", "the owner token is not valid")
	}
	return nil
}

// owners are the owners that are here: those with an open hold.
type owners struct {
	drivers []driver

	mu   sync.Mutex
	held map[string]*holding
}

type holding struct {
	uid   uint32
	count int // connections; two overlap when a client reconnects
}

// hold makes an owner be here until the returned function is called.
func (o *owners) hold(token string, p peer) (release func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.held[token]
	if h == nil {
		h = &holding{uid: p.uid}
		o.held[token] = h
		for _, d := range o.drivers {
			d.Found(token)
		}
	}
	if h.uid != p.uid {
		return nil, problem.New(problem.Forbidden, "use a token of your own", "the owner belongs to another user")
	}
	h.count++
	var once sync.Once
	return func() { once.Do(func() { o.drop(token, h) }) }, nil
}

func (o *owners) drop(token string, h *holding) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h.count--; h.count > 0 {
		return
	}
	delete(o.held, token)
	for _, d := range o.drivers {
		d.Lost(token)
	}
}

// isHere says whether somebody holds an owner.
func (o *owners) isHere(token string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.held[token] != nil
}

// has refuses a token that no connection holds, or that another user holds.
func (o *owners) has(token string, p peer) error {
	if err := validOwner(token); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if h := o.held[token]; h == nil || h.uid != p.uid {
		return problem.New(problem.Forbidden, "open a hold first, and keep it open", "nobody holds the owner that the jail would belong to")
	}
	return nil
}
