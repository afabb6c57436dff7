package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/jail"
)

// Dial is the Connector for Chromium with --remote-debugging-pipe.
func Dial(ctx context.Context, stdio *jail.Stdio) (Browser, error) {
	conn, err := cdp.New(stdio.Out, stdio.In, cdp.Options{})
	if err != nil {
		return nil, err
	}
	b, err := browser.Open(ctx, conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &piped{Browser: b, conn: conn}, nil
}

// piped is a browser whose end is the end of its pipe. It is not asked to exit: its jail is thrown away, and a
// browser that hangs would only take longer.
type piped struct {
	*browser.Browser
	conn *cdp.Conn
}

func (p *piped) Version() string { return p.Browser.Version().Product }

func (p *piped) Close() error {
	err := p.conn.Close()
	// With the connection closed this asks nobody and waits for nothing; it lets go of the page.
	if closed := p.Browser.Close(context.Background()); closed != nil {
		err = errors.Join(err, closed)
	}
	if err != nil {
		return fmt.Errorf("close the browser's pipe: %w", err)
	}
	return nil
}
