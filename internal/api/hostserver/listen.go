package hostserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// lookLimit bounds the look at who has a port already.
const lookLimit = time.Second

// Listen opens both ports. They are loopback's; a control URL of another machine is only connected to. When somebody
// else has one, the error says who, as far as that can be seen.
func Listen(ctx context.Context, settings config.HostBrowser) (control, devtools net.Listener, err error) {
	first, second, ok := settings.Local()
	if !ok {
		return nil, nil, problem.New(problem.BadConfig, "run it on that machine, or set browser.control_url to http://127.0.0.1:18791",
			"the control URL %s names another machine, on which nothing can be served from here", settings.ControlURL)
	}
	if control, err = listen(ctx, first); err != nil {
		return nil, nil, err
	}
	if devtools, err = listen(ctx, second); err != nil {
		return nil, nil, errors.Join(err, control.Close())
	}
	return control, devtools, nil
}

// ListenForUser opens a free port of loopback. Where the system tells whose a connection is, those of other users are closed.
func ListenForUser(ctx context.Context, uid int) (net.Listener, error) {
	var l net.ListenConfig
	listener, err := l.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen on loopback: %w", err)
	}
	return ownListener{listener, uid}, nil
}

type ownListener struct {
	net.Listener
	uid int
}

// Accept returns the next connection of the user.
func (l ownListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || fromUser(conn, l.uid) {
			return conn, err
		}
		_ = conn.Close() // nothing was said on it
	}
}

func listen(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	var l net.ListenConfig
	listener, err := l.Listen(ctx, "tcp", at.String())
	if err == nil {
		return listener, nil
	}
	hint := "stop what uses it, or set browser.control_url to another port: the DevTools endpoint is at the next one"
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, problem.New(problem.Conflict, hint, "the port %s is in use, and not by the browser of this user: %s", at, whoHas(ctx, at))
	}
	return nil, problem.Wrap(err, problem.Conflict, hint, "the host browser cannot listen on %s", at)
}

// whoHas says what can be seen of who listens on a port.
func whoHas(ctx context.Context, at netip.AddrPort) string {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	who := portOwner(at)
	target := url.URL{Scheme: "http", Host: at.String(), Path: "/"}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return who
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	response, err := client.Do(request)
	if err != nil {
		return who + "; it does not speak HTTP"
	}
	_ = response.Body.Close() // nothing of it is wanted
	what := response.Header.Get("Server")
	if what == "" {
		return fmt.Sprintf("%s; it answers HTTP with %d", who, response.StatusCode)
	}
	if what == Name {
		return who + "; it is the host browser of somebody, with another token"
	}
	return fmt.Sprintf("%s; it answers HTTP as %q", who, cut(what))
}
