package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

// This file has the routes that programs for an older control plane know: agents as crabs, secrets as pearls, records as
// tides, with its names of fields. They are aliases: each asks the services that the routes of today ask, so keys, rights
// and records are the same. An id of a crab is the id of an agent.
//
//	POST  /v1/crabs               POST /v1/agents
//	GET   /v1/crabs               GET /v1/agents
//	PATCH /v1/crabs/{id}/revoke   POST /v1/agents/{name}/revoke
//	POST  /v1/secrets             PUT /v1/secrets/{service}
//	GET   /v1/secrets?crabId=     GET /v1/secrets, of one agent
//	DELETE /v1/secrets/{id}       DELETE /v1/secrets/{service}
//	GET   /v1/tides               GET /v1/audit, of what went through the gateway
//
// Their errors have the member error, which is detail under its older name.

// oldKeyHeader is another name of [KeyHeader].
const oldKeyHeader = "X-Admin-Api-Key"

// isAlias says whether a path is one of the table.
func isAlias(path string) bool {
	for _, part := range []string{"/v1/crabs", "/v1/secrets", "/v1/tides"} {
		if path == part || strings.HasPrefix(path, part+"/") {
			return true
		}
	}
	return false
}

// forAlias gives an error to a client of an alias the member that it reads.
func forAlias(p *Problem, path string) *Problem {
	if !isAlias(path) {
		return p
	}
	out := *p
	out.Text = p.Detail
	return &out
}

func (a *API) aliasRoutes() {
	add(a, route{method: http.MethodPost, path: "/v1/crabs", id: "create-crab", summary: "Alias: make an agent",
		status: http.StatusCreated, body: reflect.TypeFor[CrabRequest]()}, a.createCrab)
	add(a, route{method: http.MethodGet, path: "/v1/crabs", id: "list-crabs", summary: "Alias: list agents"}, a.crabs)
	add(a, route{method: http.MethodPatch, path: "/v1/crabs/{id}/revoke", id: "revoke-crab", summary: "Alias: revoke an agent",
		status: http.StatusOK}, a.revokeCrab)
	add(a, route{method: http.MethodPost, path: "/v1/secrets", id: "create-pearl", summary: "Alias: store a secret of an agent",
		status: http.StatusCreated, body: reflect.TypeFor[PearlRequest]()}, a.createPearl)
	add(a, route{method: http.MethodGet, path: "/v1/tides", id: "list-tides", summary: "Alias: what went through the gateway"}, a.tides)
}

// CrabRequest is the body that makes an agent under its older name.
type CrabRequest struct {
	Name   string `json:"name"`
	UIPort *int   `json:"uiPort,omitempty" doc:"agents have no web pages here: null, or left out"`
}

// Crab is an agent under its older name.
type Crab struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Token     string    `json:"token,omitempty" doc:"the token of a new agent; shown only once"`
	Active    bool      `json:"active"`
	UIPort    *int      `json:"uiPort" doc:"always null"`
	CreatedAt time.Time `json:"createdAt"`
	UpdatedAt time.Time `json:"updatedAt"`
}

// Format implements fmt.Formatter, for every verb.
func (c Crab) Format(f fmt.State, _ rune) { op.WithoutKey(f, "agent "+c.ID) }

// Crabs is the answer to a listing, the newest first.
type Crabs struct {
	Crabs []Crab `json:"crabs" nullable:"false"`
}

// PearlRequest is the body that stores a secret under its older name.
type PearlRequest struct {
	CrabID    string       `json:"crabId"`
	Service   string       `json:"service"`
	Plaintext secret.Value `json:"plaintext"`
	Label     string       `json:"label,omitempty" doc:"ignored"`
}

// Tide is a record of the gateway under its older name.
type Tide struct {
	ID         string    `json:"id"`
	CrabID     *string   `json:"crabId"`
	Crab       *TideCrab `json:"crab"`
	Tool       string    `json:"tool" doc:"the service, or CONNECT"`
	Direction  string    `json:"direction" enum:"EGRESS"`
	TargetURL  string    `json:"targetUrl"`
	StatusCode *int      `json:"statusCode"`
	Error      *string   `json:"error"`
	CreatedAt  time.Time `json:"createdAt"`
}

