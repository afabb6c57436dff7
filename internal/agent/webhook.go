package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

const (
	// webhookPort is where an agent listens, on the loopback of its own jail, and webhookPath what it is asked for.
	webhookPort = 8000
	webhookPath = "/webhook"
	webhookTime = 30 * time.Second
	maxWebhook  = 1 << 20 // bytes of a body, there and back
)

// Webhook implements Agents.
func (s *Service) Webhook(ctx context.Context, by identity.Principal, tenant, name string, w WebhookCall) (WebhookAnswer, error) {
	a, err := s.whose(ctx, by, identity.AgentWebhook, tenant, name)
	if err != nil {
		return WebhookAnswer{}, err
	}
	if len(w.Body) > maxWebhook {
		return WebhookAnswer{}, problem.New(problem.TooLarge, "send less, or put it into the agent's workspace", "the body has %d bytes, more than %d", len(w.Body), maxWebhook)
	}
	leave, err := s.wait(quota.Holder{Tenant: a.Tenant, Agent: by.AgentID()})
	if err != nil {
		return WebhookAnswer{}, err
	}
	defer leave()
	to, err := s.listening(ctx, a)
	if err != nil {
		return WebhookAnswer{}, err
	}
	var out WebhookAnswer
	err = s.recorded(ctx, by, identity.AgentWebhook, a, audit.Fields{"bytes": len(w.Body), "jail": string(to)}, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, webhookTime)
		defer cancel()
		out, err = s.post(ctx, to, w)
		return err
	})
	return out, err
}

// listening is the jail of an agent that takes requests.
func (s *Service) listening(ctx context.Context, a identity.Agent) (jail.Name, error) {
	declared, err := s.declarations(ctx, a.Tenant)
	if err != nil {
		return "", err
	}
	if d := declared[a.Name]; d == nil || d.damaged || !d.Agent.Webhook {
		return "", problem.New(problem.Conflict, "declare it with webhook: true", "the agent %s is not declared to take webhooks", a.Name)
	}
	kept, err := s.keptOf(ctx, a.Tenant)
	if err != nil {
		return "", err
	}
	k, is := kept[a.Name]
	if !is {
		return "", noJail(a)
	}
	if k.Phase != jail.PhaseRunning || k.Jail == "" {
		return "", problem.New(problem.Conflict, "look at it: clawjail agent show "+a.Name, "the jail of %s does not run", a.Name)
	}
	return k.Jail, nil
}

// post sends one request, over one connection. The answer is from the jail: it is bounded, and no redirect is followed.
func (s *Service) post(ctx context.Context, to jail.Name, w WebhookCall) (WebhookAnswer, error) {
	transport := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			file, err := s.o.Keeper.DialIn(ctx, to, webhookPort)
			if err != nil {
				return nil, err
			}
			conn, err := net.FileConn(file)
			return conn, errors.Join(err, file.Close())
		},
	}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:8000"+webhookPath, bytes.NewReader(w.Body))
	if err != nil {
		return WebhookAnswer{}, fmt.Errorf("make the request: %w", err)
	}
	r.Header.Set("Content-Type", contentType(w.ContentType))
	r.Header.Set("User-Agent", "clawjail")
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return WebhookAnswer{}, unanswered(ctx, err)
	}
	defer answer.Body.Close() // it was read as far as it is of use
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxWebhook+1))
	if err != nil {
		return WebhookAnswer{}, unanswered(ctx, err)
	}
	if len(body) > maxWebhook {
		return WebhookAnswer{}, problem.New(problem.UpstreamFailed, "let the agent answer with less", "the agent's answer has more than %d bytes", maxWebhook)
	}
	return WebhookAnswer{Status: answer.StatusCode, ContentType: contentType(answer.Header.Get("Content-Type")), Body: body}, nil
}

// unanswered says why there is no answer. It does not repeat data that the jail sent.
func unanswered(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(ctx.Err(), context.DeadlineExceeded):
		return problem.Wrap(err, problem.Timeout, "let the agent answer at once, and work afterwards", "the agent did not answer within %s", webhookTime)
	case ctx.Err() != nil:
		return ctx.Err()
	}
	if p, ok := problem.As(err); ok {
		return p
	}
	// The error may quote what the jail sent instead, and is left out.
	return problem.New(problem.UpstreamFailed, fmt.Sprintf("the agent must answer POST %s on port %d of its jail", webhookPath, webhookPort),
		"the agent did not answer the webhook")
}

// contentType is a type that can be sent on.
func contentType(text string) string {
	kind, parameters, err := mime.ParseMediaType(text)
	if err != nil || len(text) > 200 {
		return "application/octet-stream"
	}
	if out := mime.FormatMediaType(kind, parameters); out != "" {
		return out
	}
	return "application/octet-stream"
}
