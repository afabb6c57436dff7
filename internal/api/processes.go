package api

import (
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
)

// ofProcesses is below what is about the programs of an agent.
const ofProcesses = ofAgent + "/processes"

// addProcesses adds the routes about programs that run in jails for agents, and about what agents and programs do.
func (a *API) addProcesses() {
	provide(a, op.StartProcess())
	provide(a, op.ListProcesses())
	provide(a, op.EndProcess())
	a.rawBody(route{method: http.MethodPost, path: ofProcesses + "/{id}/stdin", id: "type-to-process", status: http.StatusOK,
		summary: "Write to the stdin of a program; an empty body is the end of it"}, maxTyped, identity.AgentType,
		[]*huma.Param{agentNameParam(), processID(), tenantParam()}, "application/json", a.schema(reflect.TypeFor[Written]()), a.typeTo)
	a.eventRoutes()
	a.plain(route{method: http.MethodGet, path: ofAgent + "/attach", id: "attach-process",
		summary: "Run a program in a jail with its stdio over a WebSocket"}, []*huma.Param{agentNameParam(), tenantParam(), execParam()}, nil, a.attach)
}

// rawBody adds a route by POST whose body is bytes, at most limit of them, and whose answer is of a type.
func (a *API) rawBody(r route, limit int64, may identity.Operation, parameters []*huma.Param,
	answer string, schema *huma.Schema, handle func(http.ResponseWriter, *http.Request, identity.Principal) error) {
	a.large[r.method+" "+r.path] = large{limit: limit, may: may, raw: true}
	a.plain(r, parameters, map[string]*huma.Schema{answer: schema}, handle)
	a.api.OpenAPI().Paths[r.path].Post.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{bytesType: {Schema: binary()}}}
}

func processID() *huma.Param {
	p := sessionID()
	p.Description = "the program's id"
	return p
}
