//go:build linux

package linux

import (
	"hash/fnv"
	"sync"
)

// locks hold one of a few locks for each name: two names may share one.
type locks [32]sync.Mutex

// lock waits for the lock of a name and returns what gives it back.
func (l *locks) lock(name string) (unlock func()) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	m := &l[h.Sum32()%uint32(len(l))]
	m.Lock()
	return m.Unlock
}
