package llm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/inject"
	"github.com/clawjail/clawjail/internal/gateway/scrub"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

// upstreamURL is where a path of the wire is at a provider. Base URLs are as the SDKs take them: OpenAI's ends in /v1
// (or in what a compatible provider has instead), Anthropic's and Ollama's do not. One without a path works for all,
// and one with /v1 for Anthropic too.
func upstreamURL(p egress.Provider, path string) (*url.URL, *problem.Error) {
	u, err := url.Parse(p.BaseURL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, problem.New(problem.UpstreamFailed, "an operator has to correct it; do not retry", "the base URL of the provider %s cannot be used", p.Name).
			With(detailRetry, false)
	}
	base := strings.TrimRight(u.EscapedPath(), "/")
	switch p.Wire {
	case egress.WireOpenAI:
		path = strings.TrimPrefix(path, "/v1")
		if base == "" {
			base = "/v1"
		}
	case egress.WireAnthropic:
		base = strings.TrimSuffix(base, "/v1")
	case egress.WireOllama:
		base = strings.TrimSuffix(base, "/api")
	}
	out := &url.URL{Scheme: u.Scheme, Host: u.Host, RawPath: base + path}
	if out.Path, err = url.PathUnescape(out.RawPath); err != nil {
		return nil, problem.New(problem.UpstreamFailed, "an operator has to correct it; do not retry", "the base URL of the provider %s cannot be used", p.Name).
			With(detailRetry, false)
	}
	return out, nil
}

// passedHeaders go from the agent to the provider; OpenAI-* does too, but for what chooses among the operator's accounts.
// Nothing else does: no credential of the agent's, no hop-by-hop field and nothing that a field could be nominated by.
func passedHeaders() []string {
	return []string{
		"Accept", "User-Agent", "Anthropic-Version", "Anthropic-Beta", "Idempotency-Key", "X-Client-Request-Id",
		"X-Stainless-Lang", "X-Stainless-Package-Version", "X-Stainless-Retry-Count", "X-Stainless-Runtime",
	}
}

func requestHeaders(from http.Header) http.Header {
	out := http.Header{}
	for _, name := range passedHeaders() {
		if values := from.Values(name); len(values) > 0 {
			out[http.CanonicalHeaderKey(name)] = values
		}
	}
	for name, values := range from {
		if strings.HasPrefix(name, "Openai-") && name != "Openai-Organization" && name != "Openai-Project" {
			out[name] = values
		}
	}
	return out
}

// answerHeaders go from the provider to the agent, with all that begin with one of the prefixes. Cookies do not, and
// not what names the operator's account.
func answerHeaders(from http.Header) http.Header {
	out := http.Header{}
	for name, values := range from {
		switch name {
		case "Openai-Organization", "Openai-Project", "Anthropic-Organization-Id":
			continue
		case "Content-Type", "Cache-Control", "Date", "Retry-After", "Retry-After-Ms", "X-Should-Retry", "Request-Id", "X-Request-Id":
			out[name] = values
			continue
		}
		for _, prefix := range []string{"Openai-", "Anthropic-", "X-Ratelimit-"} {
			if strings.HasPrefix(name, prefix) {
				out[name] = values
			}
		}
	}
	return out
}

// passedQuery is what may stand behind a path: version switches of SDKs and of Azure.
func passedQuery(from url.Values) string {
	out := url.Values{}
	for _, name := range []string{"beta", "api-version"} {
		if v := from.Get(name); v != "" && len(v) <= 64 {
			out.Set(name, v)
		}
	}
	return out.Encode()
}

// keyUse is how a provider's key goes into one request, and out of its answer.
type keyUse struct {
	h         *Handler
	ctx       context.Context
	name      vault.SecretName
	injection egress.Injection
	none      bool // no key goes in

	// tried says that the connection was open, so that the request may have reached the provider.
	tried  bool
	err    error // of the last Inject
	values *redact.Values
}

// key finds out how the key of a provider goes in, and makes sure that it can: what is wrong is found before anything is
// debited or sent.
func (h *Handler) key(ctx context.Context, c gateway.Caller, p egress.Provider) (*keyUse, *problem.Error) {
	k := &keyUse{h: h, ctx: ctx, injection: p.Inject, name: vault.SecretName{Tenant: c.Tenant, Agent: c.Agent, Service: p.Secret}}
	if k.name.Service == "" {
		k.name.Service = p.Name
	}
	optional := false
	if k.injection.Type == "" {
		switch p.Wire {
		case egress.WireAnthropic:
			k.injection = egress.Injection{Type: egress.InjectHeader, Name: "X-Api-Key"}
		case egress.WireOllama:
			optional = p.Secret == ""
			fallthrough
		default:
			k.injection = egress.Injection{Type: egress.InjectBearer}
		}
	}
	if k.injection.Type == egress.InjectNone {
		k.none = true
		return k, nil
	}
	home, refusal := upstreamURL(p, "/")
	if refusal != nil {
		return nil, refusal
	}
	err := h.Secrets.UseSecret(ctx, k.name, vault.Origin(home), func(v secret.Value) error {
		_, err := inject.Into(&http.Request{URL: &url.URL{}, Header: http.Header{}}, k.injection, v)
		return err
	})
	if err == nil {
		return k, nil
	}
	if problem.CodeOf(err) == problem.NotFound && optional {
		k.none, k.injection = true, egress.Injection{Type: egress.InjectNone}
		return k, nil
	}
	return nil, keyProblem(err, p)
}

