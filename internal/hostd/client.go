package hostd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Client is a jail.Driver and a jail.Keeper that asks a host daemon. Before Create it must Hold.
//
// When the host daemon cannot be reached the code is hostd_unreachable. A Client survives its restart: the hold is
// taken again, Wait goes on waiting, jails that were there still are, and those that were to be destroyed meanwhile are.
type Client struct {
	socket string
	log    *slog.Logger
	owner  string

	mu         sync.Mutex
	held       chan struct{}      // closed while the hold is open
	end        context.CancelFunc // of the hold; nil before Hold
	background context.Context    // ends with the hold; nil before Hold
	destroying map[jail.Name]bool // what the host daemon is asked for until it has heard it
	holding    sync.WaitGroup
}

var _ jail.Driver = (*Client)(nil)

const (
	// firstPause and longestPause are between the attempts to reach a host daemon that is gone.
	firstPause, longestPause = 20 * time.Millisecond, time.Second
	// holdPatience is how long a Create waits for a hold that dropped.
	holdPatience = 5 * time.Second
)

// NewClient makes a client of the host daemon behind a socket. It connects to nothing yet. log may be nil.
func NewClient(socket string, log *slog.Logger) *Client {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var token [ownerTokenLength / 2]byte
	rand.Read(token[:]) // never fails, see its documentation
	return &Client{socket: socket, log: log, owner: hex.EncodeToString(token[:]), held: make(chan struct{}), destroying: map[jail.Name]bool{}}
}

