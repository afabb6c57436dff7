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
	stdin := route{method: http.MethodPost, path: ofProcesses + "/{id}/stdin", id: "type-to-process", status: http.StatusOK,
		summary: "Write to the stdin of a program; an empty body is the end of it"}
	a.large[stdin.method+" "+stdin.path] = large{limit: maxTyped, may: identity.AgentType, raw: true}
	a.plain(stdin, []*huma.Param{agentNameParam(), processID(), tenantParam()},
		map[string]*huma.Schema{"application/json": a.schema(reflect.TypeFor[Written]())}, a.typeTo)
	a.api.OpenAPI().Paths[stdin.path].Post.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{bytesType: {Schema: binary()}}}
	a.eventRoutes()
	a.plain(route{method: http.MethodGet, path: ofAgent + "/attach", id: "attach-process",
		summary: "Run a program in a jail with its stdio over a WebSocket"}, []*huma.Param{agentNameParam(), tenantParam(), execParam()}, nil, a.attach)
}

func processID() *huma.Param {
	p := sessionID()
	p.Description = "the program's id"
	return p
}
