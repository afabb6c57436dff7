package execute

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/gateway/inject"
	"github.com/clawjail/clawjail/internal/gateway/scrub"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// outbound is a request on its way, from hop to hop.
type outbound struct {
	ctx     context.Context
	gateway access.Sender
	caller  gateway.Caller
	service string
	permit  func() *policy.Compiled

	how        egress.Injection
	credential *access.Credential
	inject     bool             // false once the origin has changed
	origin     *url.URL         // of the service whose credential it is
	named      *policy.Compiled // the tools that name the service
	scrub      scrub.Options

	// The request of the next hop, without the credential.
	method string
	url    *url.URL
	header http.Header
	body   []byte

	followed  bool
	redirects int
}

// clear removes what the agent put where the credential goes.
func (e *outbound) clear() *problem.Error {
	r := &http.Request{URL: e.url, Header: e.header}
	if err := inject.Clear(r, e.how); err != nil {
		p, _ := problem.As(err)
		return p
	}
	e.url, e.header = r.URL, r.Header
	scrub.PrepareRequest(e.header, e.scrub)
	return nil
}

// follow sends the request, and what redirects make of it. The answer has been scrubbed; its body is the caller's to
// close.
func (e *outbound) follow() (*http.Response, *problem.Error) {
	for {
		resp, refusal := e.send()
		if refusal != nil {
			return nil, refusal
		}
		to, refusal := e.redirect(resp)
		if refusal == nil && to == nil {
			return resp, nil
		}
		// The page of a redirect, or of one that is refused, is not read.
		_ = resp.Body.Close()
		if refusal != nil {
			return nil, refusal
		}
		if e.redirects++; e.redirects > maxRedirects {
			return nil, problem.New(problem.UpstreamFailed, `Set "follow": false to see the redirect itself.`, "the service redirected more than %d times", maxRedirects)
		}
		e.turn(resp.StatusCode, to)
	}
}

// send sends one hop.
func (e *outbound) send() (*http.Response, *problem.Error) {
	r, err := http.NewRequestWithContext(e.ctx, e.method, e.url.String(), nil)
	if err != nil {
		return nil, problem.Wrap(err, problem.BadURL, "Write an absolute URL.", "the URL is not valid")
	}
	target := *e.url
	r.URL, r.Header = &target, e.header.Clone()
	if e.body != nil {
		body := e.body
		r.ContentLength = int64(len(body))
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	out := gateway.OutboundRequest{
		Caller: e.caller, Surface: gateway.SurfaceExecute, Permit: e.permit, Service: e.service,
		HeaderTimeout: longestTime, IdleTimeout: longestTime, Lifetime: longestTime,
	}
	if e.inject && e.carries() {
		out.Credential, out.Inject = true, e.credential.Into(e.ctx)
	}
	resp, refusal := e.gateway.Send(e.ctx, out, r)
	if refusal != nil {
		return nil, e.explained(refusal)
	}
	if err := scrub.Response(resp, e.credential.Values(), e.scrub); err != nil {
		return nil, broken(errors.Join(err, resp.Body.Close()))
	}
	return resp, nil
}

// carries says whether the credential may go with the next hop: to the origin of its service, as a tool that names the
// service allows. Other hops that the agent's tools allow go without it.
func (e *outbound) carries() bool {
	if e.named == nil || !access.SameOrigin(e.url, e.origin) {
		return false
	}
	to, err := hostport.FromURL(e.url)
	return err == nil && e.named.Decide(policy.Request{Scheme: policy.Scheme(e.url.Scheme), Host: to.Host(), Port: to.Port(),
		Method: e.method, Path: e.url.EscapedPath()}).Allowed
}

// explained says what an agent can do about a refusal.
func (e *outbound) explained(p *problem.Error) *problem.Error {
	if failure := e.credential.Failure(); failure != nil {
		p = failure
	}
	if access.Decided(p) {
		place := e.url.Scheme + "://" + e.url.Host + e.url.EscapedPath()
		denied := problem.Wrap(p, problem.ToolDenied,
			`Do not retry: this is policy, not an outage. If the task needs it, ask once: POST /v1/access-requests {"kind": "tool", "target": "`+
				e.method+" "+place+" "+e.service+`", "reason": "…"}.`,
			"no tool of this agent allows %s %s%s", e.method, place, with(e.service))
		denied.Details = p.Details
		p = denied
	}
	if e.redirects > 0 {
		p = p.With("redirects", e.redirects)
	}
	return p
}

func with(service string) string {
	if service == "" {
		return ""
	}
	return " with the credential of the service " + service
}

// inTime turns what a timeout looks like from below into one.
func (e *outbound) inTime(p *problem.Error) *problem.Error {
	if !errors.Is(e.ctx.Err(), context.DeadlineExceeded) {
		return p
	}
	switch p.Code {
	case problem.UpstreamUnreachable, problem.UpstreamFailed, problem.DNSFailed, problem.Canceled, problem.Internal:
		return problem.Wrap(p, problem.Timeout, "Ask the service for less, or try once more later.", "the service did not answer completely in time")
	}
	return p
}

// redirect returns where an answer leads; nil when it is the one that was asked for.
func (e *outbound) redirect(resp *http.Response) (*url.URL, *problem.Error) {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		return nil, nil
	}
	places := resp.Header.Values("Location")
	if !e.followed || len(places) != 1 {
		return nil, nil
	}
	var to *url.URL
	var refusal *problem.Error
	place, err := e.url.Parse(places[0])
	if err == nil {
		to, refusal = access.Target(place.String())
	}
	if err != nil || refusal != nil && (refusal.Code == problem.BadURL || refusal.Code == problem.BadHost) {
		// The service has written it, and not the agent.
		refusal = problem.New(problem.UpstreamFailed, `Set "follow": false to see the redirect itself.`, "the service redirected to an invalid URL")
	}
	if refusal != nil {
		return nil, refusal.With("redirects", e.redirects+1)
	}
	if e.how.Type == egress.InjectQuery {
		// A server that repeats the query repeats the credential, or what stands in its place now.
		to.RawQuery = inject.WithoutParameter(to.RawQuery, e.how.Name)
	}
	return to, nil
}

// turn makes the next hop (RFC 9110 §15.4). The credential stays behind where the origin changes, for good: a server
// that sends requests away and back again gets it once.
func (e *outbound) turn(status int, to *url.URL) {
	if status == http.StatusSeeOther && e.method != http.MethodHead ||
		(status == http.StatusMovedPermanently || status == http.StatusFound) && e.method == http.MethodPost {
		e.method, e.body = http.MethodGet, nil
		for _, name := range []string{"Content-Type", "Content-Encoding", "Content-Language", "Content-Location", "Digest", "Content-Digest", "Content-Md5"} {
			e.header.Del(name)
		}
	}
	if !access.SameOrigin(e.url, to) {
		e.inject = false
		inject.DropCredentials(e.header)
	}
	e.url = to
}
