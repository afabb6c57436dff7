package execute

import (
	"errors"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/net/http/httpguts"

	"github.com/clawjail/clawjail/internal/base/strict"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/gateway/inject"
	"github.com/clawjail/clawjail/internal/problem"
)

// Limits of the header that an agent gives to its request.
const (
	maxHeaders    = 100
	largestHeader = 64 << 10
)

// request is what an agent sends.
type request struct {
	Service string                    `json:"service"` // whose credential is used; none when it is empty
	URL     string                    `json:"url"`
	Method  string                    `json:"method"`  // GET when it is empty
	Headers map[string]jsontext.Value `json:"headers"` // a text or a list of texts each
	// Body is sent as it is when it is a text, else as JSON.
	Body   jsontext.Value `json:"body"`
	Inject *place         `json:"inject"`
	// Stream passes the answer's body on as it comes.
	Stream bool `json:"stream"`
	// Follow is about redirects; true when it is not there.
	Follow *bool `json:"follow"`
	// Timeout is text such as 10s, or a number of seconds.
	Timeout jsontext.Value `json:"timeout"`
	// AuthType and AuthParamName are another spelling of Inject.
	AuthType      string `json:"authType"`
	AuthParamName string `json:"authParamName"`
}

// place is where the credential goes.
type place struct {
	Type string `json:"type"`
	Name string `json:"name"`
}

// wanted is a request that makes sense.
type wanted struct {
	request
	method  string
	url     *url.URL
	header  http.Header
	body    []byte
	how     egress.Injection // the zero Injection when nothing is said about it
	timeout time.Duration
}

// read reads a request, and says what is wrong with it.
func read(r *http.Request, held *share, late func() bool) (*wanted, *problem.Error) {
	if !strict.Content(r.Header.Get("Content-Type")) {
		return nil, problem.New(problem.BadJSON, "Send the header Content-Type: application/json.", "the request is not JSON")
	}
	if r.ContentLength > largestRequest {
		return nil, requestTooLarge()
	}
	raw, err := held.read(r.Body, largestRequest, late)
	switch {
	case len(raw) > largestRequest:
		return nil, requestTooLarge()
	case errors.Is(err, errNoRoom), err == nil && !held.takeNames(raw):
		return nil, noRoom()
	case errors.Is(err, errTooLate):
		return nil, problem.New(problem.BadRequest, "Send it faster.", "the request did not arrive within %s", bodyTimeout)
	case err != nil:
		return nil, problem.Wrap(err, problem.BadRequest, "Send the request again, in one piece.", "the request did not arrive whole")
	}
	return parse(raw)
}

func requestTooLarge() *problem.Error {
	return problem.New(problem.TooLarge, "Use the service's route /svc/NAME/ for large bodies.", "the request is larger than %d bytes", largestRequest)
}

// parse reads the JSON of a request.
func parse(raw []byte) (*wanted, *problem.Error) {
	out := &wanted{}
	const hint = `Send an object such as {"service": "github", "url": "https://api.github.com/user", "method": "GET"}.`
	if err := strict.Object(raw, &out.request, hint); err != nil {
		p, ok := problem.As(err)
		if !ok {
			p = problem.New(problem.BadJSON, hint, "the request cannot be read")
		}
		return nil, p
	}
	if out.URL == "" {
		return nil, problem.New(problem.BadRequest, `Send an object such as {"service": "github", "url": "https://api.github.com/user"}.`,
			"url is required")
	}
	if out.Service != "" && !access.ServiceName(out.Service) {
		return nil, problem.New(problem.BadName, "Use 1 to 64 of a-z, 0-9, dot, underscore and hyphen.", "the name of the service is not valid")
	}
	var refusal *problem.Error
	if out.Method == "" {
		out.Method = http.MethodGet
	}
	if out.method, refusal = access.Method(out.Method); refusal != nil {
		return nil, refusal
	}
	if out.url, refusal = access.Target(out.URL); refusal != nil {
		return nil, refusal
	}
	for _, step := range []func() *problem.Error{out.readHeaders, out.readBody, out.readPlace, out.readTimeout} {
		if refusal := step(); refusal != nil {
			return nil, refusal
		}
	}
	return out, nil
}

