package service

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/gateway/inject"
	"github.com/clawjail/clawjail/internal/gateway/scrub"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
)

// receive turns the answer of the service into one for the tool. On an error ReverseProxy closes its body.
func (q *request) receive(resp *http.Response) error {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return problem.New(problem.UpstreamFailed, "Do not retry.", "the service switched protocols without being asked to")
	}
	q.withoutCredential(resp.Header)
	if err := scrub.Response(resp, q.credential.Values(), q.scrub); err != nil {
		return err
	}
	for name := range resp.Header {
		plain := strings.ToLower(name)
		// These would speak for the gateway, and cookies for all services at its address.
		if plain == "set-cookie" || plain == "set-cookie2" || strings.HasPrefix(plain, "proxy-") || strings.HasPrefix(plain, "clawjail-") ||
			plain == "clear-site-data" || plain == "alt-svc" || plain == "strict-transport-security" {
			delete(resp.Header, name)
		}
	}
	access.Sandbox(resp.Header)
	for _, name := range addresses() {
		places := resp.Header.Values(name)
		for i, place := range places {
			to, err := q.forTool(place)
			if err != nil {
				return err
			}
			places[i] = to
		}
	}
	return nil
}

// addresses are the headers of an answer that lead to another one.
func addresses() []string { return []string{"Location", "Content-Location"} }

// withoutCredential puts the placeholder back where an address of the answer has the credential in its path: a server that
// redirects within the service repeats it. That is so whatever else becomes of answers that have it.
func (q *request) withoutCredential(h http.Header) {
	if q.service.Inject.Type != egress.InjectPath {
		return
	}
	values := q.credential.Values()
	for _, name := range addresses() {
		for i, place := range h.Values(name) {
			h[name][i] = strings.ReplaceAll(values.Text(place), redact.Mark, egress.Placeholder)
		}
	}
}

var errOwnName = errors.New("the service redirects to the gateway itself")

// forTool rewrites a URL of an answer. One inside the service becomes its path at the gateway, any other absolute, because a
// relative one would be the gateway's. One that names the gateway is refused: it would lead the tool to another service.
func (q *request) forTool(text string) (string, error) {
	to, err := q.url.Parse(text)
	if err != nil {
		return "", problem.Wrap(err, problem.UpstreamFailed, "Do not retry: the fault is with the service.", "the service redirected to an invalid URL")
	}
	if to.Scheme != "http" && to.Scheme != "https" {
		return text, nil
	}
	if q.service.Inject.Type == egress.InjectQuery {
		// A server that repeats the query repeats the credential.
		to.RawQuery = inject.WithoutParameter(to.RawQuery, q.service.Inject.Name)
	}
	if strings.EqualFold(to.Host, q.host) || gateway.OwnName(to.Hostname()) {
		return "", problem.Wrap(errOwnName, problem.UpstreamFailed, "Do not retry: the fault is with the service.", "the service redirected to the gateway itself")
	}
	canonical, refusal := access.TargetOf(to.String(), q.slashes())
	if refusal != nil || !access.SameOrigin(canonical, q.base) || !q.inside(canonical.EscapedPath()) {
		return to.String(), nil
	}
	out := url.URL{Path: Prefix + q.service.Name, RawQuery: to.RawQuery, Fragment: to.Fragment, RawFragment: to.RawFragment}
	rest := q.below(canonical.EscapedPath())
	if plain, err := url.PathUnescape(rest); err == nil {
		out.Path, out.RawPath = out.Path+plain, out.Path+rest
	}
	return out.String(), nil
}

// inside says whether a path is in the service.
func (q *request) inside(path string) bool {
	base := strings.TrimSuffix(q.base.EscapedPath(), "/")
	return path == base || strings.HasPrefix(path, base+"/")
}

// below is a path without that of the base URL.
func (q *request) below(path string) string {
	return strings.TrimPrefix(path, strings.TrimSuffix(q.base.EscapedPath(), "/"))
}
