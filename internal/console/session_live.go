package console

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/api/live"
	"github.com/clawjail/clawjail/internal/api/socket"
	"github.com/clawjail/clawjail/internal/problem"
)

// sessionLive shows a session over a WebSocket, until it ends, or the sign-in, or the server. See package live.
func (c *Console) sessionLive(q *request) error {
	if !ownPage(q.r) {
		return problem.New(problem.Forbidden, "open the console and look there", "the live view is for the console's own pages")
	}
	if !socket.Asked(q.r.Header) {
		return problem.New(problem.BadRequest, "open the page of the session", "the live view is a WebSocket")
	}
	id := q.value("id")
	viewer, err := c.Sessions.Watch(q.ctx(), q.by, id)
	if err != nil {
		return err
	}
	defer func() {
		if err := viewer.Close(); err != nil {
			c.Log.Warn("end a live view", "session", id, "error", err)
		}
	}()
	q.started = true
	why := live.Serve(q.ctx(), q.w, q.r, viewer, c.Log)
	c.Log.Debug("a live view has ended", "session", id, "reason", why)
	return nil
}

// ownPage says whether a page of the console's sent a request for a WebSocket, which browsers let every page do, with the
// cookies of the site. Browsers always say the origin.
func ownPage(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	if len(origins) != 1 {
		return false
	}
	u, err := url.Parse(origins[0])
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, r.Host)
}

// watchPage is for people without a key: the live view of one session, with a token that is behind the # of the address and
// so in no log of this server. The page holds nothing; it uses the API with the token.
func (c *Console) watchPage(w http.ResponseWriter, r *http.Request) {
	q := &request{c: c, w: w, r: r}
	if err := q.show("watch", "Watch a browser", liveView{MaySteer: true}); err != nil {
		c.fail(q, err)
	}
}
