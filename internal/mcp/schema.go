package mcp

import (
	"encoding/json"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// declared is a tool as clients list it.
func (t tool) declared() *sdk.Tool {
	out := &sdk.Tool{Name: t.name, Description: t.about, InputSchema: t.schema()}
	if t.reads {
		out.Annotations = &sdk.ToolAnnotations{ReadOnlyHint: true}
	}
	return out
}

// schema is the JSON schema of a tool's arguments. Descriptions are there where the name does not say it: every client
// has the whole list in its model's context all the time.
func (t tool) schema() json.RawMessage {
	var b strings.Builder
	b.WriteString(`{"type":"object","properties":{`)
	for n, p := range t.takes {
		if n > 0 {
			b.WriteByte(',')
		}
		b.WriteString(p)
	}
	b.WriteString(`}`)
	if len(t.needs) > 0 {
		b.WriteString(`,"required":["` + strings.Join(t.needs, `","`) + `"]`)
	}
	b.WriteString(`,"additionalProperties":false}`)
	return json.RawMessage(b.String())
}

// Properties of several tools.
const (
	aTarget   = `"target":{"enum":["session","host"],"description":"host: the agent's browser on this machine, outside jails"}`
	aSession  = `"session":{"type":"string","description":"may be left out while you have one open"}`
	aTab      = `"targetId":{"type":"string","description":"tab, such as t1; else the current one"}`
	aTimeout  = `"timeoutMs":{"type":"integer"}`
	aMaxChars = `"maxChars":{"type":"integer","description":"default 8000"}`
	aShow     = `"snapshot":{"type":"boolean","description":"also answer a snapshot of the page afterwards"}`
	aRef      = `"ref":{"type":"string","description":"from a snapshot, such as e12"}`
	aSelector = `"selector":{"type":"string","description":"CSS"}`
)

// anOpening are the properties of a new session.
func anOpening() []string {
	return []string{
		`"credential_mode":{"enum":["clean","operator"],"description":"operator: with stored logins of domains, needs a grant or the permission"}`,
		`"domains":{"type":"array","items":{"type":"string"},"description":"of operator mode: example.com"}`,
		`"grant":{"type":"string","description":"token of the operator's grant"}`,
		`"origin":{"type":"string","description":"session the grant was issued for"}`,
		`"access":{"enum":["tools","cdp"],"description":"default tools"}`,
		`"record":{"enum":["off","transient","audit"],"description":"default transient"}`,
		`"browser":{"enum":["shell","full"],"description":"default shell: fast, headless"}`,
		`"ttl":{"type":"string","description":"such as 30m"}`,
		`"label":{"type":"string"}`,
	}
}

// anAct are the properties of an action.
func anAct() []string {
	return []string{
		`"kind":{"enum":["click","type","press","hover","scrollIntoView","drag","select","fill","resize","wait","evaluate","close","batch","clickCoords","dragCoords"]}`,
		aRef, aSelector,
		`"text":{"type":"string","description":"type: replaces what is there; wait: must appear"}`,
		`"submit":{"type":"boolean","description":"type: then Enter"}`,
		`"slowly":{"type":"boolean"}`,
		`"key":{"type":"string","description":"press: Enter, Control+a"}`,
		`"values":{"type":"array","items":{"type":"string"},"description":"select"}`,
		`"fields":{"type":"array","items":{"type":"object"},"description":"fill: {ref,value,type?: text|checkbox|radio|select}"}`,
		`"button":{"enum":["left","right","middle"]}`,
		`"doubleClick":{"type":"boolean"}`,
		`"modifiers":{"type":"array","items":{"type":"string"}}`,
		`"startRef":{"type":"string"}`, `"startSelector":{"type":"string"}`, `"endRef":{"type":"string"}`, `"endSelector":{"type":"string"}`,
		`"x":{"type":"number"}`, `"y":{"type":"number"}`, `"endX":{"type":"number"}`, `"endY":{"type":"number"}`,
		`"width":{"type":"integer"}`, `"height":{"type":"integer"}`,
		`"timeMs":{"type":"integer","description":"wait: this long, or for textGone, selector, url (glob), loadState, fn"}`,
		`"textGone":{"type":"string"}`, `"url":{"type":"string"}`,
		`"loadState":{"enum":["load","domcontentloaded","networkidle"]}`,
		`"fn":{"type":"string","description":"wait, evaluate: JavaScript"}`,
		`"actions":{"type":"array","items":{"type":"object"},"description":"batch: up to 100 of these"}`,
		`"stopOnError":{"type":"boolean"}`, `"delayMs":{"type":"integer"}`, aTimeout,
	}
}