// TideCrab is whose record it is.
type TideCrab struct {
	Name string `json:"name"`
}

// Tides is a page of records, the newest first.
type Tides struct {
	Tides      []Tide     `json:"tides" nullable:"false"`
	Pagination Pagination `json:"pagination"`
}

// Pagination says which page it is.
type Pagination struct {
	Page  int `json:"page"`
	Limit int `json:"limit"`
	Total int `json:"total" doc:"number among the newest 1000 records; older ones are in /v1/audit"`
	Pages int `json:"pages"`
}

type (
	crabInput struct {
		ID string `path:"id" maxLength:"64" doc:"the agent's id"`
	}

	tidesInput struct {
		CrabID string `query:"crabId" maxLength:"64" doc:"the id of an agent: its records only"`
		Page   int    `query:"page" minimum:"1" maximum:"1000" default:"1"`
		Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
	}
)

func crabOf(g identity.Agent) Crab {
	out := Crab{ID: g.ID, Name: g.Name, Active: g.RevokedAt.IsZero(), CreatedAt: g.CreatedAt, UpdatedAt: g.CreatedAt}
	if !out.Active {
		out.UpdatedAt = g.RevokedAt
	}
	return out
}

func (a *API) createCrab(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[Crab], error) {
	body, err := decode[CrabRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	if body.UIPort != nil {
		return nil, problem.New(problem.BadRequest, "leave uiPort out", "agents have no web pages here")
	}
	key, g, err := a.Identity.CreateAgent(ctx, by, by.TenantOr(""), body.Name, identity.NeverExpires)
	if err != nil {
		return nil, err
	}
	out := crabOf(g)
	out.Token = key.Reveal()
	return &answer[Crab]{out}, nil
}

func (a *API) crabs(ctx context.Context, by identity.Principal, _ *nothing) (*answer[Crabs], error) {
	all, err := a.Identity.Agents(ctx, by, by.Among(""))
	if err != nil {
		return nil, err
	}
	out := Crabs{Crabs: make([]Crab, len(all))}
	for n, g := range all {
		out.Crabs[n] = crabOf(g)
	}
	slices.SortStableFunc(out.Crabs, func(a, b Crab) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return &answer[Crabs]{out}, nil
}

// crabByID finds an agent by its id, among those that exist for the caller, who must have the right to the operation.
func (a *API) crabByID(ctx context.Context, by identity.Principal, op identity.Operation, id string) (identity.Agent, error) {
	if err := a.Identity.Authorize(ctx, by, op, by.TenantOr("")); err != nil {
		return identity.Agent{}, err
	}
	all, err := a.Identity.Agents(ctx, by, by.Among(""))
	if err != nil {
		return identity.Agent{}, err
	}
	for _, g := range all {
		if g.ID == id {
			return g, nil
		}
	}
	return identity.Agent{}, problem.New(problem.NotFound, "list them: clawjail agent ls", "No agent found with id: %s", texts.Clip(id, 64))
}

func (a *API) revokeCrab(ctx context.Context, by identity.Principal, in *crabInput) (*answer[Crab], error) {
	g, err := a.crabByID(ctx, by, identity.AgentRevoke, in.ID)
	if err != nil {
		return nil, err
	}
	if err := a.Identity.RevokeAgent(ctx, by, g.Tenant, g.Name); err != nil {
		return nil, err
	}
	out := crabOf(g)
	out.Active, out.UpdatedAt = false, a.Now().UTC()
	return &answer[Crab]{out}, nil
}

func (a *API) createPearl(ctx context.Context, by identity.Principal, in *jsonBody) (*answer[op.Pearl], error) {
	defer clear(in.RawBody)
	body, err := decode[PearlRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	defer body.Plaintext.Wipe()
	if body.CrabID == "" || body.Service == "" || body.Plaintext.Len() == 0 {
		return nil, problem.New(problem.BadRequest, "send the three of them", "crabId, service, and plaintext are required")
	}
	g, err := a.crabByID(ctx, by, identity.SecretPut, body.CrabID)
	if err != nil {
		return nil, err
	}
	name := vault.SecretName{Tenant: g.Tenant, Agent: g.ID, Service: body.Service}
	if err := a.Credentials.PutSecret(ctx, by, name, body.Plaintext); err != nil {
		return nil, err
	}
	all, err := a.Credentials.Secrets(ctx, by, g.Tenant)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.Agent == g.ID && s.Service == body.Service {
			return &answer[op.Pearl]{op.PearlOf(s)}, nil
		}
	}
	return nil, problem.New(problem.Conflict, "store it again", "the secret was removed while it was stored")
}

// maxTides is how many records are looked through for a page.
const maxTides = 1000

func (a *API) tides(ctx context.Context, by identity.Principal, in *tidesInput) (*answer[Tides], error) {
	q := op.AuditQuery{AuditFilter: op.AuditFilter{Action: "gateway."}, Limit: maxTides}
	if in.CrabID != "" {
		q.Actor = string(identity.KindAgent) + ":" + in.CrabID
	}
	filter, err := q.Filter(ctx, a.auditor(), by)
	if err != nil {
		return nil, err
	}
	rows, err := a.Audit.List(ctx, filter)
	if err != nil {
		return nil, err
	}
	names, err := op.AgentNames(ctx, a.Identity, by, by.Among(""))
	if err != nil {
		return nil, err
	}
	all := tidesOf(rows, names)
	out := Tides{Tides: []Tide{}, Pagination: Pagination{Page: in.Page, Limit: in.Limit, Total: len(all), Pages: (len(all) + in.Limit - 1) / in.Limit}}
	if from := (in.Page - 1) * in.Limit; from < len(all) {
		out.Tides = all[from:min(from+in.Limit, len(all))]
	}
	return &answer[Tides]{out}, nil
}

// tidesOf makes one record of an intent and its outcome. The rows are oldest first, the records newest first.
func tidesOf(rows []audit.Row, names map[string]string) []Tide {
	var out []Tide
	at := map[string]int{} // of intents, by id
	for _, row := range rows {
		if n, ok := at[row.Ref]; ok && row.Ref != "" {
			out[n].read(row)
			continue
		}
		t := Tide{ID: row.ID, Tool: strings.TrimPrefix(row.Action, "gateway."), Direction: "EGRESS", TargetURL: row.Target, CreatedAt: row.Time}
		if row.Action == "gateway.connect" {
			t.Tool = http.MethodConnect
		}
		if id, ok := strings.CutPrefix(row.Actor, string(identity.KindAgent)+":"); ok {
			t.CrabID = &id
			if name, ok := names[id]; ok {
				t.Crab = &TideCrab{Name: name}
			}
		}
		t.read(row)
		out = append(out, t)
		if row.Phase == audit.PhaseIntent {
			at[row.ID] = len(out) - 1
		}
	}
	slices.Reverse(out)
	return out
}

// read takes what a row says of how it went. A detail that is not as it should be says nothing.
func (t *Tide) read(row audit.Row) {
	var detail struct {
		Scheme  string `json:"scheme"`
		Path    string `json:"path"`
		Status  int    `json:"status"`
		Service string `json:"service"`
		Code    string `json:"code"`
		Reason  string `json:"reason"`
	}
	_ = json.Unmarshal(row.Detail, &detail) // what cannot be read is left out
	if detail.Status != 0 {
		t.StatusCode = &detail.Status
	}
	if detail.Service != "" {
		t.Tool = detail.Service
	}
	if detail.Scheme != "" && t.Tool != http.MethodConnect && !strings.Contains(t.TargetURL, "://") {
		t.TargetURL = detail.Scheme + "://" + t.TargetURL + detail.Path
	}
	for _, text := range []string{detail.Reason, detail.Code} {
		if text != "" {
			t.Error = &text
			return
		}
	}
	if row.Result != "" && row.Result != string(audit.OK) {
		result := row.Result
		t.Error = &result
	}
}
