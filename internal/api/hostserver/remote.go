package hostserver

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"github.com/clawjail/clawjail/internal/base/keypair"
	"github.com/clawjail/clawjail/internal/browser/host"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// Remote is what serves other machines: both ports with TLS, and a token that is not the one of this machine.
type Remote struct {
	At                config.RemoteBrowser
	Control, Devtools net.Listener
	token             host.Token
	cert              *keypair.Pair
}

// ListenRemote opens both ports for other machines. The token is made where it is missing.
func ListenRemote(ctx context.Context, at config.RemoteBrowser, log *slog.Logger) (*Remote, error) {
	pair, err := keypair.Load(at.TLS.Cert, at.TLS.Key, log)
	if err != nil {
		return nil, problem.Wrap(err, problem.BadConfig, "set browser.tls to a certificate and its key, as PEM", "the certificate for other machines cannot be used")
	}
	token, err := host.EnsureToken(at.Token)
	if err != nil {
		return nil, err
	}
	control, err := listen(ctx, at.Listen)
	if err != nil {
		return nil, err
	}
	devtools, err := listen(ctx, at.Devtools())
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	return &Remote{At: at, Control: tls.NewListener(control, pair.Config()), Devtools: tls.NewListener(devtools, pair.Config()), token: token, cert: pair}, nil
}

// Close closes the ports of a server that was not started.
func (r *Remote) Close() error { return errors.Join(r.Control.Close(), r.Devtools.Close()) }

// far is the server as other machines see it: the same browser, clients and end, with its own token, ticket and names.
func (s *Server) far() *Server {
	far := *s
	far.token, far.ticket, far.cert = s.remote.token, newTicket(), s.remote.cert
	return &far
}

// newTicket makes what DevTools clients show in an address.
func newTicket() string {
	var random [16]byte
	rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// scheme is the beginning of an address of this server, such as https://.
func scheme(r *http.Request, plain string) string {
	if r.TLS != nil {
		return plain + "s://"
	}
	return plain + "://"
}
