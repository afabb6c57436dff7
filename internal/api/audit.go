package api

import (
	"context"
	"errors"
	"io"
	"iter"
	"maps"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/auditor"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

// linesType is an answer of one JSON value a line, which may have no end.
const linesType = "application/x-ndjson"

// lineTimeout bounds writing a line to somebody who does not read.
const lineTimeout = 30 * time.Second

// endTimeout bounds it once the stream is to end.
const endTimeout = time.Second

// AuditLog is the audit log as it is written and read. *audit.Log is one.
type AuditLog interface {
	audit.Records
	List(ctx context.Context, f audit.Filter) ([]audit.Row, error)
	Tail(ctx context.Context, f audit.Filter, follow bool) iter.Seq2[audit.Row, error]
}

type exportInput struct {
	Node string `query:"node" maxLength:"128" doc:"all of them when it is left out"`
}

func (a *API) auditRoutes() {
	provide(a, op.ListAudit())
	provide(a, op.VerifyAudit())
	add(a, route{method: http.MethodGet, path: "/v1/audit/tail", id: "tail-audit", summary: "The newest records, and those that follow",
		lines: reflect.TypeFor[op.AuditRow]()}, a.tail)
	add(a, route{method: http.MethodGet, path: "/v1/audit/export", id: "export-audit", summary: "All records, as they can be verified",
		lines: reflect.TypeFor[op.AuditRow]()}, a.export)
}

// auditing is the audit log, and the auditor who reads it for callers.
type auditing struct {
	auditor.Auditor
	AuditLog
}

func (a *API) auditor() auditing {
	return auditing{auditor.Auditor{Identity: a.Identity, Records: a.Audit, Rows: a.Rows, Search: a.Audit.List, Check: a.Verify}, a.Audit}
}

func (a *API) tail(ctx context.Context, by identity.Principal, q *op.AuditQuery) (*huma.StreamResponse, error) {
	filter, err := q.Filter(ctx, a.auditor(), by)
	if err != nil {
		return nil, err
	}
	return a.stream(ctx, "Follow the audit log", func(ctx context.Context, out *lines) error {
		if q.Follow {
			if err := out.flush(); err != nil { // says that it was accepted, before there is a row
				return err
			}
		}
		for row, err := range a.Audit.Tail(ctx, filter, q.Follow) {
			if err != nil {
				return err
			}
			if err := out.line(op.AuditRowOf(row)); err != nil {
				return err
			}
		}
		return context.Cause(ctx) // of a tail that ended by itself, nil
	}), nil
}

func (a *API) export(ctx context.Context, by identity.Principal, in *exportInput) (*huma.StreamResponse, error) {
	write, err := a.auditor().Export(ctx, by, in.Node)
	if err != nil {
		return nil, err
	}
	return a.stream(ctx, "Export the audit log", func(ctx context.Context, out *lines) error { return write(ctx, out) }), nil
}

// endingKey is under what a request's context has the one that ends when the server is to end.
type endingKey struct{}

// errEnding ends a stream, which would keep the server from ending.
var errEnding = problem.New(problem.ShuttingDown, "try again when it is running", "clawjail is being stopped")

// stream answers with lines, as pour does.
func (a *API) stream(ctx context.Context, doing string, write func(context.Context, *lines) error) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(c huma.Context) {
		r, w := humago.Unwrap(c)
		a.pour(ctx, w, r, doing, http.Header{"Content-Type": {linesType}}, write)
	}}
}

// pour writes an answer whose length is not known. An error before the first of it is answered as every error is. After
// it, the connection is broken off, so that nobody takes a part for the whole.
func (a *API) pour(ctx context.Context, w http.ResponseWriter, r *http.Request, doing string, header http.Header,
	write func(context.Context, *lines) error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if ending, ok := Ending(ctx); ok {
		defer context.AfterFunc(ending, func() { cancel(errEnding) })()
	}
	out := &lines{w: w, control: http.NewResponseController(w), header: header}
	// A line that nobody takes does not keep a stream that is to end.
	defer context.AfterFunc(ctx, func() {
		if err := supported(out.control.SetWriteDeadline(time.Now().Add(endTimeout))); err != nil {
			a.Log.Debug("end a stream", "error", err) // the connection is gone
		}
	})()
	err := write(ctx, out)
	if err == nil {
		err = out.close()
	}
	switch {
	case err == nil:
	case !out.begun:
		if p, ok := a.failed(ctx, doing, err).(*Problem); ok { // it is always one
			a.write(w, r, p)
		}
	default:
		a.Log.Debug("a stream ended early", "doing", doing, "error", err)
		panic(http.ErrAbortHandler) // which net/http takes as it is meant
	}
}

// lines writes an answer whose length is not known.
type lines struct {
	w       http.ResponseWriter
	control *http.ResponseController
	header  http.Header // of the answer, when it begins
	begun   bool
}

func (l *lines) begin() error {
	if !l.begun {
		l.begun = true
		maps.Copy(l.w.Header(), l.header)
		l.w.WriteHeader(http.StatusOK)
	}
	// By the system's clock, which is the connection's.
	return supported(l.control.SetWriteDeadline(time.Now().Add(lineTimeout)))
}

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	if err := l.begin(); err != nil {
		return 0, err
	}
	return l.w.Write(b)
}

func (l *lines) flush() error {
	if err := l.begin(); err != nil {
		return err
	}
	return supported(l.control.Flush())
}

// close ends an answer that is whole. The connection may be used again.
func (l *lines) close() error {
	return errors.Join(l.flush(), supported(l.control.SetWriteDeadline(time.Time{})))
}

// supported leaves out what a writer cannot do: those of tests have no connection.
func supported(err error) error {
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

var _ io.Writer = (*lines)(nil)
