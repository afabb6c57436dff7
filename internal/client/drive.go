package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/control"
)

// Drive does something with the browser of a session, and returns what the operation returns; of a picture, where it is.
func (c *Client) Drive(ctx context.Context, id string, op browser.Operation) (any, error) {
	response, data, err := c.drive(ctx, id, op, "")
	if err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(data))
	return control.Read(response, op)
}

// SessionURL is the address below which a session is driven.
func (c *Client) SessionURL(id string) (*url.URL, error) { return c.at(sessionPath(id)) }

// drive makes the request of an operation. accept is what the answer is to be; empty is what the contract says.
func (c *Client) drive(ctx context.Context, id string, op browser.Operation, accept string) (*http.Response, []byte, error) {
	base, err := c.SessionURL(id)
	if err != nil {
		return nil, nil, err
	}
	request, err := control.Request(ctx, base, op)
	if err != nil {
		return nil, nil, err
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := c.ask(request)
	if err != nil {
		return nil, nil, err
	}
	data, err := wholeUpTo(ctx, response, control.MaxOf(op))
	return response, data, err
}

// As is what an operation returned, when that is of a type: As[browser.TabsResult](c.Drive(ctx, id, browser.Tabs{})).
func As[T any](out any, err error) (T, error) {
	var none T
	if err != nil {
		return none, err
	}
	result, ok := out.(T)
	if !ok {
		return none, fmt.Errorf("the operation returned a %T, not a %T", out, none)
	}
	return result, nil
}

// Navigate loads a page.
func (c *Client) Navigate(ctx context.Context, id string, op browser.Navigate) (browser.Result, error) {
	return As[browser.Result](c.Drive(ctx, id, op))
}

// Picture takes a screenshot, or prints a page, and returns the picture itself.
func (c *Client) Picture(ctx context.Context, id string, op browser.Operation) ([]byte, error) {
	_, data, err := c.drive(ctx, id, op, "image/*, application/pdf")
	return data, err
}

// SessionToken makes a token that is good for one session.
func (c *Client) SessionToken(ctx context.Context, id string, r api.TokenRequest) (out api.SessionToken, err error) {
	err = c.do(ctx, http.MethodPost, sessionPath(id, "tokens"), nil, r, &out)
	return out, err
}

// Recording writes what was recorded of a session, as one page of HTML.
func (c *Client) Recording(ctx context.Context, w io.Writer, id string) error {
	response, err := c.send(ctx, http.MethodGet, sessionPath(id, "recording"), nil, nil)
	if err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		_, err := whole(ctx, response)
		return err
	}
	defer response.Body.Close() // read to its end, or given up
	from := &reading{Reader: response.Body}
	if _, err = io.Copy(w, from); err != nil && from.err != nil {
		return brokeOff(ctx, err)
	}
	return err
}

// reading remembers that it was reading what failed, and not writing.
type reading struct {
	io.Reader
	err error
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}
