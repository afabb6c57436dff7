package api

import (
	"encoding/json"
	"maps"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/config/yamldoc"
)

// DeclareRequest is the body that declares one agent, beside what is declared.
type DeclareRequest struct {
	Tenant  string `json:"tenant,omitempty" doc:"whose agent it is; the caller's own, or default, when it is left out"`
	Dir     string `json:"dir,omitempty" doc:"the absolute folder that a relative workspace starts at"`
	Replace bool   `json:"replace,omitzero" doc:"replace an agent of that name that is declared otherwise; without it that is refused"`
	// Agent is checked as an entry of a file is.
	Agent map[string]any `json:"agent,omitempty" doc:"an entry of clawbots.yml as JSON; its name is the one in the address"`
}

// SyncLine is one line of an answer that tells of a sync as it goes on: a step when it begins and when it is done, and at
// the end the plan, or what kept it from being made.
type SyncLine struct {
	Step    *agent.Step `json:"step,omitempty"`
	Plan    *agent.Plan `json:"plan,omitempty"`
	Problem *Problem    `json:"problem,omitempty"`
}

// Written says how much of what was typed has been taken.
type Written struct {
	Bytes int `json:"written"`
}

// entry is the text of a file with one agent. JSON is YAML.
func (r DeclareRequest) entry(name string) ([]byte, error) {
	one := maps.Clone(r.Agent)
	if one == nil {
		one = map[string]any{}
	}
	one["name"] = name
	text, err := json.Marshal(map[string]any{"clawbots": []any{one}})
	return yamldoc.OfJSON(text), err
}
