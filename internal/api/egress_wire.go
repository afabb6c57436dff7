package api

import (
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway/policy"
)

// SettingsRequest is the body that replaces settings. What is left out is the wider setting's.
type SettingsRequest struct {
	Version int64               `json:"version,omitzero" doc:"of the settings that are to be replaced: others are not"`
	Mode    policy.Mode         `json:"mode,omitempty" enum:"enforce,report" doc:"report only writes down what would be refused"`
	Tools   []egress.Tool       `json:"tools,omitzero" doc:"what execute may do; an empty list is nothing, none at all is the wider setting's"`
	MCP     []string            `json:"mcp,omitzero" doc:"MCP servers whose tools are offered; an empty list is none, and what is left out stays as it is"`
	Rates   egress.Rates        `json:"rates,omitzero" doc:"requests a minute"`
	Budget  egress.Budget       `json:"budget,omitzero" doc:"of models, a day (UTC)"`
	Browser egress.BrowserReach `json:"browser,omitempty" enum:"rules,open" doc:"what the browsers may reach that agents open: their rules, or the public web as well"`
	Hold    string              `json:"hold,omitempty" doc:"how long a request that no rule allows waits for an operator, such as 2m"`
	Note    string              `json:"note,omitempty" doc:"for people"`
}

func (r SettingsRequest) settings() egress.Settings {
	return egress.Settings{Meta: egress.Meta{Version: r.Version, Note: r.Note}, Mode: r.Mode, Tools: r.Tools, MCP: r.MCP, Rates: r.Rates, Budget: r.Budget, Hold: r.Hold, Browser: r.Browser}
}

// SettingsShown is what was set, and what is in effect with everything wider and every default.
type SettingsShown struct {
	Set       egress.Settings `json:"set"`
	Effective egress.Settings `json:"effective"`
}
