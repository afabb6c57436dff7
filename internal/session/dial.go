package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/guard"
	"github.com/clawjail/clawjail/internal/jail"
)

// reapplyLimit bounds telling a browser again where downloads go.
const reapplyLimit = 5 * time.Second

// Dialer makes the Connector for Chromium with --remote-debugging-pipe. DevTools clients may take so long for a dialog of
// their page.
func Dialer(dialogs time.Duration) Connector {
	return func(ctx context.Context, stdio *jail.Stdio) (Browser, error) { return dial(ctx, stdio, dialogs) }
}

func dial(ctx context.Context, stdio *jail.Stdio, dialogs time.Duration) (Browser, error) {
	conn, err := cdp.New(stdio.Out, stdio.In, cdp.Options{})
	if err != nil {
		return nil, err
	}
	b, err := browser.Open(ctx, conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	b.LetDialogsWait(dialogs)
	b.UseFolder(jail.KindBrowser.Home() + "/files")
	return &piped{Browser: b, conn: conn, mux: cdp.NewMux(conn), registry: guard.NewRegistry()}, nil
}

// piped is a browser whose end is the end of its pipe. It is not asked to exit: its jail is thrown away, and a
// browser that hangs would only take longer.
type piped struct {
	*browser.Browser
	conn     *cdp.Conn
	mux      *cdp.Mux
	registry *guard.Registry
}

// Attach implements Browser.
func (p *piped) Attach(ctx context.Context, o guard.Options) (Devtools, error) {
	o.Registry, o.Hidden, o.DownloadsPath, o.File = p.registry, p.HiddenContext, p.DownloadsPath(), p.FilePath
	o.Dialogs = p.OwnDialogs
	filter, err := guard.New(o)
	if err != nil {
		return nil, err
	}
	client, err := p.mux.Attach(ctx, cdp.ClientOptions{Filter: filter})
	if err != nil {
		return nil, err
	}
	return &guarded{Client: client, browser: p.Browser}, nil
}

// UseRoom implements Browser.
func (p *piped) UseRoom(room cdp.Room) { p.conn.UseRoom(room) }

// Live implements Browser.
func (p *piped) Live() LiveBrowser { return live{p.Browser.Live()} }

// live is a browser's live view as a LiveBrowser.
type live struct{ *browser.Live }

// Watch implements LiveBrowser.
func (l live) Watch() LiveViewer { return l.Live.Watch() }

// guarded is a DevTools client of a piped browser.
type guarded struct {
	*cdp.Client
	browser *browser.Browser
}

// Close implements Devtools.
func (g *guarded) Close() error {
	err := g.Client.Close()
	// A client's setting of downloads goes with it, and those of all others with that.
	if g.browser.Conn().Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), reapplyLimit)
	defer cancel()
	return errors.Join(err, g.browser.ReapplyDownloads(ctx))
}

func (p *piped) Close() error {
	err := errors.Join(p.conn.Close(), p.mux.Close())
	// With the connection closed this sends nothing and does not wait; it lets go of the page.
	if closed := p.Browser.Close(context.Background()); closed != nil {
		err = errors.Join(err, closed)
	}
	if err != nil {
		return fmt.Errorf("close the browser's pipe: %w", err)
	}
	return nil
}
