package session

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/guard"
)

// fakeDevtools is a client that is told what it said.
type fakeDevtools struct {
	said chan []byte
	done chan struct{}
	once sync.Once
}

func (d *fakeDevtools) Send(_ context.Context, frame []byte) error { d.said <- frame; return nil }
func (d *fakeDevtools) SendFrom(ctx context.Context, r io.Reader) error {
	frame, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return d.Send(ctx, frame)
}
func (d *fakeDevtools) Receive(ctx context.Context) ([]byte, error) {
	select {
	case frame := <-d.said:
		return frame, nil
	case <-d.done:
		return nil, d.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
func (d *fakeDevtools) Done() <-chan struct{} { return d.done }
func (d *fakeDevtools) Err() error {
	select {
	case <-d.done:
		return errors.New("it has ended")
	default:
		return nil
	}
}
func (d *fakeDevtools) Close() error { d.once.Do(func() { close(d.done) }); return nil }

func (b *fakeBrowser) UseRoom(room cdp.Room) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.room = room
}

func (b *fakeBrowser) Attach(_ context.Context, o guard.Options) (Devtools, error) {
	if err := b.step("attach"); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.guards = append(b.guards, o)
	d := &fakeDevtools{said: make(chan []byte, 10), done: make(chan struct{})}
	b.clients = append(b.clients, d)
	return d, nil
}
