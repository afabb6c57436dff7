package api

import (
	"net/http"

	"github.com/clawjail/clawjail/internal/api/socket"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

var errNotSocket = problem.New(problem.BadRequest, "connect with a WebSocket; DevTools clients ask for /json/version below this address",
	"the DevTools endpoint is a WebSocket")

// devtools hands a WebSocket to a DevTools client of the session. It returns when that has ended. A caller that is
// refused gets an answer of HTTP, before there is a WebSocket.
func (a *API) devtools(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	a.sockets.Add(1)
	defer a.sockets.Done()
	ctx, release := untilTheEnd(req.Context())
	defer release()
	client, err := a.Sessions.Attach(ctx, by, req.PathValue("id"))
	if err != nil {
		return err
	}
	defer func() {
		if err := client.Close(); err != nil {
			a.Log.Warn("detach a DevTools client", "session", req.PathValue("id"), "error", err)
		}
	}()
	if !socket.Asked(req.Header) {
		return errNotSocket // only told to who may: others hear that they may not
	}
	// Origins of others were refused before.
	why := socket.Serve(ctx, w, req, client)
	a.Log.Debug("a DevTools client has ended", "session", req.PathValue("id"), "reason", why)
	return nil
}