// readHeaders takes the headers that an agent may set. Those about the connection or the way are left out, as by a proxy, and so is
// every Authorization; one that would be read as two is refused.
func (w *wanted) readHeaders() *problem.Error {
	bad := func(format string, args ...any) *problem.Error {
		return problem.New(problem.BadRequest, `Send headers as {"Name": "value"} or {"Name": ["one", "two"]}.`, format, args...)
	}
	if len(w.Headers) > maxHeaders {
		return bad("there are more than %d headers", maxHeaders)
	}
	w.header = make(http.Header)
	size, written := 0, 0
	for name, raw := range w.Headers {
		// A character has six at most where it is escaped. Values of which there are many take more than they say.
		if written += len(name) + len(raw); written > 6*largestHeader {
			return bad("the headers are larger than %d bytes", largestHeader)
		}
		if len(name) > 256 || !httpguts.ValidHeaderFieldName(name) {
			return bad("a header has a name that is not valid")
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if _, twice := w.header[name]; twice {
			return bad("the header %s is there twice", name)
		}
		var values []string
		if raw.Kind() == '[' {
			if err := json.Unmarshal(raw, &values); err != nil {
				return bad("the header %s is neither a text nor a list of texts", name)
			}
		} else {
			var value *string
			if err := json.Unmarshal(raw, &value); err != nil || value == nil {
				return bad("the header %s is neither a text nor a list of texts", name)
			}
			values = []string{*value}
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return bad("the header %s has a line end or another control character in it", name)
			}
			if size += len(name) + len(value); size > largestHeader {
				return bad("the headers are larger than %d bytes", largestHeader)
			}
		}
		w.header[name] = values
	}
	if len(w.header) > maxHeaders {
		return bad("there are more than %d headers", maxHeaders)
	}
	inject.Hop(w.header)
	if w.header.Get("User-Agent") == "" {
		w.header.Set("User-Agent", "clawjail")
	}
	return nil
}

func (w *wanted) readBody() *problem.Error {
	kind := ""
	switch w.Body.Kind() {
	case 0, 'n':
		return nil
	case '"':
		var text string
		if err := json.Unmarshal(w.Body, &text); err != nil {
			return problem.New(problem.BadJSON, "Send the body as a text, or as JSON.", "the body cannot be read")
		}
		w.body, kind = []byte(text), "text/plain; charset=utf-8"
	default:
		w.body, kind = w.Body, "application/json"
	}
	if w.header.Get("Content-Type") == "" {
		w.header.Set("Content-Type", kind)
	}
	return nil
}

func (w *wanted) readPlace() *problem.Error {
	if w.AuthType != "" || w.AuthParamName != "" {
		if w.Inject != nil {
			return problem.New(problem.BadRequest, "Leave authType and authParamName out.", "both inject and authType say where the credential goes")
		}
		w.Inject = &place{Type: w.AuthType, Name: w.AuthParamName}
		if w.AuthType == "queryparam" {
			w.Inject.Type = string(egress.InjectQuery)
		}
	}
	if w.Inject == nil {
		return nil
	}
	w.how = egress.Injection{Type: egress.InjectionType(w.Inject.Type), Name: w.Inject.Name}
	if w.how.Type == "" {
		w.how.Type = egress.InjectBearer
	}
	if err := inject.Check(w.how); err != nil {
		p, _ := problem.As(err)
		return p
	}
	return nil
}

// injection is where the credential goes. The agent cannot change the place that the operator chose for a service: a
// credential in another place, such as the text of a message, could be read by somebody. A request that names no service of
// the agent gets no credential: the name of a secret is not enough.
func (w *wanted) injection(s egress.Service, known bool) (egress.Injection, *problem.Error) {
	none := egress.Injection{Type: egress.InjectNone}
	switch {
	case known:
	case w.how.Type == egress.InjectNone, w.how.Type == "" && w.Service == "":
		return none, nil
	case w.Service == "":
		return none, problem.New(problem.BadRequest, `Name the service whose credential is to be used: "service".`,
			"a credential is asked for, and no service is named")
	default:
		return none, problem.New(problem.ServiceUnknown,
			`Do not retry: the operator has to add it first: clawjail service add `+w.Service+`. Without a credential: leave service and inject out.`,
			"this agent has no service %s", w.Service)
	}
	if s.Inject.Type == egress.InjectPath {
		return none, problem.New(problem.BadRequest, "Do not retry: use the service's route /svc/"+w.Service+"/, which has the path in front of yours.",
			"the credential of the service %s is a part of the path, which the request would have to say", w.Service)
	}
	if err := inject.Check(s.Inject); err != nil {
		return none, problem.Wrap(err, problem.BadRequest, "Do not retry: the operator has to correct the service.",
			"the service %s has an invalid injection", w.Service)
	}
	if w.how.Type != "" && (w.how.Type != s.Inject.Type || w.how.Name != "" && !strings.EqualFold(w.how.Name, s.Inject.Name)) {
		return none, problem.New(problem.BadRequest, "Leave inject, authType and authParamName out: the service says where the credential goes.",
			"the credential of the service %s goes into another place", w.Service)
	}
	return s.Inject, nil
}

func (w *wanted) readTimeout() *problem.Error {
	w.timeout = longestTime
	var err error
	switch w.Timeout.Kind() {
	case 0, 'n':
		return nil
	case '"':
		var text string
		if err = json.Unmarshal(w.Timeout, &text); err == nil {
			w.timeout, err = time.ParseDuration(text)
		}
	default:
		var seconds float64
		if err = json.Unmarshal(w.Timeout, &seconds); err == nil && seconds <= longestTime.Seconds() {
			w.timeout = time.Duration(seconds * float64(time.Second))
		} else {
			w.timeout = 0
		}
	}
	if err != nil || w.timeout <= 0 || w.timeout > longestTime {
		return problem.New(problem.BadLimit, `Send a time up to 30 seconds, such as "10s".`, "the timeout is not valid")
	}
	return nil
}
