package console

import (
	"bytes"
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/session"
)

// tilesShown is how many sessions, and how many agents, the overview has pictures of. The rest is one link away.
const tilesShown = 24

func (c *Console) overviewRoutes() {
	c.get("/overview", c.overviewPart)
	c.get("/menu", c.navigation)
	c.get("/sessions/{id}/thumbnail", c.thumbnail)
}

// overviewData is what the first page shows.
type overviewData struct {
	// Machine is nil for who has only one tenant: the machine is everybody's.
	Machine       *health.Machine
	Status        session.Status
	Running, Kept int // agents
	// Unwatched says that nobody knows which agents run.
	Unwatched    bool
	Attention    []attention
	Sessions     []sessionTile
	MoreSessions int
	Agents       []agentTile
	MoreAgents   int
	// New says that there is nothing yet, and HasTemplate that the first step is done.
	New, HasTemplate bool
}

// sessionTile is one session with its picture.
type sessionTile struct {
	session.Session
	Path, Title, Opener string
	// Picture is the address of its thumbnail; empty when there is none to see. Held says who has it in hand.
	Picture, Held string
}

// agentTile is one agent, with the picture of its newest session.
type agentTile struct {
	Name, Tenant, Path string
	State, Problem     string
	Restarts, Sessions int
	// Picture is that of its newest session that has one, and Of the id of that.
	Picture, Of string
}

// overview is the first page.
func (c *Console) overview(q *request) error {
	data, err := c.overviewOf(q)
	if err != nil {
		return err
	}
	return q.show("overview", "Overview", data)
}

// overviewPart is what of it is kept up to date.
func (c *Console) overviewPart(q *request) error {
	if !q.fragment() {
		http.Redirect(q.w, q.r, Prefix+"/", http.StatusSeeOther)
		return nil
	}
	data, err := c.overviewOf(q)
	if err != nil {
		return err
	}
	return q.part("overview", "overview", data)
}

func (c *Console) overviewOf(q *request) (overviewData, error) {
	var out overviewData
	sessions, err := c.Sessions.List(q.ctx(), q.by, q.by.Tenant, false)
	if err != nil {
		return out, err
	}
	// That nobody can say how their jails are is one of the things that need attention.
	agents, _, err := c.agentRows(q)
	if err != nil {
		return out, err
	}
	out.Status = session.Status{Sessions: len(sessions)}
	if q.by.Tenant == "" {
		out.Status = c.Sessions.Status()
		out.machine(q)
	} else if out.Status.MaxSessions, err = c.placesOf(q); err != nil {
		return out, err
	}
	newest := map[string]sessionTile{} // those with a picture, by who opened them
	names := c.names(q.ctx(), q.by)
	slices.SortStableFunc(sessions, func(a, b session.Session) int { return b.Created.Compare(a.Created) })
	for _, s := range sessions {
		tile := tileOf(q.by, s, names.of(s.OpenedBy))
		if newest[s.OpenedBy].Picture == "" {
			newest[s.OpenedBy] = tile
		}
		if len(out.Sessions) < tilesShown {
			out.Sessions = append(out.Sessions, tile)
		}
	}
	out.MoreSessions = len(sessions) - len(out.Sessions)
	out.agentTiles(agents, newest)
	if out.Attention, err = c.attention(q); err != nil {
		return out, err
	}
	out.New = len(sessions) == 0 && len(agents) == 0
	out.HasTemplate = out.Machine == nil || len(out.Machine.Templates) > 0
	return out, nil
}

// placesOf is how many sessions the tenant of who asks may have.
func (c *Console) placesOf(q *request) (int, error) {
	uses, err := c.Health.Quotas(q.ctx(), q.by, q.by.Tenant)
	for _, u := range uses {
		if u.Kind == quota.Sessions().Name {
			return int(u.Max), err
		}
	}
	return 0, err
}

// machine asks how the host is doing. That nobody can say is one of the things that need attention, and no reason to show
// nothing.
func (d *overviewData) machine(q *request) {
	m, err := q.c.Health.Machine(q.ctx())
	if err != nil {
		q.c.Log.Warn("ask how the machine is doing", "error", err)
	}
	d.Machine = &m
}

func tileOf(by identity.Principal, s session.Session, opener string) sessionTile {
	out := sessionTile{Session: s, Path: Prefix + "/sessions/" + s.ID, Title: cmp.Or(s.Label, s.ID), Opener: opener}
	refresh := s.CredentialMode == string(session.ModeRefresh)
	if refresh {
		out.Path = Prefix + "/refresh/" + s.ID
	}
	switch {
	case s.Control != nil:
		out.Held = cmp.Or(s.Control.Name, s.Control.By)
	case s.State == session.StateReady && !refresh && identity.Can(by, identity.SessionLook, s.Tenant) == nil:
		out.Picture = Prefix + "/sessions/" + s.ID + "/thumbnail"
	}
	return out
}

// agentTiles are the agents, those first that somebody should look at.
func (d *overviewData) agentTiles(rows []agentRow, newest map[string]sessionTile) {
	for _, r := range rows {
		switch r.State {
		case "running":
			d.Running++
		case agent.StateUnwatched:
			d.Unwatched = true
		}
		if r.State != agent.StateNoJail && r.State != "revoked" && r.State != agent.StateUnfinished && r.State != agent.StateElsewhere {
			d.Kept++
		}
	}
	rank := func(r agentRow) int {
		switch {
		case r.Problem != "" || r.State == "failed" || r.State == crashLoop:
			return 0
		case r.State == "starting" || r.State == "waiting" || r.State == agent.StateUnwatched:
			return 1
		case r.Sessions > 0:
			return 2
		case r.State == "running":
			return 3
		}
		return 4
	}
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b agentRow) int { return cmp.Compare(rank(a), rank(b)) })
	for _, r := range rows[:min(len(rows), tilesShown)] {
		shown := newest["agent:"+r.ID] // none is a tile without a picture
		d.Agents = append(d.Agents, agentTile{Name: r.Name, Tenant: r.Tenant, Path: r.Path, State: r.State, Problem: r.Problem, Restarts: r.Restarts,
			Sessions: r.Sessions, Picture: shown.Picture, Of: shown.ID})
	}
	d.MoreAgents = len(rows) - len(d.Agents)
}

// thumbnail is a small picture of a session.
func (c *Console) thumbnail(q *request) error {
	picture, at, err := c.Sessions.Thumbnail(q.ctx(), q.by, q.value("id"))
	if err != nil {
		return err
	}
	q.started = true
	h := q.w.Header()
	h.Set("Content-Type", "image/jpeg")
	h.Set("Cache-Control", "private, max-age=2")
	h.Set("Content-Length", strconv.Itoa(len(picture)))
	h.Set("Last-Modified", at.UTC().Format(http.TimeFormat))
	http.ServeContent(q.w, q.r, "", time.Time{}, bytes.NewReader(picture))
	return nil
}
