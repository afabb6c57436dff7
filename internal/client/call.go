package client

import (
	"context"

	"github.com/clawjail/clawjail/internal/op"
)

// Call does an operation.
func Call[In, Out any](ctx context.Context, c *Client, o op.Op[In, Out], in In) (out Out, err error) {
	path, query, body := o.Request(in)
	var into any = &out
	if _, none := into.(*op.None); none {
		into = nil
	}
	return out, c.do(ctx, o.Method, path, query, body, into)
}

// Do does an operation that answers nothing.
func Do[In any](ctx context.Context, c *Client, o op.Op[In, op.None], in In) error {
	_, err := Call(ctx, c, o, in)
	return err
}
