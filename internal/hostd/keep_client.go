package hostd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
)

var _ jail.Keeper = (*Client)(nil)

// Keep implements jail.Keeper.
func (c *Client) Keep(ctx context.Context, k jail.Kept, token string) error {
	_, err := ask[noResult](ctx, c, OpKeep, keepArguments{Kept: k, Token: token})
	return err
}

// Drop implements jail.Keeper.
func (c *Client) Drop(ctx context.Context, tenant, name string, o jail.DropOptions) error {
	_, err := ask[noResult](ctx, c, OpDrop, dropArguments{agentArguments{tenant, name}, o})
	return err
}

// Kept implements jail.Keeper. A change while the parts of a long list come is in the next list: the version is that of
// the first part.
func (c *Client) Kept(ctx context.Context, after uint64, usage bool) (version uint64, _ []jail.KeptStatus, err error) {
	all, err := pages(func(behind string) ([]jail.KeptStatus, string, error) {
		a := keptArguments{Usage: usage, Behind: behind}
		if behind == "" {
			a.After = after
		}
		r, err := ask[keptResult](ctx, c, OpKept, a)
		if err == nil && behind == "" {
			version = r.Version
		}
		return r.All, r.Next, err
	})
	return version, all, err
}

// Composed lists the containers of docker-compose that reach the gateway, when that has changed since a version.
func (c *Client) Composed(ctx context.Context, after uint64) (uint64, []jail.Composed, error) {
	r, err := ask[composedResult](ctx, c, OpComposed, composedArguments{After: after})
	return r.Version, r.All, err
}

// checkBytes bounds the declarations of one request. One is always sent, and fits.
const checkBytes = maxRequest / 2

// CheckKept implements jail.Keeper. It asks as often as the declarations need requests.
func (c *Client) CheckKept(ctx context.Context, all []jail.Kept) ([]error, error) {
	errs := make([]error, 0, len(all))
	for len(all) > 0 {
		n, size := 0, 0
		for n < len(all) && n < maxChecks {
			data, err := json.Marshal(all[n], durations())
			if err != nil {
				return nil, fmt.Errorf("encode a declaration: %w", err)
			}
			if size += len(data); n > 0 && size > checkBytes {
				break
			}
			n++
		}
		r, err := ask[checkResult](ctx, c, OpCheck, checkArguments{All: all[:n]})
		if err != nil {
			return nil, err
		}
		if len(r.Errors) != n {
			return nil, fmt.Errorf("check: %d answers came for %d questions", len(r.Errors), n)
		}
		for _, w := range r.Errors {
			var err error
			if w != nil {
				err = fromWire(w)
			}
			errs = append(errs, err)
		}
		all = all[n:]
	}
	return errs, nil
}

// SetToken implements jail.Keeper.
func (c *Client) SetToken(ctx context.Context, tenant, name, token string) error {
	_, err := ask[noResult](ctx, c, OpSetToken, tokenArguments{agentArguments{tenant, name}, token})
	return err
}

// HasToken implements jail.Keeper.
func (c *Client) HasToken(ctx context.Context, tenant, name string) (bool, error) {
	r, err := ask[hasTokenResult](ctx, c, OpHasToken, agentArguments{tenant, name})
	return r.Has, err
}

// RestartKept implements jail.Keeper.
func (c *Client) RestartKept(ctx context.Context, tenant, name string) error {
	_, err := ask[noResult](ctx, c, OpRestart, agentArguments{tenant, name})
	return err
}

// ReadLog implements jail.Keeper.
func (c *Client) ReadLog(ctx context.Context, r jail.LogRequest) (jail.LogChunk, error) {
	return ask[jail.LogChunk](ctx, c, OpReadLog, r)
}

// Type implements jail.Keeper.
func (c *Client) Type(ctx context.Context, tenant, name string, data []byte) (int, error) {
	r, err := ask[typeResult](ctx, c, OpType, typeArguments{agentArguments{tenant, name}, data})
	if err == nil && r.Error != nil {
		err = fromWire(r.Error)
	}
	return r.Written, err
}

// ExecIn implements jail.Keeper.
func (c *Client) ExecIn(ctx context.Context, name jail.Name, p jail.Program) (*jail.Running, error) {
	conn, files, err := askForFiles(ctx, c, OpExec, execArguments{Name: string(name), Program: p}, stdioCount)
	if err != nil {
		return nil, err
	}
	var exit jail.Exit
	var failed error
	ended, gone := make(chan struct{}), make(chan struct{})
	go func() { // ends with the program, or with the host daemon
		defer close(gone)
		r, err := readAnswer[execResult](context.WithoutCancel(ctx), OpExec, func() ([]byte, error) { return readFrame(conn, maxAnswer) }, nil)
		_ = conn.Close() // the answer is complete
		exit, failed = r.Exit, err
		if wake.Closed(ended) {
			failed = context.Canceled
		}
	}()
	return &jail.Running{
		Stdio: &jail.Stdio{In: files[0], Out: files[1], Err: files[2]},
		Wait: func(ctx context.Context) (jail.Exit, error) {
			select {
			case <-gone:
				return exit, failed
			case <-ctx.Done():
				return jail.Exit{}, ctx.Err()
			}
		},
		// The host daemon ends the program when nothing more can come, and closes the connection when nothing is left of it.
		End: sync.OnceFunc(func() { close(ended); _ = conn.CloseWrite() }),
	}, nil
}

// DialIn implements jail.Keeper.
func (c *Client) DialIn(ctx context.Context, name jail.Name, port uint16) (*os.File, error) {
	conn, files, err := askForFiles(ctx, c, OpDial, dialArguments{Name: string(name), Port: port}, 1)
	if err != nil {
		return nil, err
	}
	_ = conn.Close() // the answer is complete
	return files[0], nil
}

// askForFiles makes a call whose result is a number of descriptors. The connection stays open.
func askForFiles(ctx context.Context, c *Client, op Operation, arguments any, want int) (conn *net.UnixConn, files []*os.File, err error) {
	if conn, err = c.dial(ctx); err != nil {
		return nil, nil, err
	}
	_, err = exchangeWith[noResult](ctx, conn, op, arguments, func() (body []byte, err error) {
		body, files, err = readFrameWithFiles(conn, maxAnswer)
		return body, err
	})
	if err == nil && len(files) != want {
		err = fmt.Errorf("%s: %d descriptors came instead of %d", op, len(files), want)
	}
	if err != nil {
		closeFiles(files)
		return nil, nil, errors.Join(err, closed(conn.Close()))
	}
	return conn, files, nil
}

// Volumes are how large what agents keep may become, in bytes, by the keys of the agents, also of those that are gone.
func (c *Client) Volumes(ctx context.Context) (map[string]int64, error) {
	return ask[map[string]int64](ctx, c, OpVolumes, noArguments{})
}