func keyProblem(err error, p egress.Provider) *problem.Error {
	name := p.Secret
	if name == "" {
		name = p.Name
	}
	switch code := problem.CodeOf(err); code {
	case problem.NotFound:
		return problem.Wrap(err, problem.CredentialMissing, "an operator has to store it with clawjail secret set "+name+"; do not retry",
			"the key of the provider %s is not in the vault", p.Name)
	case problem.SecretNotBound:
		p, _ := problem.As(err)
		return p
	case problem.Internal:
		return problem.Wrap(err, problem.DatabaseUnavailable, "try again later", "the key of the provider %s cannot be read at the moment", p.Name)
	default:
		return problem.Wrap(err, code, "tell the operator of this agent", "the key of the provider %s cannot be used", p.Name)
	}
}

// inject is gateway.OutboundRequest's Inject.
func (k *keyUse) inject(r *http.Request) error {
	k.err = nil
	if k.none {
		k.tried = true
		return nil
	}
	k.err = k.h.Secrets.UseSecret(k.ctx, k.name, vault.Origin(r.URL), func(v secret.Value) error {
		texts, err := inject.Into(r, k.injection, v)
		if err != nil {
			return err
		}
		k.values.Wipe()
		k.values = redact.New(texts...)
		for _, text := range texts {
			clear(text)
		}
		return nil
	})
	if k.err != nil {
		return k.err
	}
	k.tried = true
	if k.h.Used != nil {
		k.h.Used(k.name)
	}
	return nil
}

// call is one request to a provider.
type call struct {
	provider egress.Provider
	model    string // by which the provider is found
	caller   gateway.Caller
	key      *keyUse
	method   string
	path     string
	query    string
	header   http.Header
	body     []byte
}

// scrubOptions are how a key is taken out of answers.
func scrubOptions() scrub.Options {
	return scrub.Options{Scrub: egress.ScrubRedact, Compressed: egress.CompressedDecode, MaxDecoded: longestAnswer}
}

// send sends a request and takes the key out of the answer. sent says that the provider may have seen the request,
// also when there is no answer.
func (h *Handler) send(ctx context.Context, c call) (resp *http.Response, sent bool, p *problem.Error) {
	target, p := upstreamURL(c.provider, c.path)
	if p != nil {
		return nil, false, p
	}
	target.RawQuery = c.query
	r, err := http.NewRequestWithContext(ctx, c.method, target.String(), bytes.NewReader(c.body))
	if err != nil {
		return nil, false, problem.Wrap(err, problem.UpstreamFailed, "an operator has to correct the provider",
			"the base URL of the provider %s cannot be used", c.provider.Name)
	}
	if len(c.body) == 0 {
		r.Body, r.GetBody, r.ContentLength = http.NoBody, nil, 0
	}
	r.Header = c.header
	if c.method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	// An answer that is counted and scrubbed has to be readable.
	r.Header.Set("Accept-Encoding", "identity")
	scrub.PrepareRequest(r.Header, scrubOptions())
	errand := gateway.OutboundRequest{
		Caller: c.caller, Surface: gateway.SurfaceLLM, Permit: h.permit(c), Service: c.provider.Name, Credential: !c.key.none,
		Inject: c.key.inject, Lifetime: lifetime,
	}
	resp, p = h.Gateway.Send(ctx, errand, r)
	switch {
	case c.key.err != nil:
		if resp != nil {
			_ = resp.Body.Close()
		}
		return nil, c.key.tried, keyProblem(c.key.err, c.provider)
	case p != nil:
		return nil, c.key.tried, p
	case resp == nil:
		return nil, c.key.tried, problem.New(problem.Internal, "", problem.Unexpected)
	}
	if err := scrub.Response(resp, c.key.values, scrubOptions()); err != nil {
		// The answer is not passed on, so how its end went makes no difference.
		_ = resp.Body.Close()
		if p, ok := problem.As(err); ok {
			return nil, true, p
		}
		return nil, true, problem.Wrap(err, problem.UpstreamFailed, "", "the answer of the provider %s cannot be read", c.provider.Name)
	}
	return resp, true, nil
}

// errTooLong is an answer that goes on beyond what is passed.
var errTooLong = errors.New("the answer is longer than it may be")

// bounded reads at most n bytes of an answer; what goes on is an error, not a short answer.
type bounded struct {
	io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		// One byte more shows whether the answer ends here.
		var one [1]byte
		if n, err := b.Reader.Read(one[:]); n == 0 {
			return 0, err
		}
		return 0, errTooLong
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// permit returns what decides about requests to the call's provider. Another provider that its model has now denies them.
func (h *Handler) permit(c call) func() *policy.Compiled {
	caller, wire, id, model := c.caller, c.provider.Wire, c.provider.ID, c.model // and not the body
	return func() *policy.Compiled {
		v := h.views(caller)
		if v == nil {
			return nil
		}
		found, permit, ok := v.Provider(wire, model)
		if ok && found.ID != id {
			return nil
		}
		return permit
	}
}

// sampleModel makes up a model that a pattern of the provider covers, for requests that are about no model: a view finds providers by
// models. There is none when other providers come before it for all of them.
func sampleModel(v view, p egress.Provider) (string, bool) {
	for _, pattern := range p.Models {
		model := strings.ReplaceAll(pattern, "*", "x")
		if found, _, ok := v.Provider(p.Wire, model); ok && found.ID == p.ID {
			return model, true
		}
	}
	return "", false
}
