package api

import (
	"net/http"
	"net/url"
	"reflect"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// ofSession is below what the control contract is served.
const ofSession = "/v1/sessions/{id}"

// driveRoutes are those of the control contract, for every session.
func (a *API) driveRoutes() {
	for _, r := range control.Routes() {
		described := route{method: r.Method, path: ofSession + r.Path, id: r.ID, summary: r.Summary, status: http.StatusOK}
		if r.HasBody() && !r.Raw {
			described.body = reflect.TypeOf(r.New()).Elem()
		}
		parameters := []*huma.Param{sessionID()}
		if wildcard, f, ok := r.InPath(); ok {
			parameters = append(parameters, &huma.Param{Name: wildcard, In: "path", Required: true, Schema: a.schema(f.Type)})
		}
		for _, f := range r.InQuery() {
			parameters = append(parameters, &huma.Param{Name: f.Name, In: "query", Schema: a.schema(f.Type)})
		}
		if r.Raw {
			a.large[described.method+" "+described.path] = large{limit: control.MaxFile, may: identity.SessionUse, raw: true}
		}
		a.plain(described, parameters, a.resultOf(r), a.drive(r))
		if r.Raw {
			a.describeBytes(described)
		}
	}
}

// resultOf describes what a route answers.
func (a *API) resultOf(r control.Route) map[string]*huma.Schema {
	switch result := reflect.TypeOf(r.New().Result()).Elem(); {
	case result == reflect.TypeFor[browser.FileContent]():
		return map[string]*huma.Schema{"application/octet-stream": binary()}
	case result == reflect.TypeFor[browser.Picture]() && r.Method == http.MethodGet:
		return map[string]*huma.Schema{"image/png": binary(), "image/jpeg": binary()}
	case result == reflect.TypeFor[browser.Picture]():
		return map[string]*huma.Schema{"application/json": a.schema(reflect.TypeFor[control.Picture]())}
	default:
		return map[string]*huma.Schema{"application/json": a.schema(result)}
	}
}

// describeBytes says that a route's body is bytes.
func (a *API) describeBytes(r route) {
	op := a.api.OpenAPI().Paths[r.path].Put
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/octet-stream": {Schema: binary()}}}
}

// drive makes the operation of a request, has it done, and writes its result.
func (a *API) drive(r control.Route) func(http.ResponseWriter, *http.Request, identity.Principal) error {
	_, isFile := r.New().(*browser.GetFile)
	var files underway
	return func(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
		id := req.PathValue("id")
		if isFile {
			leave, err := files.enter(by.Actor() + " " + id)
			if err != nil {
				return err
			}
			defer leave()
		}
		if r.Raw {
			// By the system's clock, which is the connection's.
			if err := supported(http.NewResponseController(w).SetReadDeadline(time.Now().Add(jarTimeout))); err != nil {
				return err
			}
		}
		op, err := r.Decode(req)
		if err != nil {
			return err
		}
		result, err := a.Sessions.Drive(req.Context(), by, id, op)
		if err != nil {
			return err
		}
		if isFile {
			out := http.NewResponseController(w)
			limit := jarTimeout
			if file, ok := result.(browser.FileContent); ok {
				limit += time.Duration(len(file.Data)>>20) * time.Second
			}
			if err := supported(out.SetWriteDeadline(time.Now().Add(limit))); err != nil {
				return err
			}
			defer func() { _ = supported(out.SetWriteDeadline(time.Time{})) }() // a connection that is gone has none
		}
		return control.Write(w, req, result, func(media string) string {
			return "/v1/sessions/" + url.PathEscape(id) + "/media/" + url.PathEscape(media)
		})
	}
}

// maxFilesUnderway is how many files of one session a caller may fetch at the same time.
const maxFilesUnderway = 2

// underway counts files that are being fetched. Each is in memory as a whole, until its client has read it.
type underway struct {
	mu sync.Mutex
	of map[string]int
}

// enter counts one more until leave. The code is rate_limited when there are too many.
func (u *underway) enter(who string) (leave func(), err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of[who] >= maxFilesUnderway {
		return nil, problem.New(problem.RateLimited, "wait until one has arrived", "%d files of this session are being fetched", maxFilesUnderway)
	}
	if u.of == nil {
		u.of = map[string]int{}
	}
	u.of[who]++
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.of[who]--; u.of[who] == 0 {
			delete(u.of, who)
		}
	}, nil
}
