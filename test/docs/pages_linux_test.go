//go:build linux

package docs

// assumed is what a page takes for granted, and its readers have.
type assumed struct {
	// before are commands that run before the first block of a section, in the page's shell; those of "" before the first of
	// the page.
	before map[string]string
	// client is the name of an MCP client that the page starts with --mcp-config FILE. Here it is a stock one without a model.
	client string
	// folders are absolute paths in commands of the page, which mean folders below the page's own.
	folders []string
}

// Several pages take these for granted.
const (
	aWriter  = "clawjail agent create writer -o writer.token\n"
	aSession = "id=$(clawjail session open)\n"
	anAdmin  = "KEY=$(cat /var/lib/clawjail/control/admin.key)\n"
	// Netscape's format has tabs.
	aCookieFile = `printf '%s\t' .example.com TRUE / TRUE 4102444800 session > cookies.txt; echo alice >> cookies.txt` + "\n"
	// curlOfAJail makes curl the one of a jail: the page shows what an agent does.
	curlOfAJail = `curl() { clawjail spawn --agent writer -- curl -sS --fail-with-body "$@"; }` + "\n"
)

// assumes is the table of the pages that take something for granted.
var assumes = map[string]assumed{
	"README.md":       {before: map[string]string{"Five minutes: an agent that is logged in without knowing the password": aCookieFile}},
	"docs/agents.md":  {before: map[string]string{"": `printf 'clawbots:\n  - name: dev-bot\n' > clawbots.yml`}},
	"docs/browser.md": {before: map[string]string{"": anAdmin, "Files": "echo 'who I am' > cv.txt"}},
	"docs/cdp.md":     {before: map[string]string{"": aSession}},
	"docs/gateway.md": {before: map[string]string{"": aWriter,
		"Asking for access": curlOfAJail + `TOKEN=$(cat writer.token)
answer() {
	for _ in $(seq 200); do
		asked=$(clawjail access ls --json | jq -r '.[0].id // empty')
		[ -z "$asked" ] || { clawjail access approve "$asked"; return; }
		sleep 0.2
	done
}
answer &`}},
	"docs/accounts.md": {client: "claude", before: map[string]string{"An MCP client in your account": aCookieFile + "clawjail account import cookies.txt --domain example.com", "Store a login": `echo '{"cookies": [{"name": "session", "value": "alice", "domain": "example.com", "path": "/", "expires": -1,
  "httpOnly": true, "secure": true, "sameSite": "Lax"}], "origins": []}' > state.json`}},
	"docs/live.md":        {before: map[string]string{"": aSession}},
	"docs/mcp-servers.md": {before: map[string]string{"": "echo not-a-token > token.txt"}},
	"docs/metrics.md":     {folders: []string{"/etc/prometheus"}},
	"docs/models.md":      {before: map[string]string{"": aWriter + "echo not-a-key | tee key.txt > other.txt"}},
	// The token is pasted by a person, who has it from the console.
	"docs/refresh.md": {before: map[string]string{"": aCookieFile + "clawjail cookies import cookies.txt --domain example.com\nexec < <(clawjail grant issue --domain example.com)"}},
	// The provider that comes first is the site of the test, which answers as a model does.
	"docs/run-task.md": {before: map[string]string{"": "echo not-a-key > key.txt\n",
		"Run one": "clawjail provider add first --wire anthropic --url https://api.example.com --address $SITE --model 'claude-*' --inject none --priority 1 --agent shopper\n"}},
	"docs/services.md": {before: map[string]string{"": aWriter + "echo not-a-key | tee key.txt > token.txt",
		"One request: POST /v1/execute": curlOfAJail + `clawjail service add github-api --url https://api.github.com --address $SITE --secret github --allow 'GET,POST /**' --agent writer
clawjail agent tools writer --add 'GET,POST https://api.github.com/repos/acme/**' --service github-api`}},
	"docs/sessions.md": {before: map[string]string{"": anAdmin, "Driving the browser": `echo '{"kind": "press", "key": "End"}' > action.json
echo report > report.pdf
clawjail session files put $id report.pdf
rm report.pdf`}},
	"examples/clawbot-base/README.md": {before: map[string]string{"": "clawjail rules add allow https://api.example.com --address $SITE"}},
	"docs/spawn.md":                   {before: map[string]string{"": aWriter}},
}
