package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/testenv"
)

// groups are the chapters of the page, by the first part of a path below /v1.
var groups = map[string]string{
	"health": "The installation", "ready": "The installation", "status": "The installation", "nodes": "The installation", "info": "The installation", "whoami": "The installation",
	"sessions": "Sessions", "tasks": "Sessions", "recordings": "Sessions", "refreshes": "Logging in for agents", "accounts": "Logging in for agents",
	"cookies": "Accounts", "account-permissions": "Accounts", "grants": "Grants", "grant-keys": "Grants", "secrets": "Secrets and the vault", "vault": "Secrets and the vault",
	"agents": "Agents", "mcp-servers": "MCP servers", "rules": "The way out", "services": "The way out", "providers": "The way out",
	"settings": "The way out", "usage": "The way out", "access-requests": "The way out", "audit": "Audit",
	"tenants": "Tenants and people", "operators": "Tenants and people", "console": "Tenants and people",
	"crabs": "Older names", "tides": "Older names",
}

// operationOfPage is one request of the document.
type operationOfPage struct {
	method, path string
	*huma.Operation
}

func (o operationOfPage) group() string {
	first, _, _ := strings.Cut(strings.TrimPrefix(o.path, "/v1/"), "/")
	if o.OperationID == "create-pearl" {
		return "Older names"
	}
	return groups[first]
}

func operationsOf(doc *huma.OpenAPI) (out []operationOfPage) {
	for path, item := range doc.Paths {
		for method, op := range map[string]*huma.Operation{
			"GET": item.Get, "POST": item.Post, "PUT": item.Put, "PATCH": item.Patch, "DELETE": item.Delete} {
			if op != nil {
				out = append(out, operationOfPage{method, path, op})
			}
		}
	}
	slices.SortFunc(out, func(a, b operationOfPage) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method))
	})
	return out
}

// mayDo says in a few words who may, as the table of authorisation has it.
func mayDo(e expectation) string {
	if e.free {
		return "everybody, without a key"
	}
	i := slices.IndexFunc(identity.Table(), func(r identity.Rule) bool { return r.Operation == e.op })
	if i < 0 {
		return "every key"
	}
	rule := identity.Table()[i]
	who := string(rule.Min)
	if rule.Reach == identity.ReachInstallation {
		who += " of all tenants"
	}
	switch rule.Agents {
	case identity.AgentsOwn:
		who += "; agents, their own"
	case identity.AgentsAll:
		who += "; agents"
	case identity.AgentsNever:
	}
	return who
}

// nameOf is what the page calls a type: a link where the type has fields of its own.
func nameOf(s *huma.Schema) string {
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		name := s.Ref[strings.LastIndex(s.Ref, "/")+1:]
		return "[" + name + "](#" + strings.ToLower(name) + ")"
	case s.Items != nil:
		return "list of " + nameOf(s.Items)
	case s.Format == "binary":
		return "bytes"
	case s.Type == "object":
		if of, ok := s.AdditionalProperties.(*huma.Schema); ok {
			return "map of " + nameOf(of)
		}
		return "object"
	case len(s.Enum) > 0:
		var values []string
		for _, v := range s.Enum {
			values = append(values, fmt.Sprintf("`%v`", v))
		}
		return strings.Join(values, ", ")
	case s.Type == "":
		return "any JSON"
	case s.Format == "date-time":
		return "time (RFC 3339)"
	}
	return s.Type
}

func contentOf(content map[string]*huma.MediaType) string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(content)) {
		name := nameOf(content[kind].Schema)
		if kind != "application/json" && name != "bytes" {
			name += " as `" + kind + "`"
		} else if name == "bytes" {
			name = "`" + kind + "`"
		}
		out = append(out, name)
	}
	return strings.Join(out, ", ")
}

func cell(text string) string {
	return strings.NewReplacer("\n", " ", "|", "\\|").Replace(text)
}

// statuses are those of the refusals that a request can have whatever it is about: each follows from what it needs.
func (o operationOfPage) statuses(e expectation) string {
	if e.free {
		return "none"
	}
	out := []string{"401"}
	if len(o.Parameters) > 0 || o.RequestBody != nil {
		out = slices.Insert(out, 0, "400")
	}
	if e.op != "" {
		out = append(out, "403")
	}
	if strings.Contains(o.path, "{") {
		out = append(out, "404")
	}
	return strings.Join(out, ", ")
}

