package console

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/policy"
)

// settingsFields are the fields of the form by what package egress calls them.
var settingsFields = map[string]string{
	"mode": "mode", "hold": "hold", "browser": "browser", "services": "services", "note": "note", "rates.proxy": "proxy", "rates.execute": "execute", "rates.service": "service",
	"rates.llm": "llm", "rates.tunnels": "tunnels", "budget.tokens_per_day": "tokens", "budget.cost_per_day": "cost", "tools": "tools",
}

// settingsShown is what the fields of settings are shown with.
type settingsShown struct {
	Form      *form
	Effective egress.Settings
	Approved  []egress.Tool // of the set tools: those that were approved, which the form keeps
	Wider     string        // whose the settings are that nothing is said of here
	Modes     []option
	Browsers  []option
	// TokensNow and the others are what holds, in words.
	ModeNow, BrowserNow, TokensNow, CostNow, ServicesNow string
}

// showSettings prepares the fields; f is the form when it was sent.
func showSettings(f *form, set, effective egress.Settings, wider string) settingsShown {
	out := settingsShown{Form: f, Effective: effective, Approved: approvedTools(set.Tools), Wider: wider, TokensNow: "no limit", CostNow: "no limit",
		ServicesNow: "all that there are", ModeNow: "is refused", BrowserNow: "what the agent's rules allow",
		Browsers: []option{{Value: "", Label: wider}, {Value: "rules", Label: "what the agent's rules allow"}, {Value: "open", Label: "the public web as well"}},
		Modes:    []option{{Value: "", Label: wider}, {Value: "enforce", Label: "is refused"}, {Value: "report", Label: "passes, and is written down"}}}
	if effective.Mode == policy.Report {
		out.ModeNow = "passes, and is written down"
	}
	if effective.Browser == egress.BrowserOpen {
		out.BrowserNow = "the public web as well"
	}
	if f == nil {
		out.Form = settingsForm(set)
	}
	if n := effective.Budget.TokensPerDay; n != 0 {
		out.TokensNow = strconv.FormatInt(n, 10)
	}
	if n := effective.Budget.CostPerDay; n != 0 {
		out.CostNow = strconv.FormatFloat(n, 'f', -1, 64)
	}
	if effective.Services != nil {
		out.ServicesNow = cmp.Or(strings.Join(effective.Services, ", "), "none")
	}
	return out
}

// settingsForm is a form with what is set. Fields that are not set are empty: the wider setting holds there.
func settingsForm(s egress.Settings) *form {
	number := func(n int64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	cost := ""
	if s.Budget.CostPerDay != 0 {
		cost = strconv.FormatFloat(s.Budget.CostPerDay, 'f', -1, 64)
	}
	f := blank("version", number(s.Version), "mode", string(s.Mode), "hold", s.Hold, "browser", string(s.Browser), "note", s.Note,
		"proxy", number(int64(s.Rates.Proxy)), "execute", number(int64(s.Rates.Execute)), "service", number(int64(s.Rates.Service)),
		"llm", number(int64(s.Rates.LLM)), "tunnels", number(int64(s.Rates.Tunnels)), "tokens", number(s.Budget.TokensPerDay), "cost", cost,
		"tools", toolLines(s.Tools), "services", strings.Join(s.Services, " "))
	if s.Tools != nil {
		f.Values.Set("own_tools", "yes")
	}
	if s.Services != nil {
		f.Values.Set("own_services", "yes")
	}
	return f
}

// readSettings is what a form says, in place of what is set. Whether the values are allowed is the service's to say. Tools that
// were approved stay; what they are for is not the form's.
func readSettings(f *form, set egress.Settings) egress.Settings {
	number := func(field string) int64 {
		text := f.Get(field)
		if text == "" {
			return 0
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			f.wrong(field, "is not a whole number", "leave it empty for the wider setting")
		} else if n == 0 {
			f.wrong(field, "cannot be 0", "leave it empty for the wider setting")
		}
		return n
	}
	out := egress.Settings{Mode: policy.Mode(f.Get("mode")), Hold: f.Get("hold"), Browser: egress.BrowserReach(f.Get("browser")),
		Rates: egress.Rates{Proxy: int(number("proxy")), Execute: int(number("execute")), Service: int(number("service")), LLM: int(number("llm")),
			Tunnels: int(number("tunnels"))},
		Budget: egress.Budget{TokensPerDay: number("tokens")}}
	out.Note, out.MCP = f.Get("note"), set.MCP
	if text := f.Get("version"); text != "" {
		out.Version = number("version")
	}
	if text := f.Get("cost"); text != "" {
		cost, err := strconv.ParseFloat(text, 64)
		if err != nil || cost == 0 {
			f.wrong("cost", "is not an amount", "such as 5 or 0.50; leave it empty for the wider setting")
		}
		out.Budget.CostPerDay = cost
	}
	if f.Has("own_tools") {
		out.Tools = approvedTools(set.Tools)
		if out.Tools == nil {
			out.Tools = []egress.Tool{}
		}
		for _, line := range linesOf(f, "tools") {
			t, ok := toolOf(line)
			if !ok {
				f.wrong("tools", fmt.Sprintf("the line %q is not a tool", short(60, line)), "write it like GET,POST https://api.example.com/v1/** github")
				continue
			}
			out.Tools = append(out.Tools, t)
		}
	}
	if f.Has("own_services") {
		out.Services = f.Words("services")
		if out.Services == nil {
			out.Services = []string{}
		}
	}
	return out
}

// approvedTools are those that an operator approved when an agent asked.
func approvedTools(all []egress.Tool) []egress.Tool {
	var out []egress.Tool
	for _, t := range all {
		if t.ID != "" {
			out = append(out, t)
		}
	}
	return out
}

// toolLines are the other tools, one a line: methods, address, services.
func toolLines(all []egress.Tool) string {
	var out []string
	for _, t := range all {
		if t.ID == "" {
			out = append(out, strings.Join(append([]string{strings.Join(t.Methods, ","), t.URL}, t.Services...), " "))
		}
	}
	return strings.Join(out, "\n")
}

var methodList = regexp.MustCompile(`^[A-Za-z]+(,[A-Za-z]+)*$`)

// toolOf reads a line of toolLines.
func toolOf(line string) (egress.Tool, bool) {
	parts := strings.Fields(line)
	if len(parts) < 2 || !methodList.MatchString(parts[0]) {
		return egress.Tool{}, false
	}
	return egress.Tool{Methods: strings.Split(strings.ToUpper(parts[0]), ","), URL: parts[1], Services: slices.Clone(parts[2:])}, true
}

// andWarning is a sentence about a budget that usual requests do not fit into, behind another one.
func andWarning(b egress.Budget) string {
	if text := b.Warning(); text != "" {
		return " But " + text + "."
	}
	return ""
}
