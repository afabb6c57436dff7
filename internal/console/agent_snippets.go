package console

import (
	"encoding/json"
	"fmt"
)

// snippets are what can be copied to use a new token: as little as shows that it works, and the configurations of what runs
// agents. The token is among them, because they are shown with it, once.
func snippets(origin, name, key string) []snippet {
	return []snippet{
		{"shell", "Shell", "For clawjail's own commands, and for whatever reads the environment.", fmt.Sprintf(
			"export CLAWJAIL_URL=%s\nexport CLAWJAIL_KEY=%s\ncurl -s \"$CLAWJAIL_URL/v1/whoami\" -H \"Authorization: Bearer $CLAWJAIL_KEY\"", origin, key)},
		{"mcp", "MCP client", "Gives an agent the browser tools over HTTP. Most clients take this form.", asText(map[string]any{"mcpServers": map[string]any{
			"clawjail": map[string]any{"type": "http", "url": origin + "/mcp", "headers": map[string]string{"Authorization": "Bearer " + key}}}})},
		{"playwright", "Playwright", "Opens a session and drives its browser with a script that knows nothing of clawjail.", fmt.Sprintf(`import { chromium } from 'playwright-core'

const api = (path, body) => fetch('%s/v1' + path, { method: 'POST', body: JSON.stringify(body),
  headers: { authorization: 'Bearer %s', 'content-type': 'application/json' } }).then((answer) => answer.json())
const session = await api('/sessions', {})
const { cdp_url } = await api('/sessions/' + session.id + '/tokens', { scope: 'cdp' })
const browser = await chromium.connectOverCDP(cdp_url)
const page = await browser.contexts()[0].newPage()
await page.goto('http://example.com/')
console.log(await page.title())
await browser.close()`, origin, key)},
		{"openclaw", "openclaw.json", "Models through the gateway: the real keys stay with clawjail. Name a model that a provider of yours has.", asText(map[string]any{
			"models": map[string]any{"providers": map[string]any{"clawjail": map[string]any{"baseUrl": origin + "/v1", "apiKey": key, "api": "openai-completions",
				"models": []any{map[string]any{"id": "MODEL", "name": "MODEL"}}}}},
			"agents": map[string]any{"defaults": map[string]any{"model": map[string]any{"primary": "clawjail/MODEL"}}}})},
		{"docker", "docker run", "A container that you confine yourself; declare the agent with a jail to have that done for you.", fmt.Sprintf(
			"docker run --rm --network host --read-only --cap-drop ALL --security-opt no-new-privileges \\\n  -e AGENT_NAME=%s -e CLAWJAIL_URL=%s -e CLAWJAIL_KEY=%s \\\n  IMAGE", name, origin, key)},
	}
}

// asText is JSON for people.
func asText(v any) string {
	out, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err.Error() // maps and texts have JSON
	}
	return string(out)
}
