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
	"strconv"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/audit"
)

// maxLine bounds one line of a stream. The stream as a whole has no bound: whoever asked for it ends it.
const maxLine = 1 << 20

// Audit returns the records that a query selects: the newest of them, oldest first.
func (c *Client) Audit(ctx context.Context, q api.AuditQuery) ([]api.AuditRow, error) {
	var out api.AuditRows
	err := c.do(ctx, http.MethodGet, pathOf("audit"), auditQuery(q), nil, &out)
	return out.Rows, err
}

// AuditTail yields the newest records that a query selects, oldest first; with Follow also those that are written from
// then on, until ctx ends. An error is the last that is yielded; when ctx ends, it is why.
func (c *Client) AuditTail(ctx context.Context, q api.AuditQuery) iter.Seq2[api.AuditRow, error] {
	return func(yield func(api.AuditRow, error) bool) {
		for line, err := range c.lines(ctx, pathOf("audit", "tail"), auditQuery(q)) {
			var row api.AuditRow
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

// VerifyAudit has the control plane compare the log with its checkpoints. What is wrong with the log stands in the
// report; an error says that it could not be verified.
func (c *Client) VerifyAudit(ctx context.Context) (out audit.Report, err error) {
	err = c.do(ctx, http.MethodPost, pathOf("audit", "verify"), nil, nil, &out)
	return out, err
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

// auditQuery is a query as the control plane reads it. What is empty is left out.
func auditQuery(q api.AuditQuery) url.Values {
	out := url.Values{}
	for name, value := range map[string]string{
		"tenant": q.Tenant, "action": q.Action, "actor": q.Actor, "session": q.Session, "jail": q.Jail, "phase": q.Phase, "result": q.Result,
		"ref": q.Ref, "node": q.Node,
	} {
		if value != "" {
			out.Set(name, value)
		}
	}
	for name, at := range map[string]time.Time{"since": q.Since, "until": q.Until} {
		if !at.IsZero() {
			out.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	for name, n := range map[string]int64{"after_seq": q.AfterSeq, "limit": int64(q.Limit)} {
		if n != 0 {
			out.Set(name, strconv.FormatInt(n, 10))
		}
	}
	if q.Follow {
		out.Set("follow", "true")
	}
	return out
}
