package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
)

// MaxOf bounds what is read of an answer: the largest picture and some, or the largest file.
func MaxOf(op browser.Operation) int64 {
	if _, file := op.Result().(*browser.FileContent); file {
		return browser.MaxFile
	}
	return 80 << 20
}

// Request makes the request of an operation, or of a pointer to one. base is the address below which the routes are. The
// caller adds its key. The code of an error is not_found when a name in the operation cannot be one.
func Request(ctx context.Context, base *url.URL, op browser.Operation) (*http.Request, error) {
	value := reflect.Indirect(reflect.ValueOf(op))
	known := false
	for _, r := range Routes() {
		if r.kind() != value.Type() {
			continue
		}
		known = true
		if path, ok := r.address(value); ok {
			return r.request(ctx, base, path, op)
		}
	}
	if !known {
		return nil, fmt.Errorf("%T has no request", op)
	}
	return nil, problem.New(problem.NotFound, "list what there is, and check the name", "nothing that you may see has that name")
}

// address is the path with its wildcard filled. ok is false when there is no value for it, or one that would make it the
// address of something else.
func (r Route) address(value reflect.Value) (path string, ok bool) {
	wildcard, f, ok := r.InPath()
	if !ok {
		return r.Path, true
	}
	name := value.FieldByIndex(f.index).String()
	if name == "" || name == "." || name == ".." || name == "/" {
		return "", false
	}
	return strings.Replace(r.Path, "{"+wildcard+"}", url.PathEscape(name), 1), true
}

func (r Route) request(ctx context.Context, base *url.URL, path string, op browser.Operation) (*http.Request, error) {
	target := base.JoinPath(path)
	value := reflect.Indirect(reflect.ValueOf(op))
	query := url.Values{}
	for _, f := range r.InQuery() {
		if text := textOf(value.FieldByIndex(f.index)); text != "" {
			query.Set(f.Name, text)
		}
	}
	target.RawQuery = query.Encode()
	var body io.Reader
	kind := ""
	if r.Raw {
		kind = unknownType
		if put, ok := reflect.Indirect(reflect.ValueOf(op)).Interface().(browser.PutFile); ok {
			body = bytes.NewReader(put.Data)
		}
	} else if r.HasBody() {
		text, err := json.Marshal(op)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		kind, body = jsonType, bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, target.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	req.Header.Set("Accept", jsonType)
	return req, nil
}

// textOf is a value in a query; empty for what a request need not say.
func textOf(v reflect.Value) string {
	switch {
	case v.IsZero():
		return ""
	case v.Kind() == reflect.String:
		return v.String()
	case v.Kind() == reflect.Bool:
		return "true"
	}
	return strconv.FormatInt(v.Int(), 10)
}

// Read reads the answer to an operation: what its Run has returned on the other side, except for a picture's data, or the
// problem that the other side had. It reads the body to its end, and closes it.
func Read(response *http.Response, op browser.Operation) (any, error) {
	defer response.Body.Close() // read to its end, or given up
	limit := MaxOf(op)
	data, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("the answer has more than %d bytes", limit)
	}
	if response.StatusCode/100 != 2 {
		if p, ok := ReadProblem(data); ok {
			return nil, p
		}
		return nil, fmt.Errorf("the answer is %s, and no problem that is known", response.Status)
	}
	out := op.Result()
	if content, ok := out.(*browser.FileContent); ok {
		*content = fileOf(response, data)
	} else if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return reflect.ValueOf(out).Elem().Interface(), nil
}

func fileOf(response *http.Response, data []byte) browser.FileContent {
	out := browser.FileContent{ContentType: response.Header.Get("Content-Type"), Data: data}
	if _, parameters, err := mime.ParseMediaType(response.Header.Get("Content-Disposition")); err == nil {
		out.Name = parameters["filename"]
	}
	return out
}

// ReadProblem reads an error as servers of the contract write it: the members of RFC 9457 with code, hint, details and
// errors. ok is false when it is none.
func ReadProblem(data []byte) (p *problem.Error, ok bool) {
	var in struct {
		Code    string         `json:"code"`
		Detail  string         `json:"detail"`
		Error   string         `json:"error"` // instead of detail, where the contract's older clients are served
		Hint    string         `json:"hint"`
		Details map[string]any `json:"details"`
		Errors  []problem.Flaw `json:"errors"`
	}
	if err := json.Unmarshal(data, &in); err != nil || in.Code == "" {
		return nil, false
	}
	if in.Detail == "" {
		in.Detail = in.Error
	}
	out := problem.New(in.Code, in.Hint, "%s", in.Detail)
	out.Details = in.Details
	if len(in.Errors) > 0 {
		out = out.With("errors", in.Errors) // as a problem.ValidationError has them
	}
	if in.Code == problem.BadUsage {
		out.Code = problem.BadRequest // usage is what was typed here
	}
	return out, true
}
