package hostd

import (
	"sync"

	"github.com/clawjail/clawjail/internal/problem"
)

// admission bounds the open connections of each user.
type admission struct {
	limit int

	mu    sync.Mutex
	users map[uint32]*connections
}

type connections struct {
	open    int
	lasting int // of them, calls that may last as long as a jail
}

// open counts a connection in, until the returned function is called.
func (a *admission) open(uid uint32) (leave func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.users[uid]
	if u == nil {
		u = &connections{}
		a.users[uid] = u
	}
	if u.open >= a.limit {
		return nil, tooMany(a.limit, "calls")
	}
	u.open++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if u.open--; u.open == 0 {
			delete(a.users, uid)
		}
	}, nil
}

// lasting counts a call that may last, which has been counted by open, until the returned function is called.
func (a *admission) lasting(uid uint32) (leave func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u, limit := a.users[uid], a.limit-a.limit/4
	if u.lasting >= limit {
		return nil, tooMany(limit, "calls that wait")
	}
	u.lasting++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		u.lasting--
	}, nil
}

func tooMany(n int, what string) error {
	return problem.New(problem.RateLimited, "end some of them first", "this user has %d %s, the most there may be", n, what)
}
