package service

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/door"
	"github.com/clawjail/clawjail/internal/gateway/inject"
	"github.com/clawjail/clawjail/internal/gateway/scrub"
	"github.com/clawjail/clawjail/internal/problem"
)

// receive makes an answer into one for the tool. On an error the proxy closes its body.
func (t *trip) receive(resp *http.Response) error {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return problem.New(problem.UpstreamFailed, "Do not retry.", "the service answered with an upgrade that nobody asked for")
	}
	if err := scrub.Response(resp, t.credential.Values(), t.scrub); err != nil {
		return err
	}
	for name := range resp.Header {
		plain := strings.ToLower(name)
		// Only the gateway speaks for itself. Cookies would be those of all services.
		if plain == "set-cookie" || plain == "set-cookie2" || strings.HasPrefix(plain, "proxy-") || strings.HasPrefix(plain, "clawjail-") ||
			plain == "clear-site-data" || plain == "alt-svc" || plain == "strict-transport-security" {
			delete(resp.Header, name)
		}
	}
	door.Sandbox(resp.Header)
	for _, name := range []string{"Location", "Content-Location"} {
		places := resp.Header.Values(name)
		for i, place := range places {
			to, err := t.place(place)
			if err != nil {
				return err
			}
			places[i] = to
		}
	}
	return nil
}

var errOwnName = errors.New("the service redirects to the gateway itself")

// place is where an address in an answer is for the tool: what is in the service stays in it. Other addresses stay as they
// are, but absolute, because relative ones would be the gateway's; those that name the gateway are refused, since a tool that
// followed would use another service because this one says so.
func (t *trip) place(text string) (string, error) {
	to, err := t.url.Parse(text)
	if err != nil {
		return "", problem.Wrap(err, problem.UpstreamFailed, "Do not retry: the fault is with the service.", "the service redirected to what is no URL")
	}
	if to.Scheme != "http" && to.Scheme != "https" {
		return text, nil
	}
	if t.service.Inject.Type == egress.InjectQuery {
		// A server that repeats the query repeats the credential.
		to.RawQuery = inject.WithoutParameter(to.RawQuery, t.service.Inject.Name)
	}
	if strings.EqualFold(to.Host, t.host) || gateway.OwnName(to.Hostname()) {
		return "", problem.Wrap(errOwnName, problem.UpstreamFailed, "Do not retry: the fault is with the service.", "the service redirected to the gateway itself")
	}
	canonical, refusal := door.TargetOf(to.String(), t.slashes())
	if refusal != nil || !door.SameOrigin(canonical, t.base) || !t.inside(canonical.EscapedPath()) {
		return to.String(), nil
	}
	out := url.URL{Path: Prefix + t.service.Name, RawQuery: to.RawQuery, Fragment: to.Fragment, RawFragment: to.RawFragment}
	rest := t.below(canonical.EscapedPath())
	if plain, err := url.PathUnescape(rest); err == nil {
		out.Path, out.RawPath = out.Path+plain, out.Path+rest
	}
	return out.String(), nil
}

// inside says whether a path is in the service.
func (t *trip) inside(path string) bool {
	base := strings.TrimSuffix(t.base.EscapedPath(), "/")
	return path == base || strings.HasPrefix(path, base+"/")
}

// below is what a path has more than the base URL.
func (t *trip) below(path string) string {
	return strings.TrimPrefix(path, strings.TrimSuffix(t.base.EscapedPath(), "/"))
}
