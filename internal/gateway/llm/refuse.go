package llm

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/problem"
)

// refuse answers with a problem in the shape of the wire's own errors.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, wire egress.Wire, p *problem.Error) {
	gateway.NoteRefusal(r.Context(), p)
	status := statusOf(p.Code)
	head := w.Header()
	head.Set("Content-Type", "application/json")
	head.Set("Cache-Control", "no-store")
	head.Set(gateway.HeaderRefusal, p.Code)
	// SDKs of OpenAI and Anthropic try 408, 409, 429 and 5xx again unless this tells them not to.
	head.Set("X-Should-Retry", strconv.FormatBool(passing(p)))
	if status == http.StatusTooManyRequests {
		head.Set("Retry-After", strconv.Itoa(h.retryAfter(p)))
	}
	w.WriteHeader(status)
	// A client that left before reading its refusal has lost nothing.
	_, _ = w.Write(wireError(wire, status, p))
}

// statusOf is problem.Status, with the policy's codes that the table does not have.
func statusOf(code string) int {
	status := problem.Status(code)
	if status == http.StatusInternalServerError && strings.HasSuffix(code, "_denied") {
		return http.StatusForbidden
	}
	if code == problem.Unsupported {
		return http.StatusMethodNotAllowed
	}
	return status
}

// detailRetry says of a problem whose code does not tell whether the same request may work later.
const detailRetry = "retry"

// passing says whether the same request may work a little later.
func passing(p *problem.Error) bool {
	if retry, ok := p.Details[detailRetry].(bool); ok {
		return retry
	}
	switch p.Code {
	case problem.RateLimited, problem.UpstreamUnreachable, problem.UpstreamFailed, problem.Timeout, problem.DNSFailed,
		problem.DatabaseUnavailable, problem.AuditUnavailable, problem.ShuttingDown:
		return true
	}
	return false
}

// retryAfter is in whole seconds, at least one. A budget is whole again when the day ends.
func (h *Handler) retryAfter(p *problem.Error) int {
	seconds := 1.0
	switch n := p.Details[problem.RetryAfter].(type) {
	case int:
		seconds = float64(n)
	case int64:
		seconds = float64(n)
	case float64:
		seconds = n
	default:
		if p.Code == problem.BudgetExceeded {
			now := h.Now().UTC()
			seconds = float64(24*60*60 - (now.Hour()*60+now.Minute())*60 - now.Second())
		}
	}
	if math.IsNaN(seconds) {
		seconds = 1
	}
	return int(min(max(math.Ceil(seconds), 1), 24*60*60))
}

// wireError is a problem as the SDKs of a wire expect errors. They show the message only, so the hint is in it.
func wireError(wire egress.Wire, status int, p *problem.Error) []byte {
	message := sentence(p.Message)
	if p.Hint != "" {
		message += " " + sentence(p.Hint)
	}
	var body any
	switch wire {
	case egress.WireAnthropic:
		body = map[string]any{"type": "error", "error": map[string]any{"type": anthropicType(status), "message": message, "code": p.Code}}
	case egress.WireOllama:
		body = map[string]any{"error": message, "code": p.Code}
	default:
		body = map[string]any{"error": map[string]any{"message": message, "type": openAIType(status), "param": nil, "code": p.Code}}
	}
	// Texts always encode.
	out, _ := json.Marshal(body)
	return append(out, '\n')
}

// sentence is a text with a full stop, and with a capital letter if it begins with a word and not with a name of something.
func sentence(s string) string {
	if word, _, _ := strings.Cut(s, " "); strings.Trim(word, "abcdefghijklmnopqrstuvwxyz,:") == "" && s != "" {
		s = strings.ToUpper(s[:1]) + s[1:]
	}
	return strings.TrimRight(s, ".") + "."
}

func openAIType(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status == http.StatusUnauthorized:
		return "authentication_error"
	case status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

func anthropicType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}
