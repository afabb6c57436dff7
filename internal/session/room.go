package session

import "github.com/clawjail/clawjail/internal/quota"

// maxOfMessages bounds the messages of all DevTools clients that are in memory, in bytes.
const maxOfMessages = 512 << 20

// room is what the DevTools messages of one session may take of the memory. It implements cdp.Room.
type room struct {
	gate   *quota.Gate
	holder quota.Holder
}

// Take implements cdp.Room.
func (r room) Take(n, spare int64) bool { return r.gate.TakeOf(r.holder, n, n+spare) == nil }

// Give implements cdp.Room.
func (r room) Give(n int64) { r.gate.Give(r.holder, n) }
