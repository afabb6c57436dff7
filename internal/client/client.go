// Package client talks to a control plane over its HTTP API. It is what the command line, the self-test and the
// benchmarks are built on.
//
// An error is a problem with the code that the control plane gave it, or control_plane_unreachable.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// maxAnswer bounds what is read of an answer that is no file's.
const maxAnswer = 80 << 20

// Client is a client of one control plane. It may be used concurrently.
type Client struct {
	base *url.URL
	key  string
	http *http.Client
}

// New makes a client with a key: the admin's, an operator's or an agent's. Nothing is contacted.
func New(base *url.URL, key string) *Client {
	return &Client{base: base, key: key, http: &http.Client{
		// No proxy of the environment: the key is for the control plane alone.
		Transport: &http.Transport{Proxy: nil, DisableCompression: true, MaxIdleConnsPerHost: 32},
		// The API never redirects, and the key must not follow one.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// NewOwn makes a client of this machine's control plane, whose certificate is in a file. A server that shows that one is believed, whatever names and
// authority it has, and anybody else as by [New].
func NewOwn(base *url.URL, key, certificate string) *Client {
	c := New(base, key)
	c.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{
		InsecureSkipVerify: true, // VerifyConnection does
		VerifyConnection: func(s tls.ConnectionState) error {
			leaf := s.PeerCertificates[0]
			if shows(certificate, leaf) {
				return nil
			}
			o := x509.VerifyOptions{DNSName: base.Hostname(), Intermediates: x509.NewCertPool()}
			for _, one := range s.PeerCertificates[1:] {
				o.Intermediates.AddCert(one)
			}
			if _, err := leaf.Verify(o); err != nil {
				return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
			}
			return nil
		},
	}
	return c
}

// shows says whether the first certificate of a file is that one. The file may be renewed at any time.
func shows(file string, leaf *x509.Certificate) bool {
	text, err := os.ReadFile(file)
	if err != nil {
		return false // it may be root's
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return leaf.Equal(&x509.Certificate{Raw: block.Bytes})
		}
	}
	return false
}

// CloseIdle closes the connections that no request uses.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// Open opens a session.
func (c *Client) Open(ctx context.Context, r session.OpenRequest) (session.Session, error) {
	return Call(ctx, c, op.OpenSession(), op.SessionOpened{Body: op.With(r)})
}

// Get returns one session.
func (c *Client) Get(ctx context.Context, id string) (session.Session, error) {
	return Call(ctx, c, op.ShowSession(), op.SessionNamed{ID: id})
}

// List returns the sessions; with all, also those that are closing or ended in the last ten minutes.
func (c *Client) List(ctx context.Context, all bool) ([]session.Session, error) {
	out, err := Call(ctx, c, op.ListSessions(), op.SessionsListed{All: all})
	return out.Sessions, err
}

// Close closes a session; with wait it returns when nothing of it is left.
func (c *Client) Close(ctx context.Context, id string, wait bool) error {
	_, err := Call(ctx, c, op.CloseSession(), op.SessionClosed{SessionNamed: op.SessionNamed{ID: id}, Wait: wait})
	return err
}

// Status is how everything is doing.
func (c *Client) Status(ctx context.Context) (out health.Status, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/status", nil, nil, &out)
	return out, err
}

// Health is what a control plane says that answers. It needs no key.
func (c *Client) Health(ctx context.Context) (out api.Health, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/health", nil, nil, &out)
	return out, err
}

// Info describes the installation.
func (c *Client) Info(ctx context.Context) (out api.Info, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/info", nil, nil, &out)
	return out, err
}

// Metrics are the numbers of the control plane, as Prometheus reads them.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	response, err := c.send(ctx, http.MethodGet, "/metrics", nil, nil)
	if err != nil {
		return nil, err
	}
	return whole(ctx, response)
}

func sessionPath(id string, more ...string) string {
	return pathOf("sessions", append([]string{id}, more...)...)
}

// pathOf is the path of a thing. A name of a caller's is one segment, whatever is in it.
func pathOf(kind string, more ...string) string {
	path := "/v1/" + kind
	for _, m := range more {
		path += "/" + url.PathEscape(m)
	}
	return path
}

// ofTenant is the query that names a tenant; empty leaves it to the control plane.
func ofTenant(tenant string) url.Values {
	if tenant == "" {
		return nil
	}
	return url.Values{"tenant": {tenant}}
}

// do makes a request. body is encoded unless it is nil. The answer is decoded into out.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, body, out any) error {
	var reader io.Reader
	if body != nil {
		text, err := api.Encode(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(text)
	}
	response, err := c.send(ctx, method, path, query, reader)
	if err != nil {
		return err
	}
	data, err := whole(ctx, response)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("read the answer of the control plane: %w", err)
	}
	return nil
}

// whole is an answer, read to its end. One that is a problem is an error.
func whole(ctx context.Context, response *http.Response) ([]byte, error) {
	return wholeUpTo(ctx, response, maxAnswer)
}

func wholeUpTo(ctx context.Context, response *http.Response, limit int64) ([]byte, error) {
	defer response.Body.Close() // read to its end, or given up
	data, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return nil, brokeOff(ctx, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("the answer of the control plane has more than %d bytes", limit)
	}
	if response.StatusCode/100 != 2 {
		return nil, refusal(response, data)
	}
	return data, nil
}

// send makes a request, and returns the answer, whatever it is.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Response, error) {
	target, err := c.at(path)
	if err != nil {
		return nil, err
	}
	target.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return c.ask(request)
}

// at is an address of the control plane's.
func (c *Client) at(path string) (*url.URL, error) {
	target := c.base.JoinPath(path)
	if !strings.HasSuffix("/"+strings.TrimPrefix(target.EscapedPath(), "/"), path) {
		// A name such as ".." would make it the path of something else, which may be deleted then.
		return nil, problem.New(problem.NotFound, "list what there is, and check the name", "nothing that you may see has that name")
	}
	return target, nil
}

// ask sends a request with the key.
func (c *Client) ask(request *http.Request) (*http.Response, error) {
	if c.key != "" {
		request.Header.Set("Authorization", "Bearer "+c.key)
	}
	response, err := c.http.Do(request)
	if err != nil {
		if ctx := request.Context(); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var inner *url.Error // repeats method and address, which the message has
		if errors.As(err, &inner) {
			err = inner.Err
		}
		return nil, problem.Wrap(err, problem.ControlPlaneUnreachable, unreachableHint(err), "the control plane at %s does not answer", c.base.Host)
	}
	return response, nil
}

// brokeOff is the error of an answer that did not come to its end.
func brokeOff(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return problem.Wrap(err, problem.ControlPlaneUnreachable, "try again", "the answer of the control plane broke off")
}

const notOurs = "is it clawjail that listens there? look at listen in the configuration"

func unreachableHint(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return "start it: sudo clawjail up"
	}
	return notOurs
}

// refusal is an answer that is an error. One that is not a problem of ours comes from somebody else's server.
func refusal(response *http.Response, data []byte) error {
	p, ok := control.ReadProblem(data)
	if !ok {
		return problem.New(problem.ControlPlaneUnreachable, notOurs,
			"what answers at %s is not the control plane: it says %s", response.Request.URL.Host, response.Status)
	}
	return p
}
