package api

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/api/live"
	"github.com/clawjail/clawjail/internal/api/socket"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// viewing is somebody who watches a session.
type viewing interface {
	live.Viewer
	io.Closer
}

// thumbnail is a picture with the time of its making.
type thumbnail struct {
	ContentType  string    `header:"Content-Type"`
	LastModified time.Time `header:"Last-Modified"`
	Body         []byte
}

func (a *API) liveRoutes() {
	token := &huma.Param{Name: tokenParameter, In: "query", Schema: &huma.Schema{Type: huma.TypeString},
		Description: "a token for the session with the scope view, or control to steer it, instead of a key in the header"}
	a.plain(route{method: http.MethodGet, path: ofSession + "/live", id: "live", summary: "See a session live, and steer it: a WebSocket"},
		[]*huma.Param{sessionID(), token}, nil, a.live)
	add(a, route{method: http.MethodGet, path: ofSession + "/thumbnail", id: "thumbnail", summary: "A small picture of a session", images: true}, a.thumbnail)
}

var errNotLive = problem.New(problem.BadRequest, "connect with a WebSocket; what it says is in docs/live.md", "the live view is a WebSocket")

// watch adds a viewer to a session.
func (a *API) watch(ctx context.Context, by identity.Principal, id string) (viewing, error) {
	viewer, err := a.Sessions.Watch(ctx, by, id)
	if err != nil {
		return nil, err // and no viewer that is a nil one
	}
	return viewer, nil
}

// live shows a session over a WebSocket. It returns when that has ended. A caller that is refused gets an
// answer of HTTP, before there is a WebSocket.
func (a *API) live(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	a.sockets.Add(1)
	defer a.sockets.Done()
	ctx, release := untilTheEnd(req.Context())
	defer release()
	id := req.PathValue("id")
	viewer, err := a.watching(ctx, by, id)
	if err != nil {
		return err
	}
	defer func() {
		if err := viewer.Close(); err != nil {
			a.Log.Warn("end a live view", "session", id, "error", err)
		}
	}()
	if !socket.Asked(req.Header) {
		return errNotLive // only told to who may: others hear that they may not
	}
	// Origins of others were refused before.
	why := live.Serve(ctx, w, req, viewer, a.Log)
	a.Log.Debug("a live view has ended", "session", id, "reason", why)
	return nil
}

func (a *API) thumbnail(ctx context.Context, by identity.Principal, in *getInput) (*thumbnail, error) {
	data, at, err := a.Sessions.Thumbnail(ctx, by, in.ID)
	if err != nil {
		return nil, err
	}
	return &thumbnail{ContentType: "image/jpeg", LastModified: at, Body: data}, nil
}
