package control

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"

	"github.com/clawjail/clawjail/internal/base/strict"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
)

// Fields is the hint of a body that cannot be read.
const Fields = "the fields are in docs/browser.md, and in /openapi.json of a control plane"

// Decode reads the operation of a request that the route's pattern has matched. The operation is the pointer that New
// returned; whether its values are allowed is for its Validate to say. The code of an error is bad_json or bad_request.
func (r Route) Decode(req *http.Request) (browser.Operation, error) {
	op := r.New()
	into := reflect.ValueOf(op).Elem()
	query, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil {
		return nil, problem.Wrap(err, problem.BadRequest, "escape it as in a form", "the query of the address cannot be read")
	}
	if err := r.decodeQuery(query, into); err != nil {
		return nil, err
	}
	if r.HasBody() {
		if err := r.decodeBody(req, op); err != nil {
			return nil, err
		}
	}
	if wildcard, f, ok := r.InPath(); ok {
		into.FieldByIndex(f.index).SetString(req.PathValue(wildcard))
	}
	return op, nil
}

// maxParameters is more than any route has.
const maxParameters = 32

func (r Route) decodeQuery(query url.Values, into reflect.Value) error {
	flaws := problem.ValidationError{Code: problem.BadRequest, Hint: "the parameters are in docs/browser.md, and in /openapi.json of a control plane"}
	known := r.InQuery()
	names := make([]string, 0, len(query))
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names) // the same request has the same answer
	if len(names) > maxParameters {
		return problem.New(problem.BadRequest, flaws.Hint, "the address has %d parameters", len(names))
	}
	for _, name := range names {
		n := slices.IndexFunc(known, func(f Field) bool { return f.Name == name })
		switch {
		case n < 0:
			flaws.Add("query."+clip(name), "it is not a parameter of this request")
		case len(query[name]) != 1:
			flaws.Add("query."+name, "it is there more than once")
		default:
			if what := setText(into.FieldByIndex(known[n].index), query.Get(name)); what != "" {
				flaws.Add("query."+name, "it is not %s", what)
			}
		}
	}
	return flaws.Err()
}

func clip(text string) string { return text[:min(len(text), 80)] }

// setText gives a field its value. When the text is none, it returns what it should be.
func setText(field reflect.Value, text string) (want string) {
	switch field.Kind() {
	case reflect.String:
		field.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return "true or false"
		}
		field.SetBool(text == "true")
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil || strconv.Itoa(n) != text {
			return "a whole number"
		}
		field.SetInt(int64(n))
	default:
		return "something that a query can have"
	}
	return ""
}

func (r Route) decodeBody(req *http.Request, op browser.Operation) error {
	limit := int64(MaxBody)
	if r.Raw {
		limit = MaxFile
	}
	if !r.Raw && req.ContentLength != 0 && !strict.Content(req.Header.Get("Content-Type")) {
		return problem.New(problem.BadRequest, "send Content-Type: application/json", "the body is not JSON")
	}
	body, err := read(req.Body, req.ContentLength, limit)
	if err != nil {
		return err
	}
	if put, ok := op.(*browser.PutFile); ok && r.Raw {
		put.Data = body
		return nil
	}
	defer clear(body) // it may have what somebody types as a password
	return strict.Object(body, op, Fields)
}

// read reads up to limit bytes. says is the declared length of the body; negative when there is none.
func read(from io.Reader, says, limit int64) ([]byte, error) {
	if from == nil {
		return nil, nil
	}
	tooLarge := problem.New(problem.BadRequest, "send less", "the body has more than %d bytes", limit)
	if says > limit {
		return nil, tooLarge
	}
	body, err := io.ReadAll(io.LimitReader(from, limit+1))
	var larger *http.MaxBytesError
	switch {
	case int64(len(body)) > limit || errors.As(err, &larger):
		return nil, tooLarge
	case err != nil:
		return nil, problem.Wrap(err, problem.BadRequest, "send it again", "the body did not arrive")
	}
	return body, nil
}
