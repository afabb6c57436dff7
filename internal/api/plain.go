package api

import (
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxID bounds the id of a session in an address.
const maxID = 64

// plain registers a route whose handler reads the request and writes the answer itself. A handler that
// returns an error has written nothing. parameters are those beside the wildcards; answers are the kinds of content of an answer.
func (a *API) plain(r route, parameters []*huma.Param, answers map[string]*huma.Schema,
	handle func(w http.ResponseWriter, req *http.Request, by identity.Principal) error) {
	op := a.operation(r)
	op.Parameters = parameters
	if len(answers) > 0 {
		ok := &huma.Response{Description: "OK", Content: map[string]*huma.MediaType{}}
		for kind, schema := range answers {
			ok.Content[kind] = &huma.MediaType{Schema: schema}
		}
		op.Responses["200"] = ok
	}
	if r.body != nil {
		op.RequestBody.Content["application/json"] = &huma.MediaType{Schema: a.schema(r.body)}
	}
	a.api.OpenAPI().AddOperation(&op)
	if !strings.HasPrefix(r.path, devtoolsPath) { // whose clients are not ours
		handle = knowing(parameters, handle)
	}
	a.mux.HandleFunc(r.method+" "+r.path, a.plainly(r, handle))
}

// knowing refuses parameters that a route does not have, as huma does: they were meant to change what is done.
func knowing(parameters []*huma.Param, handle func(http.ResponseWriter, *http.Request, identity.Principal) error) func(http.ResponseWriter, *http.Request, identity.Principal) error {
	return func(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
		flaws := problem.ValidationError{Code: problem.BadRequest, Hint: "its parameters are in /openapi.json"}
		for _, name := range slices.Sorted(maps.Keys(req.URL.Query())) {
			if !slices.ContainsFunc(parameters, func(p *huma.Param) bool { return p.In == "query" && p.Name == name }) {
				flaws.Add("query."+texts.Clip(name, 80), "it is not a parameter of this request")
			}
		}
		if err := flaws.Err(); err != nil {
			return err
		}
		return handle(w, req, by)
	}
}

// plainly answers for a handler that writes its answer itself.
func (a *API) plainly(r route, handle func(http.ResponseWriter, *http.Request, identity.Principal) error) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		err := error(nil)
		if len(req.PathValue("id")) > maxID {
			err = problem.New(problem.BadRequest, "list them: clawjail session ls", "no session has an id of more than %d bytes", maxID)
		} else {
			err = handle(w, req, caller(req.Context()))
		}
		if err == nil {
			return
		}
		if p, ok := a.failed(req.Context(), r.summary, err).(*Problem); ok { // it is always one
			a.write(w, req, p)
		}
	}
}

// schema describes a type, by reference where it has a name.
func (a *API) schema(t reflect.Type) *huma.Schema {
	return a.api.OpenAPI().Components.Schemas.Schema(t, true, t.Name())
}

// binary describes bytes.
func binary() *huma.Schema { return &huma.Schema{Type: huma.TypeString, Format: "binary"} }

// sessionID describes the wildcard that every route of a session has.
func sessionID() *huma.Param {
	limit := maxID
	return &huma.Param{Name: "id", In: "path", Required: true, Description: "the session's id", Schema: &huma.Schema{Type: huma.TypeString, MaxLength: &limit}}
}