// Hold makes this client the owner of the jails that it creates, for as long as the process lives or until Close.
// It tries until the context ends, and then returns why it did not work. Afterwards the hold is kept, and taken
// again after a restart of the host daemon, by itself.
func (c *Client) Hold(ctx context.Context) error {
	c.mu.Lock()
	if c.end != nil {
		c.mu.Unlock()
		return errors.New("hold is called a second time")
	}
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.end = cancel
	c.mu.Unlock()

	var conn *net.UnixConn
	var last error
	err := retry(ctx, func() error {
		var err error
		if conn, err = c.openHold(ctx); err != nil && ctx.Err() == nil {
			last = err
		}
		return err
	})
	if err != nil {
		cancel()
		c.mu.Lock()
		c.end = nil
		c.mu.Unlock()
		if last != nil {
			err = last
		}
		return err
	}
	c.setHeld(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.background = background
	c.holding.Go(func() { c.keepHold(background, conn) })
	return nil
}

// Close gives up the hold: the host daemon ends the client's jails after its grace period.
func (c *Client) Close() {
	c.mu.Lock()
	if c.end != nil {
		c.end()
	}
	c.mu.Unlock()
	c.holding.Wait()
}

// keepHold waits for the end of each hold and takes it again, until the context ends.
func (c *Client) keepHold(ctx context.Context, conn *net.UnixConn) {
	for {
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		_, err := io.Copy(io.Discard, conn) // the host daemon says nothing more; this is its end
		stop()
		_ = conn.Close() // it has ended
		c.setHeld(false)
		if ctx.Err() != nil {
			return
		}
		c.log.Warn("the host daemon is gone", "error", err)
		refused := ""
		err = retryWhile(ctx, func(err error) bool {
			if text := err.Error(); !isAway(err) && text != refused && ctx.Err() == nil { // also this may be over one day
				c.log.Error("the host daemon does not take the hold again", "error", err)
				refused = text
			}
			return true
		}, func() (err error) {
			conn, err = c.openHold(ctx)
			return err
		})
		if err != nil {
			return
		}
		c.log.Info("the host daemon is back")
		c.setHeld(true)
	}
}

func (c *Client) openHold(ctx context.Context) (*net.UnixConn, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := exchange[noResult](ctx, conn, OpHold, holdArguments{Owner: c.owner}); err != nil {
		return nil, errors.Join(err, closed(conn.Close()))
	}
	return conn, nil
}

func (c *Client) setHeld(held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if held {
		close(c.held)
	} else {
		c.held = make(chan struct{})
	}
}

// awaitHold waits a moment for a hold that is being taken again.
func (c *Client) awaitHold(ctx context.Context) error {
	c.mu.Lock()
	held, begun := c.held, c.end != nil
	c.mu.Unlock()
	if !begun {
		return errors.New("create a jail: the client has no hold")
	}
	patience := time.NewTimer(holdPatience)
	defer patience.Stop()
	select {
	case <-held:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-patience.C:
		return unreachable(errors.New("the hold was lost"))
	}
}

// Create implements jail.Driver.
func (c *Client) Create(ctx context.Context, spec jail.Spec) (*jail.Jail, error) {
	return c.CreateWith(ctx, spec, func(jail.Name, jail.Lease) error { return nil })
}

// CreateWith is Create for a caller that must know of the jail before its program begins. ready is called when the jail has been
// seen to be confined as declared, and no other jail has its address any more; an error of it ends the jail. It has seconds.
func (c *Client) CreateWith(ctx context.Context, spec jail.Spec, ready func(jail.Name, jail.Lease) error) (*jail.Jail, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := c.awaitHold(ctx); err != nil {
		return nil, err
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close() // a jail that has not been accepted by then is undone by the host daemon
	var files []*os.File
	made, err := exchangeWith[created](ctx, conn, OpCreate, createArguments{Owner: c.owner, Spec: spec},
		func() (body []byte, err error) {
			body, files, err = readFrameWithFiles(conn, maxAnswer)
			return body, err
		})
	if err == nil && len(files) != stdioCount {
		err = fmt.Errorf("create: %d descriptors came instead of %d", len(files), stdioCount)
	}
	if err == nil {
		err = ready(made.Name, made.Lease)
	}
	if err == nil {
		// From here on the jail is the caller's, whatever becomes of the context.
		_, err = conn.Write([]byte{accepted})
	}
	if err != nil {
		closeFiles(files)
		return nil, err
	}
	// The program begins now, and the host daemon closes the connection when that is in its journal. When it cannot
	// begin, its pipes end, which the caller sees. There is nothing to read.
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	_, _ = io.Copy(io.Discard, conn)
	return &jail.Jail{Name: made.Name, Lease: made.Lease, Timing: made.Timing,
		Stdio: &jail.Stdio{In: files[0], Out: files[1], Err: files[2]}}, nil
}

// Admit implements jail.Driver.
func (c *Client) Admit(ctx context.Context, name jail.Name) error {
	_, err := ask[noResult](ctx, c, OpAdmit, nameArguments{string(name)})
	return err
}

// Wait implements jail.Driver. While the host daemon is away it goes on trying.
func (c *Client) Wait(ctx context.Context, name jail.Name) (exit jail.Exit, err error) {
	err = retry(ctx, func() (err error) {
		exit, err = ask[jail.Exit](ctx, c, OpWait, nameArguments{string(name)})
		return err
	})
	return exit, err
}

// Inspect implements jail.Driver.
func (c *Client) Inspect(ctx context.Context, name jail.Name) (jail.Status, error) {
	return ask[jail.Status](ctx, c, OpInspect, nameArguments{string(name)})
}

// List implements jail.Driver.
func (c *Client) List(ctx context.Context) ([]jail.Status, error) {
	return pages(func(behind string) ([]jail.Status, string, error) {
		r, err := ask[listResult](ctx, c, OpList, listArguments{behind})
		return r.All, r.Next, err
	})
}

// Destroy implements jail.Driver. When the host daemon may not have got the call, it is sent again in the background, until it has or
// Hold ends: while the owner is connected, the host daemon does not end the jail by itself.
func (c *Client) Destroy(ctx context.Context, name jail.Name) error {
	err := c.destroy(ctx, name)
	if err != nil && (ctx.Err() != nil || unheard(err)) {
		c.destroyLater(name)
	}
	return err
}

func (c *Client) destroy(ctx context.Context, name jail.Name) error {
	_, err := ask[noResult](ctx, c, OpDestroy, nameArguments{string(name)})
	return err
}

func (c *Client) destroyLater(name jail.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.background == nil || c.background.Err() != nil || c.destroying[name] {
		return
	}
	c.destroying[name] = true
	ctx := c.background
	c.holding.Go(func() {
		err := retryWhile(ctx, unheard, func() error { return c.destroy(ctx, name) })
		c.mu.Lock()
		delete(c.destroying, name)
		c.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			c.log.Error("the host daemon goes on to end a jail", "jail", name, "error", err)
		}
	})
}

// unheard says that the host daemon has not begun what it was asked for.
func unheard(err error) bool { return isAway(err) || problem.CodeOf(err) == problem.RateLimited }

// Reap implements jail.Driver.
func (c *Client) Reap(ctx context.Context, o jail.ReapOptions) (jail.ReapReport, error) {
	r, err := ask[reapResult](ctx, c, OpReap, o)
	if err == nil && r.Error != nil {
		err = fromWire(r.Error)
	}
	return r.Report, err
}

// Info says what the host daemon is.
func (c *Client) Info(ctx context.Context) (Info, error) {
	return ask[Info](ctx, c, OpInfo, noArguments{})
}

// Templates lists what jails can be made from.
func (c *Client) Templates(ctx context.Context) ([]Template, error) {
	return ask[[]Template](ctx, c, OpTemplates, noArguments{})
}

// HostResources lists everything that the installation has on the host.
func (c *Client) HostResources(ctx context.Context) ([]jail.HostResource, error) {
	return ask[[]jail.HostResource](ctx, c, OpHostResources, noArguments{})
}

func (c *Client) dial(ctx context.Context) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.socket)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, unreachable(err)
	}
	return conn.(*net.UnixConn), nil
}

