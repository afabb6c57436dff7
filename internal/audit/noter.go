package audit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// noteTimeout is how long the keeper of the checkpoints may take for one.
const noteTimeout = 5 * time.Second

// noter hands a signed note of the newest row to the keeper of the checkpoints: every so often when there is
// something new, sooner when there is much. One that was not taken is made up for by the next.
type noter struct {
	options Options
	noted   atomic.Int64 // the newest row that a note covers
	tried   atomic.Int64 // the newest row that a note was made of
	many    chan struct{}
	failing bool

	ctx      context.Context
	cancel   context.CancelFunc
	stopping chan struct{}
	ended    chan struct{}
	last     error // of the last note; read after ended

	mu  sync.Mutex
	end head
}

func newNoter(o Options) *noter {
	n := &noter{options: o, many: make(chan struct{}, 1), stopping: make(chan struct{}), ended: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// show is called by the writer with the newest row that is in the database.
func (n *noter) show(end head) {
	n.mu.Lock()
	n.end = end
	n.mu.Unlock()
	if end.seq-n.tried.Load() >= n.options.CheckpointRows {
		select {
		case n.many <- struct{}{}:
		default:
		}
	}
}

func (n *noter) start() { go n.run() }

// stop makes the last note, for as long as ctx allows, and returns what became of it.
func (n *noter) stop(ctx context.Context) error {
	close(n.stopping)
	select {
	case <-n.ended:
	case <-ctx.Done():
		n.cancel()
		<-n.ended
	}
	n.cancel()
	return n.last
}

func (n *noter) run() {
	defer close(n.ended)
	tick := time.NewTicker(n.options.CheckpointEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-n.many:
		case <-n.stopping:
			n.last = n.note()
			return
		}
		n.last = n.note()
	}
}

// note makes a note when there is something new.
func (n *noter) note() error {
	n.mu.Lock()
	end := n.end
	n.mu.Unlock()
	if end.seq == n.noted.Load() {
		return nil
	}
	n.tried.Store(end.seq)
	ctx, cancel := context.WithTimeout(n.ctx, noteTimeout)
	defer cancel()
	note, err := n.options.Key.Note(n.options.Node, end.seq, end.hash, n.options.Now()).Marshal()
	if err == nil {
		err = n.options.Checkpoints.Append(ctx, note)
	}
	if err != nil {
		if !n.failing {
			n.options.Log.Error("the audit log's checkpoint was not taken", "seq", end.seq, "error", err)
		}
		n.failing = true
		return err
	}
	if n.failing {
		n.options.Log.Info("the audit log's checkpoints are taken again", "seq", end.seq)
	}
	n.failing = false
	n.noted.Store(end.seq)
	return nil
}
