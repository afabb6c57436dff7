package hostserver

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// guard keeps web pages away, before anything is read of a request. A page can make a browser on this machine send
// requests here, also under a name that it made to lead here, but it cannot choose the headers that say so.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Server", Name)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		switch {
		case s.cert != nil && s.cert.Leaf().VerifyHostname(hostOf(r.Host)) != nil:
			s.fail(w, r, problem.New(problem.Forbidden, "use a name of its certificate", "Forbidden: the host %q is not this server", cut(r.Host)))
		case s.cert == nil && !hostport.IsLoopback(hostOf(r.Host)):
			s.fail(w, r, problem.New(problem.Forbidden, "use 127.0.0.1 or localhost", "Forbidden: the host %q is not this server", cut(r.Host)))
		case s.cert != nil && fromPage(r), fromElsewhere(r):
			s.fail(w, r, problem.New(problem.Forbidden, "call it from a program, not from a web page", "Forbidden: requests of web pages are refused"))
		default:
			limit := int64(control.MaxBody)
			if r.Method == http.MethodPut {
				limit = control.MaxFile
			}
			r.Body = http.MaxBytesReader(w, r.Body, limit+1) // the decoder says that it is too much
			next.ServeHTTP(w, r)
		}
	})
}

func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
}

// fromElsewhere says whether a request was made by a page of another machine. Programs send none of these headers.
func fromElsewhere(r *http.Request) bool {
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "none" && site != "same-origin" && site != "same-site" {
			return true
		}
	}
	for _, name := range []string{"Origin", "Referer"} {
		for _, text := range r.Header.Values(name) {
			u, err := url.Parse(text)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || !hostport.IsLoopback(u.Hostname()) {
				return true
			}
		}
	}
	return false
}

// fromPage says whether a request was made by any web page, which those of other machines have no business to be.
func fromPage(r *http.Request) bool {
	return r.Header.Get("Origin") != "" || r.Header.Get("Referer") != "" || r.Header.Get("Sec-Fetch-Site") != ""
}

// authenticated asks for the token. Clients of the DevTools endpoint that can send no header may show its ticket in the
// address instead, which is good for nothing else and as long as this server runs.
func (s *Server) authenticated(ticket bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		good := ok && same(shown, s.token.Reveal())
		if ticket && !good {
			good = same(r.URL.Query().Get("token"), s.ticket)
		}
		if !good {
			w.Header().Set("WWW-Authenticate", "Bearer")
			s.fail(w, r, problem.New(problem.Unauthorized, "send the token of the user whose browser it is: Authorization: Bearer …",
				"Unauthorized"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// same compares in a time that says nothing.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// Problem is an error as it is sent.
type Problem struct {
	Error   string         `json:"error"`
	Code    string         `json:"code"`
	Reason  string         `json:"reason,omitempty"`
	Hint    string         `json:"hint,omitempty"`
	Details map[string]any `json:"details,omitempty"`
}

// fail answers with an error: the message, hint and details of a problem. Its cause, and other errors, are for the log only.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	code := problem.CodeOf(err)
	out := Problem{Code: code, Error: problem.Unexpected, Hint: "look into the log of `clawjail browser serve`"}
	status := problem.Status(code)
	if p, ok := problem.As(err); ok {
		out.Error, out.Hint, out.Details = p.Message, p.Hint, p.Details
	} else if code != problem.Internal {
		out.Error, out.Hint = strings.ReplaceAll(code, "_", " "), ""
	}
	switch code {
	case problem.BadURL:
		out.Reason = "navigation_blocked"
	case problem.NoDisplay:
		out.Reason = "no_display_for_headed_profile"
	}
	// Clients of the contract know these in capitals.
	if strings.HasPrefix(code, "act_") {
		out.Code = strings.ToUpper(code)
	}
	if status >= http.StatusInternalServerError {
		s.log.Warn("a request failed", "method", cut(r.Method), "path", cut(r.URL.Path), "code", code, "error", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(out) // a client that has gone cannot be told
}
