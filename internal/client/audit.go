package client

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"

	"github.com/clawjail/clawjail/internal/op"
)

// maxLine bounds one line of a stream. The stream as a whole has no bound: its reader ends it.
const maxLine = 1 << 20

// AuditTail yields the newest records that a query selects, oldest first; with Follow also those that are written from
// then on, until ctx ends. An error is the last that is yielded; when ctx ends, it is why.
func (c *Client) AuditTail(ctx context.Context, q op.AuditQuery) iter.Seq2[op.AuditRow, error] {
	return func(yield func(op.AuditRow, error) bool) {
		_, query, _ := op.ListAudit().Request(q)
		for line, err := range c.lines(ctx, pathOf("audit", "tail"), query) {
			var row op.AuditRow
			if err == nil {
				if err = json.Unmarshal(line, &row); err != nil {
					err = fmt.Errorf("read a record of the control plane: %w", err)
				}
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

// AuditExport writes the chain of a node, or of all of them when node is empty, as it can be verified. On error what
// was written is not the whole.
func (c *Client) AuditExport(ctx context.Context, w io.Writer, node string) error {
	query := url.Values{}
	if node != "" {
		query.Set("node", node)
	}
	for line, err := range c.lines(ctx, pathOf("audit", "export"), query) {
		if err != nil {
			return err
		}
		if _, err := w.Write(append(line[:len(line):len(line)], '\n')); err != nil {
			return fmt.Errorf("write the audit log: %w", err)
		}
	}
	return nil
}

// lines yields the lines of an answer as they come. A line is valid until the next.
func (c *Client) lines(ctx context.Context, path string, query url.Values) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		response, err := c.send(ctx, http.MethodGet, path, query, nil)
		if err != nil {
			yield(nil, err)
			return
		}
		defer response.Body.Close() // read to its end, or given up
		if response.StatusCode/100 != 2 {
			data, err := io.ReadAll(io.LimitReader(response.Body, maxLine))
			if err != nil {
				yield(nil, brokeOff(ctx, err))
				return
			}
			yield(nil, refusal(response, data))
			return
		}
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(make([]byte, 4<<10), maxLine)
		for lines.Scan() {
			if !yield(lines.Bytes(), nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(nil, brokeOff(ctx, err))
		}
	}
}
