package gateway

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// HeaderRefusal has the code of a refusal of the gateway's. No upstream's answer has it.
const HeaderRefusal = "Clawjail-Refusal"

// statusOf is problem.Status with the codes that only the gateway knows.
func statusOf(code string) int {
	switch code {
	case codeHostMismatch, codeProtocolDenied, string(policy.SchemeDenied):
		return http.StatusForbidden
	}
	return problem.Status(code)
}

// refuse answers with a problem: JSON (RFC 9457), or a small page for a browser
// that shows it to a person. The code also stands in Proxy-Status (RFC 9209),
// because many clients hide the body of a refused CONNECT.
func refuse(w http.ResponseWriter, r *http.Request, p *problem.Error) {
	status := statusOf(p.Code)
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	head.Set("Proxy-Status", fmt.Sprintf("clawjail; error=%s; details=%q", proxyError(p.Code), p.Code))
	head.Set(HeaderRefusal, p.Code)
	switch after := p.Details[problem.RetryAfter].(type) {
	case int:
		head.Set("Retry-After", strconv.Itoa(after))
	case int64:
		head.Set("Retry-After", strconv.FormatInt(after, 10))
	}
	if status == http.StatusProxyAuthRequired {
		head.Set("Proxy-Authenticate", "Bearer")
		// git sends the password of its proxy only when it is asked for one.
		head.Add("Proxy-Authenticate", `Basic realm="clawjail"`)
	}
	var body []byte
	switch {
	case strings.HasPrefix(r.Header.Get("User-Agent"), "git/"):
		// It shows people a text, and nothing else.
		head.Set("Content-Type", "text/plain; charset=utf-8")
		body = fmt.Appendf(nil, "clawjail: %s\nclawjail: %s\n", p.Message, p.Hint)
	case r.Method != http.MethodConnect && strings.Contains(r.Header.Get("Accept"), "text/html"):
		head.Set("Content-Type", "text/html; charset=utf-8")
		head.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		body = page(p)
	default:
		head.Set("Content-Type", "application/problem+json")
		body = problemJSON(p, status)
	}
	if r.Method == http.MethodConnect {
		head.Set("Connection", "close")
	}
	w.WriteHeader(status)
	// A client that left before reading its refusal has lost nothing.
	_, _ = w.Write(body)
}

// proxyError is the closest error type of RFC 9209 §2.3.
func proxyError(code string) string {
	switch code {
	case problem.DNSFailed:
		return "dns_error"
	case problem.UpstreamUnreachable:
		return "destination_unavailable"
	case problem.Timeout:
		return "connection_timeout"
	case problem.AddressDenied:
		return "destination_ip_prohibited"
	default:
		return "http_request_denied"
	}
}

func problemJSON(p *problem.Error, status int) []byte {
	fields := map[string]any{
		"type":   "about:blank",
		"title":  http.StatusText(status),
		"status": status,
		"detail": p.Message,
		"code":   p.Code,
		"hint":   p.Hint,
	}
	for k, v := range p.Details {
		fields[k] = v
	}
	// Strings and numbers always encode.
	body, _ := json.Marshal(fields)
	return append(body, '\n')
}

func page(p *problem.Error) []byte {
	return fmt.Appendf(nil, `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Refused by the gateway</title>
<style>body{font:16px/1.5 sans-serif;max-width:40em;margin:4em auto;padding:0 1em}</style>
<h1>Refused by the gateway</h1>
<p>%s.</p>
<p>%s</p>
<p><code>%s</code></p>
</html>
`, html.EscapeString(p.Message), html.EscapeString(p.Hint), html.EscapeString(p.Code))
}
