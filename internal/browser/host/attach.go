package host

import (
	"context"
	"errors"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/guard"
)

// restoreLimit bounds what is done after a DevTools client left.
const restoreLimit = 5 * time.Second

// Client is a DevTools client of the browser, behind the guard.
type Client struct {
	*cdp.Client
	browser *browser.Browser
}

// Close detaches the client.
func (c *Client) Close() error {
	err := c.Client.Close()
	// Downloads go where the last client to leave had them go, so that is said again.
	ctx, cancel := context.WithTimeout(context.Background(), restoreLimit)
	defer cancel()
	if wake.Closed(c.browser.Done()) {
		return err
	}
	return errors.Join(err, c.browser.ReapplyDownloads(ctx))
}

// Attach adds a DevTools client to the browser that runs. The caller closes it.
func (k *Keeper) Attach(ctx context.Context) (*Client, error) {
	if err := k.Enabled(); err != nil {
		return nil, err
	}
	r, err := k.settled(ctx)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, k.notRunning()
	}
	// Clients may have contexts and cookies of their own; files, ports and each other they do not reach.
	filter, err := guard.New(guard.Options{
		Mode: guard.Clean, Registry: r.contexts, Hidden: r.browser.HiddenContext,
		DownloadsPath: r.browser.DownloadsPath(), File: r.browser.FilePath, Dialogs: r.browser.OwnDialogs,
		Refused: func(method, reason string) {
			k.log.Debug("a DevTools command was refused", "method", method, "reason", reason)
		},
	})
	if err != nil {
		return nil, err
	}
	client, err := r.mux.Attach(ctx, cdp.ClientOptions{Filter: filter})
	if err != nil {
		return nil, err
	}
	return &Client{Client: client, browser: r.browser}, nil
}
