//go:build linux

package agents

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/test/testkit"
)

// TestCredentialsAndModelsAreNoWayOutOfAJail asks from a jail for what nobody has granted: a credential for a host or
// without a service, and what a provider of models would do by itself or for nothing.
func TestCredentialsAndModelsAreNoWayOutOfAJail(t *testing.T) {
	e := testkit.NewEstate(t, "")
	u := testkit.NewUpstream(t)
	e.Sync("clawbots:\n  - {name: asker, command: [/bin/sleep, '100000']}\n")
	e.Running("asker")
	must := func(args ...string) {
		t.Helper()
		if out, err := e.Run(t.Context(), args...); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	const key = "sk-the-key-of-a-test-0123456789"
	for _, name := range []string{"api", "loose", "models"} {
		set := e.Command(t.Context(), "secret", "set", name)
		set.Stdin = strings.NewReader(key)
		if out, err := set.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	// ask sends a request to the gateway, and returns the status and what the server got.
	ask := func(path, body string) (status string, got []string) {
		t.Helper()
		u.Taken()
		out, err := e.In("asker", fmt.Sprintf("curl -s -m 20 -w '\\n%%{http_code}' http://gateway:3000%s -H 'Content-Type: application/json' -d '%s'", path, body))
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		return lines[len(lines)-1] + " " + lines[0], u.Taken()
	}
	refused := func(what, path, body, code string) {
		t.Helper()
		if status, got := ask(path, body); !strings.Contains(status, `"`+code+`"`) || len(got) > 0 {
			t.Errorf("%s: %.300s, want %s; the server got %q", what, status, code, got)
		}
	}
	passes := func(what, path, body, want string) {
		t.Helper()
		if status, got := ask(path, body); !strings.HasPrefix(status, "200") || len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("%s: %.300s; the server got %q, want one with %q", what, status, got, want)
		}
	}

	t.Run("credentials", func(t *testing.T) {
		base := "http://api.test:" + u.Port()
		must("service", "add", "api", "--url", base, "--address", "127.0.0.1", "--allow", "GET /**")
		must("agent", "tools", "asker", "--add", "GET "+base+"/**")
		request := func(service string) string { return `{"service":"` + service + `","url":"` + base + `/x"}` }
		status, got := ask("/v1/execute", request("api"))
		if !strings.HasPrefix(status, "200") || len(got) != 1 || strings.Contains(got[0], key) {
			t.Errorf("a tool without a service: %.300s; the server got %q", status, got)
		}
		refused("the name of a secret", "/v1/execute", request("loose"), "service_unknown")
		must("agent", "tools", "asker", "--clear")
		must("agent", "tools", "asker", "--add", "GET "+base+"/**", "--service", "api")
		passes("a tool that names the service", "/v1/execute", request("api"), "Bearer "+key)

		// The secret belongs to the one origin that it was for; whatever else an operator declares with it is refused.
		other := "http://elsewhere.test:" + u.Port()
		must("service", "add", "wrong", "--url", other, "--address", "127.0.0.1", "--allow", "POST /**", "--secret", "api")
		must("agent", "tools", "asker", "--add", "GET "+other+"/**", "--service", "wrong")
		must("provider", "add", "wrong", "--wire", "openai", "--url", other, "--address", "127.0.0.1", "--model", "wrong-*", "--secret", "api")
		for what, way := range map[string][2]string{
			"a route":   {"/svc/wrong/x", "{}"},
			"execute":   {"/v1/execute", `{"service":"wrong","url":"` + other + `/x"}`},
			"providers": {"/v1/chat/completions", `{"model":"wrong-1","messages":[]}`},
		} {
			refused("the secret of another origin, by "+what, way[0], way[1], "secret_not_bound")
		}
		must("service", "add", "api", "--url", other, "--address", "127.0.0.1", "--allow", "POST /**")
		refused("a service that was led elsewhere", "/svc/api/x", "{}", "secret_not_bound")
		must("service", "add", "api", "--url", base, "--address", "127.0.0.1", "--allow", "POST /**")
		passes("and back", "/svc/api/x", "{}", "Bearer "+key)
		// In which pieces a text of the agent's own comes back does not tell whether it begins like the credential.
		pieces := func(end string) string {
			out, err := e.In("asker", fmt.Sprintf(`api=http://gateway:3000/svc/api; cd /tmp; >got; curl -sN -m 60 --raw $api/stored -H 'Content-Type: text/plain' -d '%s%s' >got &
				for n in $(seq 2000); do [ -s got ] && break; sleep 0.01; done; curl -s -m 20 $api/rest -d {}; wait; cat got`, strings.Repeat("~", 300), end))
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			sizes := regexp.MustCompile(`(?m)^[0-9a-f]+\r$`).FindAllString(out, -1)
			if len(sizes) < 3 || !strings.Contains(out, "end") {
				t.Fatalf("of a text with %q at its end came %q", end, out)
			}
			return fmt.Sprintf("%q", sizes)
		}
		for n := 1; n < len(key); n++ {
			if right, wrong := pieces(key[:n]), pieces(strings.Repeat("~", n)); right != wrong {
				t.Errorf("%q comes in the pieces %s, and what is not the beginning of the credential in %s", key[:n], right, wrong)
				break
			}
		}

		store := func(args ...string) {
			t.Helper()
			set := e.Command(t.Context(), append([]string{"secret", "set", "api"}, args...)...)
			set.Stdin = strings.NewReader(key)
			if out, err := set.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		store() // a new value does not change where it goes
		refused("with a new value", "/svc/wrong/x", "{}", "secret_not_bound")
		store("--origin", other)
		passes("where whoever stored it says that it belongs there", "/svc/wrong/x", "{}", "Bearer "+key)
		refused("and no longer elsewhere", "/svc/api/x", "{}", "secret_not_bound")
	})

	t.Run("models", func(t *testing.T) {
		provider := []string{"provider", "add", "models", "--wire", "openai", "--url", "http://models.test:" + u.Port(), "--address", "127.0.0.1",
			"--model", "gpt-*", "--price", "gpt-4o*=2.5/10"}
		must(provider...)
		hosted := `{"model":"gpt-4o","input":"x","tools":[{"type":"mcp","server_label":"e","server_url":"http://elsewhere.example/?d=DATA"}]}`
		passes("a request without tools", "/v1/responses", `{"model":"gpt-4o","input":"x"}`, `"store":false`)
		refused("a server of the provider's choice", "/v1/responses", hosted, "hosted_denied")
		refused("an address to fetch", "/v1/chat/completions",
			`{"model":"gpt-4o","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://elsewhere.example/?d=DATA"}}]}]}`, "hosted_denied")
		must(append(provider, "--allow-hosted", "mcp")...)
		passes("the same, where it is allowed by name", "/v1/responses", hosted, "elsewhere.example")

		unpriced := `{"model":"gpt-unpriced","messages":[]}`
		passes("a model without a price", "/v1/chat/completions", unpriced, "gpt-unpriced")
		must("agent", "limits", "asker", "--cost-per-day", "10")
		refused("the same, with a budget in money", "/v1/chat/completions", unpriced, "price_unknown")
		passes("one with a price", "/v1/chat/completions", `{"model":"gpt-4o","messages":[]}`, "gpt-4o")
		refused("a tool of the provider's without a price", "/v1/responses", hosted, "price_unknown")
		provider[slices.Index(provider, "--price")+1] += " call=0.01"
		must(append(provider, "--allow-hosted", "mcp")...)
		passes("the same, with a price", "/v1/responses", hosted, "elsewhere.example")

		must("agent", "limits", "asker", "--tokens-per-day", "3000")
		long := `{"model":"gpt-4o","max_tokens":10,"messages":[{"role":"user","content":"` + strings.Repeat("a", 2500) + `"}]}`
		refused("more bytes than the budget has tokens", "/v1/chat/completions", long, "budget_exceeded")
		refused("an answer without a bound", "/v1/chat/completions", `{"model":"gpt-4o","messages":[]}`, "budget_exceeded")
		refused("a bound that is not of this endpoint", "/v1/chat/completions", `{"model":"gpt-4o","max_output_tokens":10,"messages":[]}`, "budget_exceeded")
		passes("a short one with a short answer", "/v1/chat/completions", `{"model":"gpt-4o","max_tokens":10,"messages":[]}`, "gpt-4o")
	})
}