// ask makes one call on a connection of its own.
func ask[R any](ctx context.Context, c *Client, op Operation, arguments any) (R, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		var none R
		return none, err
	}
	defer conn.Close() // one call per connection: the answer is complete, or does not come
	return exchange[R](ctx, conn, op, arguments)
}

func exchange[R any](ctx context.Context, conn *net.UnixConn, op Operation, arguments any) (R, error) {
	return exchangeWith[R](ctx, conn, op, arguments, func() ([]byte, error) { return readFrame(conn, maxAnswer) })
}

// exchangeWith sends a request and reads its answer. When the context ends first the connection is closed, which
// cancels the call.
func exchangeWith[R any](ctx context.Context, conn *net.UnixConn, op Operation, arguments any, read func() ([]byte, error)) (R, error) {
	var none R
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	raw, err := json.Marshal(arguments, durations())
	if err != nil {
		return none, problem.Wrap(err, problem.BadRequest, "use text that is UTF-8", "the request %s cannot be encoded", op)
	}
	frame, err := encodeFrame(request{Protocol: protocolVersion, Operation: op, Arguments: raw}, maxRequest)
	if err != nil {
		return none, fmt.Errorf("%s: %w", op, err)
	}
	// The host daemon may answer before it has read everything, when there are too many calls: what it has to
	// say is worth more than the error of the write.
	_, writeErr := conn.Write(frame)
	return readAnswer[R](ctx, op, read, writeErr)
}

// readAnswer reads one answer. writeErr is what became of the request.
func readAnswer[R any](ctx context.Context, op Operation, read func() ([]byte, error), writeErr error) (R, error) {
	var none R
	body, err := read()
	if err != nil {
		if ctx.Err() != nil {
			return none, fmt.Errorf("%s: %w", op, ctx.Err())
		}
		return none, unreachable(fmt.Errorf("%s: %w", op, errors.Join(writeErr, err)))
	}
	var a answer
	if err := json.Unmarshal(body, &a, durations()); err != nil {
		return none, fmt.Errorf("%s: decode the answer: %w", op, err)
	}
	if a.Error != nil {
		return none, fromWire(a.Error)
	}
	var result R
	if err := json.Unmarshal(a.Result, &result, durations()); err != nil {
		return none, fmt.Errorf("%s: decode the result: %w", op, err)
	}
	return result, nil
}

// closed ignores that something had been closed before.
func closed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// unreachable explains why the host daemon does not answer.
func unreachable(err error) error {
	hint := "start it: sudo clawjail up"
	switch {
	case errors.Is(err, os.ErrPermission):
		hint = "run the command with sudo: only root and the control plane's user may talk to the host daemon"
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		hint = "it answers only root and the control plane's user; its log says why it closed the connection"
	}
	return problem.Wrap(err, problem.HostdUnreachable, hint, "the host daemon does not answer")
}

// isAway says that the host daemon is not there.
func isAway(err error) bool {
	code := problem.CodeOf(err)
	return code == problem.HostdUnreachable || code == problem.ShuttingDown
}

// retry repeats f while the host daemon is not there.
func retry(ctx context.Context, f func() error) error { return retryWhile(ctx, isAway, f) }

// retryWhile repeats f with growing pauses while its errors are such.
func retryWhile(ctx context.Context, again func(error) bool, f func() error) error {
	err := wake.Retry(ctx, firstPause, longestPause, again, f)
	if err != nil && again(err) {
		err = errors.Join(err, ctx.Err())
	}
	return err
}