func pageOfAPI(doc *huma.OpenAPI, known map[string]expectation) string {
	var out bytes.Buffer
	out.WriteString(`# Which requests does the API answer?

The control API is at ` + "`http://127.0.0.1:18780`" + ` unless ` + "`listen`" + ` of the configuration says otherwise. Every request needs a key, in
` + "`Authorization: Bearer KEY`" + ` or in ` + "`X-Admin-Key`" + ` ([keys and roles](identity.md#keys-and-roles)).

This page is written from the document that the API gives of itself at ` + "`/openapi.json`" + `, and from the table of who may do what
(` + "`go test ./internal/api -run TestPageOfTheAPI -update`" + `).

**Who may** names the least role: an admin may what an operator may, and an operator what a viewer may, each within its tenant. *Of all tenants* is an
operator without a tenant, or the installation's admin. *Agents, their own*: an agent may do it with what it has opened or made. That each
request is answered so is ` + "`TestEveryRouteAnswersAsTheTableSays`" + `.

**Refusals** lists what follows from the shape of a request. Besides, any may be refused with what its subject has: ` + "`conflict`, `rate_limited`,\n`audit_unavailable`" + `, the
codes of grants, of browsers, of jails. [codes.md](codes.md) has every code with its status. All are [Problem](#problem), ` + "`application/problem+json`" + ` (RFC 9457):

| status | code | |
|---|---|---|
| 400 | ` + "`bad_request`" + ` | a field or parameter that is not known, is there twice, or has no good value; each is named with its place |
| 401 | ` + "`unauthorized`" + ` | no key, or an invalid or expired one |
| 403 | ` + "`forbidden`" + ` | the key is good, and may not |
| 404 | ` + "`not_found`" + ` | it is not there, or another tenant's |

A body has at most 1 MiB, one with cookies 33 MiB, a file 32 MiB. Not in the document: ` + "`/mcp`" + ` ([mcp.md](mcp.md)), ` + "`/metrics`" + `
([metrics.md](metrics.md)), ` + "`/console/`" + ` ([console.md](console.md)), and what the gateway answers to agents: ` + "`/svc/`, `/v1/execute`" + `
([services.md](services.md)) and the models ([models.md](models.md)).

## Contents

`)
	byGroup := map[string][]operationOfPage{}
	for _, op := range operationsOf(doc) {
		byGroup[op.group()] = append(byGroup[op.group()], op)
	}
	order := []string{"The installation", "Sessions", "Logging in for agents", "Accounts", "Grants", "Secrets and the vault", "Agents", "MCP servers",
		"The way out", "Audit", "Tenants and people", "Older names"}
	for _, name := range append(order, "Types") {
		fmt.Fprintf(&out, "- [%s](#%s)\n", name, strings.ReplaceAll(strings.ToLower(name), " ", "-"))
	}
	for _, name := range order {
		fmt.Fprintf(&out, "\n## %s\n\n| request | what it does | who may | body | answer | refusals |\n|---|---|---|---|---|---|\n", name)
		for _, op := range byGroup[name] {
			e := known[op.method+" "+op.path]
			request := op.path
			for i, p := range slices.DeleteFunc(slices.Clone(op.Parameters), func(p *huma.Param) bool { return p.In != "query" }) {
				request += []string{"?", "&"}[min(i, 1)] + p.Name
			}
			body, answer := "", ""
			if op.RequestBody != nil {
				body = contentOf(op.RequestBody.Content)
			}
			for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
				if status != "default" {
					answer = strings.TrimSpace(answer + " " + status + " " + contentOf(op.Responses[status].Content))
				}
			}
			fmt.Fprintf(&out, "| `%s %s` | %s | %s | %s | %s | %s |\n", op.method, request, cell(op.Summary), mayDo(e), body, cell(answer), op.statuses(e))
		}
	}
	out.WriteString("\n## Types\n\nBodies and answers, by name. A field in **bold** is required.\n")
	schemas := doc.Components.Schemas.Map()
	for _, name := range slices.SortedFunc(maps.Keys(schemas), func(a, b string) int {
		return cmp.Compare(strings.ToLower(a), strings.ToLower(b))
	}) {
		s := schemas[name]
		fmt.Fprintf(&out, "\n### %s\n\n", name)
		if s.Description != "" {
			fmt.Fprintf(&out, "%s\n\n", s.Description)
		}
		if len(s.Properties) == 0 {
			fmt.Fprintf(&out, "A JSON value: %s.\n", nameOf(s))
			continue
		}
		out.WriteString("| field | type | |\n|---|---|---|\n")
		for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
			shown := "`" + field + "`"
			if slices.Contains(s.Required, field) {
				shown = "**" + shown + "**"
			}
			fmt.Fprintf(&out, "| %s | %s | %s |\n", shown, cell(nameOf(s.Properties[field])), cell(s.Properties[field].Description))
		}
	}
	return out.String()
}

func TestPageOfTheAPIIsItsDocument(t *testing.T) {
	doc, known := newFixture(t).api.OpenAPI(), whatEveryRouteDoes()
	for _, op := range operationsOf(doc) {
		if op.group() == "" {
			t.Errorf("%s %s is in no chapter of the page", op.method, op.path)
		}
		if strings.TrimSpace(op.Summary) == "" {
			t.Errorf("%s %s has no summary", op.method, op.path)
		}
	}
	testenv.Golden(t, filepath.Join(testenv.Repository(t), "docs", "http-api.md"), pageOfAPI(doc, known))
}

// Programs are made from the document: a change in it is one for them.
func TestDocumentOfTheAPIIsAsAgreedOn(t *testing.T) {
	text, err := json.MarshalIndent(newFixture(t).api.OpenAPI(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	testenv.Golden(t, filepath.Join("testdata", "openapi.json"), string(text)+"\n")
}
