package health

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/session/signedout"
)

const (
	// keyWarning is how long before the end of a key, a token or a certificate people are told.
	keyWarning = 7 * 24 * time.Hour
	// oldNews is how long after it they are told no more.
	oldNews = 7 * 24 * time.Hour
	// aKind is how many there are of one code; the rest is counted.
	aKind = 5
	// templateOld is the age from which on people are told of a template from packages: what is in it has had no updates since.
	templateOld = 30 * 24 * time.Hour
	// uncoveredLong is how old the last checkpoint may be while rows wait for one.
	uncoveredLong = time.Hour
)

// Level is how bad something is.
type Level string

// The levels. A part that has failed does not work; a notice waits for somebody.
const (
	Fine   Level = "ok"
	Notice Level = "notice"
	Failed Level = "failed"
)

// The codes of what needs somebody.
const (
	HostDaemonDown      = "host_daemon_down"
	ControlPlaneDown    = "control_plane_down"
	NoKey               = "no_key"
	UnitStopped         = "unit_stopped"
	MachineUnknown      = "machine_unknown"
	DatabaseDown        = "database_down"
	AuditBroken         = "audit_broken"
	AuditDown           = "audit_down"
	TemplateMissing     = "template_missing"
	TemplateBroken      = "template_broken"
	TemplateOld         = "template_old"
	NodeGone            = "node_lost"
	AgentsUnknown       = "agents_unknown"
	AgentBroken         = "agent_broken"
	AgentCrashes        = "agent_crashes"
	DiskLow             = "disk_low"
	VaultUnreadable     = "vault_unreadable"
	CertificateExpired  = "certificate_expired"
	PartUnknown         = "part_unknown"
	VersionsDiffer      = "versions_differ"
	AuditWaits          = "audit_waits"
	VaultRotating       = "vault_rotating"
	QuotaUsedUp         = "quota_used_up"
	Stray               = "stray"
	AccountNeedsLogin   = "account_needs_login"
	AccountExpiring     = "account_expiring"
	AccessAsked         = "access_asked"
	OperatorKeyExpired  = "operator_key_expired"
	OperatorKeyExpiring = "operator_key_expiring"
	AgentWithoutToken   = "agent_without_token"
	AgentTokenExpiring  = "agent_token_expiring"
	CertificateExpiring = "certificate_expiring"
)

// Subject is what an [Attention] is about, as far as it has a name.
type Subject struct {
	ID     string `json:"id,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	Name   string `json:"name,omitempty" doc:"of an account its domain"`
}

// Attention is something that somebody should look at, with what to do about it.
type Attention struct {
	Code     string    `json:"code"`
	Level    Level     `json:"level" enum:"notice,failed"`
	Sentence string    `json:"sentence"`
	Hint     string    `json:"hint,omitempty"`
	Command  string    `json:"command,omitempty" doc:"a command to begin with, on this machine"`
	At       time.Time `json:"at,omitzero" doc:"since when, or when it will be"`
	About    Subject   `json:"about,omitzero"`
	// More counts others of the same code that are not listed. It is at the last one that is.
	More int `json:"more,omitempty"`
}

// look is one look at everything, for one principal.
type look struct {
	*Service
	ctx context.Context
	by  identity.Principal

	all      []Attention
	machine  *Machine
	sessions *Sessioned
	agents   *AgentCount
	accounts *AccountCount
	waiting  *int
	audit    *AuditStatus
	database *DatabaseStatus
	nodes    []peer.Node
	quotas   []quota.Use
}

func (s *Service) look(ctx context.Context, by identity.Principal) *look {
	l := &look{Service: s, ctx: ctx, by: by}
	if by.Tenant == "" {
		l.lookMachine()
		l.lookRecords()
	}
	for _, part := range []struct {
		name string
		need identity.Operation
		look func() error
	}{
		{"the sessions", identity.SessionList, l.lookSessions}, {"the quotas", identity.TenantRead, l.lookQuotas},
		{"the agents", identity.AgentList, l.lookAgents},
		{"the accounts", identity.CookiesList, l.lookAccounts}, {"the requests for access", identity.AccessList, l.lookRequests},
		{"the operators", identity.OperatorList, l.lookOperators}, {"the vault", identity.VaultStatus, l.lookVault},
	} {
		if identity.Can(by, part.need, by.Tenant) != nil {
			continue // a refusal would be in the audit log
		}
		if err := part.look(); err != nil {
			l.failed(PartUnknown, "Nobody can say how "+part.name+" are doing: "+s.said("look at "+part.name, err)+".", "")
		}
	}
	return l
}

func (l *look) failed(code, sentence, hint string, about ...Subject) {
	l.add(Attention{Code: code, Level: Failed, Sentence: sentence, Hint: hint}, about...)
}

func (l *look) add(a Attention, about ...Subject) {
	for _, s := range about {
		a.About = s
	}
	l.all = append(l.all, a)
}

// listed is what was found, worst first, with what is too much of one code counted instead.
func (l *look) listed() []Attention { return listed(l.all) }

func listed(all []Attention) []Attention {
	of := map[string]int{}
	for _, a := range all {
		of[a.Code]++
	}
	seen := map[string]int{}
	out := []Attention{}
	for _, a := range all {
		if seen[a.Code]++; seen[a.Code] > aKind {
			continue
		}
		if seen[a.Code] == aKind {
			a.More = of[a.Code] - aKind
		}
		out = append(out, a)
	}
	rank := func(a Attention) int {
		if a.Level == Failed {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(out, func(a, b Attention) int { return cmp.Compare(rank(a), rank(b)) })
	return out
}

const newCertificate = "Put a new one at tls.cert and tls.key, where the control plane's user can read both. It is used at once."

func worst(all []Attention) Level {
	if len(all) == 0 {
		return Fine
	}
	return all[0].Level // they are sorted
}

func (l *look) lookMachine() {
	m, err := l.Service.Machine(l.ctx)
	if err != nil {
		l.failed(MachineUnknown, "Nobody can say how the machine is doing: "+l.said("ask how the machine is doing", err)+".", "")
		return
	}
	l.machine = &m
	l.all = append(l.all, m.attention(l.Version, l.Now())...)
	if c := l.Certificate.Leaf(); c != nil {
		switch end, now := c.NotAfter, l.Now(); {
		case !end.After(now):
			l.add(Attention{Code: CertificateExpired, Level: Failed, Sentence: "The certificate of the API has ended, so browsers and clients refuse it.",
				Hint: newCertificate, At: end})
		case end.Before(now.Add(2 * keyWarning)):
			l.add(Attention{Code: CertificateExpiring, Level: Notice, Sentence: "The certificate of the API ends soon.",
				Hint: newCertificate, At: end})
		}
	}
}

// attention lists what an operator has to look at on the machine. version is that of this control plane; empty is not compared.
func (m Machine) attention(version string, now time.Time) (out []Attention) {
	if !m.Reachable {
		return []Attention{{Code: HostDaemonDown, Level: Failed, Sentence: "The host daemon does not answer, so nothing new can be opened, and agents are not watched.",
			Hint: "Start it, or look at its log. Agents run on meanwhile, and none that ends is started again.", Command: "clawjail doctor"}}
	}
	if m.DiskTotal > 0 && m.DiskFree < m.DiskTotal/20 && m.DiskFree < 2<<30 {
		out = append(out, Attention{Code: DiskLow, Level: Failed, Sentence: "The disk of the data folder is nearly full.",
			Hint: "Free some space: nothing is done that cannot be recorded, and a full disk stops everything.", Command: "clawjail doctor"})
	}
	if len(m.Templates) == 0 {
		out = append(out, Attention{Code: TemplateMissing, Level: Failed, Sentence: "There is no template, so no session can be opened.",
			Hint: "Build the one for browsers. With systemd the first start does: journalctl -u clawjail-template.", Command: "sudo clawjail template build browser"})
	}
	for _, t := range m.Templates {
		switch days := int(now.Sub(t.BuiltAt) / (24 * time.Hour)); {
		case t.Problem != "":
			out = append(out, Attention{Code: TemplateBroken, Level: Failed, Sentence: "The template " + t.Name + " cannot be used: " + t.Problem, Hint: "Build it again, as it was built.",
				Command: cmp.Or(t.Again, "sudo clawjail template ls"), About: Subject{Name: t.Name}})
		case t.Again != "" && !t.BuiltAt.IsZero() && now.Sub(t.BuiltAt) >= templateOld:
			out = append(out, Attention{Code: TemplateOld, Level: Notice, Sentence: fmt.Sprintf("The template %s was built %d days ago: what is in it has had no security updates since.", t.Name, days),
				Hint: "Build it again: open sessions and agents go on with the old one until they end.", Command: t.Again, At: t.BuiltAt, About: Subject{Name: t.Name}})
		}
	}
	if version != "" && m.HostVersion != "" && m.HostVersion != version {
		out = append(out, Attention{Code: VersionsDiffer, Level: Notice, Sentence: fmt.Sprintf("The host daemon is %s and the control plane %s.", m.HostVersion, version),
			Hint: "Restart the older one: its program on disk was replaced."})
	}
	if len(m.Orphans) > 0 {
		things := "1 thing"
		if len(m.Orphans) > 1 {
			things = fmt.Sprintf("%d things", len(m.Orphans))
		}
		out = append(out, Attention{Code: Stray, Level: Notice, Sentence: fmt.Sprintf("%s that should not be on this machine: %s", things, short(160, m.Orphans[0])),
			Hint: "The host daemon removes such things by itself within some minutes; look again then.", Command: "sudo clawjail reap"})
	}
	return out
}

// ofNodes lists what an operator has to look at among the control planes of the database, as one of them sees it.
func ofNodes(nodes []peer.Node, version string, now time.Time) (out []Attention) {
	for _, n := range nodes {
		about := Subject{Name: n.Name}
		switch {
		case n.State == peer.NodeStopped || n.State == peer.NodeLost && now.Sub(n.SeenAt) >= oldNews:
		case n.State == peer.NodeLost:
			out = append(out, Attention{Code: NodeGone, Level: Notice, Sentence: "The control plane " + n.Name + " is lost, and its sessions with it.",
				Hint: "Start it again, or see whether its machine is there.", At: n.SeenAt, About: about})
		case n.Version != version:
			out = append(out, Attention{Code: VersionsDiffer, Level: Notice, Sentence: fmt.Sprintf("The control plane %s is %s and this one %s.", n.Name, n.Version, version),
				Hint: "Update the older one: what only the newer one knows is not there at both.", About: about})
		}
	}
	return out
}

func (l *look) lookRecords() {
	l.audit, l.database = l.auditStatus(), l.databaseStatus(l.ctx)
	if l.Nodes != nil {
		l.nodes, _ = l.Nodes(l.ctx, l.by) // of a database that does not answer is told below
	}
	l.all = append(l.all, ofNodes(l.nodes, l.Version, l.Now())...)
	if d := l.database; d != nil && !d.Answers {
		l.failed(DatabaseDown, "The database does not answer or cannot be written to, so nothing new is begun.", "See whether it runs and its disk has room; the log says what it answers.")
	}
	a := l.audit
	switch {
	case a == nil:
	case a.Broken:
		l.add(Attention{Code: AuditBroken, Level: Failed, Sentence: "The hash chain of the audit log of this node is broken, so nothing is recorded and nothing is done.",
			Hint: "See where.", Command: "sudo clawjail audit verify"})
	case a.Down:
		l.failed(AuditDown, "The audit log cannot be written to, so nothing new is begun.", "See whether the database runs and its disk has room.")
	case a.Spilled > 0 || a.Lost > 0:
		l.add(Attention{Code: AuditWaits, Level: Notice, Sentence: fmt.Sprintf("%d audit records wait in the file beside the database, %d found no place.", a.Spilled, a.Lost),
			Hint: "They are taken over when the database takes them; look again in a minute."})
	case a.Uncovered > 0 && !a.Checkpoint.IsZero() && l.Now().Sub(a.Checkpoint) > uncoveredLong:
		l.add(Attention{Code: AuditWaits, Level: Notice, Sentence: fmt.Sprintf("%d audit records are behind the last checkpoint, which is old.", a.Uncovered),
			Hint: "The host daemon notes checkpoints: see whether it runs and its disk has room.", At: a.Checkpoint})
	}
}

func (l *look) lookVault() error {
	v, err := l.Accounts.VaultStatus(l.ctx, l.by)
	if err != nil {
		return err
	}
	if v.Unreadable > 0 {
		l.add(Attention{Code: VaultUnreadable, Level: Failed, Sentence: fmt.Sprintf("%d entries of the vault are encrypted with a key that is not in the key file.", v.Unreadable),
			Hint: "Put the key file back from a backup, or store them again.", Command: "sudo clawjail vault status"})
	}
	if v.Rotating {
		l.add(Attention{Code: VaultRotating, Level: Notice, Sentence: "A rotation of the vault's key has not ended.", Hint: "If it does not run, start it again: it goes on where it stopped.",
			Command: "sudo clawjail vault rotate"})
	}
	return nil
}

func (l *look) lookSessions() error {
	all, err := l.Sessions.List(l.ctx, l.by, l.by.Tenant, false)
	if err != nil {
		return err
	}
	l.sessions = &Sessioned{States: map[string]int{}}
	for _, s := range all {
		l.sessions.States[string(s.State)]++
	}
	l.sessions.Open = len(all)
	if l.by.Tenant == "" {
		st := l.Sessions.Status()
		l.sessions.Max, l.sessions.WarmOpen, l.sessions.WarmSize = st.MaxSessions, st.WarmReady, st.WarmSize
		if st.Closing > 0 {
			l.sessions.States["closing"] = st.Closing
		}
	}
	return nil
}

// tokenLife is what is known of the tokens of one agent.
type tokenLife struct {
	good    bool
	expires time.Time // of the last good one; zero for never
}

func (l *look) lookAgents() error {
	all, err := l.Identity.Agents(l.ctx, l.by, l.by.Tenant)
	if err != nil {
		return err
	}
	tokens, err := l.Identity.TenantTokens(l.ctx, l.by, l.by.Tenant)
	if err != nil {
		return err
	}
	now := l.Now()
	lives := map[string]tokenLife{}
	for _, t := range tokens {
		if !t.RevokedAt.IsZero() || !t.ExpiresAt.IsZero() && !t.ExpiresAt.After(now) {
			continue
		}
		life := lives[t.Agent]
		if !life.good || t.ExpiresAt.IsZero() || !life.expires.IsZero() && t.ExpiresAt.After(life.expires) {
			life.expires = t.ExpiresAt
		}
		life.good = true
		lives[t.Agent] = life
	}
	statuses, err := l.agentStatuses()
	if err != nil {
		l.failed(AgentsUnknown, "Nobody can say how the jails of agents are: "+l.said("ask how the jails of agents are", err)+".", "")
	}
	phase, over := map[Subject]string{}, map[Subject]bool{}
	for _, s := range statuses {
		who := Subject{Tenant: s.Tenant, Name: s.Name}
		over[who] = s.Over
		switch {
		case s.Node != "":
			phase[who] = agent.StateElsewhere
		case s.Unwatched:
			phase[who] = agent.StateUnwatched
		}
		if s.Jail == nil {
			continue
		}
		phase[who] = string(s.Jail.Phase)
		if n := s.Jail.CrashLoop(now); n > 0 {
			phase[who] = "crash loop"
			sentence := fmt.Sprintf("%s is in a crash loop: its program has ended %d times in a row", l.called(s.Tenant, s.Name), n)
			if x := s.Jail.Exit; x != nil {
				sentence += ", last: " + x.Words()
			}
			l.failed(AgentCrashes, sentence+".", "See what it printed last.", who)
		}
		if s.Jail.Problem != "" {
			l.failed(AgentBroken, "The jail of "+l.called(s.Tenant, s.Name)+" does not run: "+s.Jail.Problem, s.Jail.Hint, who)
		}
	}
	l.agents = &AgentCount{All: len(all), States: map[string]int{}}
	for _, a := range all {
		who := Subject{Tenant: a.Tenant, Name: a.Name}
		if !a.RevokedAt.IsZero() {
			l.agents.States["revoked"]++
			continue
		}
		l.agents.States[cmp.Or(phase[who], "no jail")]++
		if over[who] {
			l.add(Attention{Code: AgentWithoutToken, Level: Notice, Sentence: "The time of " + l.called(a.Tenant, a.Name) + " is over, so it was stopped.",
				Hint: agent.MoreTime(a.Tenant, a.Name)}, who)
			continue
		}
		l.token(a, lives[a.ID], now)
	}
	return nil
}

// token tells of an agent whose last good token ends: one that was replaced may end in peace.
func (l *look) token(a identity.Agent, life tokenLife, now time.Time) {
	about := Subject{Tenant: a.Tenant, Name: a.Name}
	switch {
	case !life.good:
		l.add(Attention{Code: AgentWithoutToken, Level: Notice, Sentence: l.called(a.Tenant, a.Name) + " has no token that is good, so it can do nothing.",
			Hint: "Make a new one, and give it to the agent."}, about)
	case !life.expires.IsZero() && !life.expires.After(now.Add(keyWarning)):
		l.add(Attention{Code: AgentTokenExpiring, Level: Notice, Sentence: "The token of " + l.called(a.Tenant, a.Name) + " ends soon.",
			Hint: "Make a new one, and give it to the agent.", At: life.expires}, about)
	}
}

func (l *look) agentStatuses() (out []agent.Status, unknown error) {
	if l.Agents == nil {
		return nil, nil
	}
	tenants, err := l.Identity.Tenants(l.ctx, l.by)
	if err != nil {
		return nil, err
	}
	for _, t := range tenants {
		some, err := l.Agents.List(l.ctx, l.by, t.ID)
		out, unknown = append(out, some...), cmp.Or(unknown, err)
	}
	return out, unknown
}

// called names a thing of a tenant, with the tenant when the caller sees several.
func (l *look) called(tenant, name string) string {
	if l.by.Tenant == "" && tenant != "" {
		return name + " (" + tenant + ")"
	}
	return name
}

func (l *look) lookAccounts() error {
	sets, err := l.Accounts.Cookies(l.ctx, l.by, l.by.Tenant)
	if err != nil {
		return err
	}
	needed, err := l.Accounts.NeedsRefresh(l.ctx, l.by, l.by.Tenant)
	if err != nil {
		return err
	}
	soon, err := l.Accounts.ExpiringSoon(l.ctx, l.by, l.by.Tenant)
	if err != nil {
		return err
	}
	l.accounts = &AccountCount{Sets: len(sets), NeedsLogin: len(needed), Expiring: len(soon)}
	for _, a := range needed {
		text := "The cookies of " + l.called(a.Tenant, a.Domain) + " have expired."
		if a.Reason != credential.AlertExpired {
			text = l.called(a.Tenant, a.Domain) + " " + signedout.Reason(a.Reason).Words() + "."
		}
		l.add(Attention{Code: AccountNeedsLogin, Level: Notice, Sentence: text, Hint: "Log in again for your agents.", At: a.At}, Subject{Tenant: a.Tenant, Name: a.Domain})
	}
	for _, a := range soon {
		l.add(Attention{Code: AccountExpiring, Level: Notice, Sentence: "A cookie of " + l.called(a.Tenant, a.Domain) + " expires soon.", Hint: "Log in before it does.", At: a.At},
			Subject{Tenant: a.Tenant, Name: a.Domain})
	}
	return nil
}

func (l *look) lookRequests() error {
	asked, err := l.Requests.AccessRequests(l.ctx, l.by, l.by.Tenant, false)
	if err != nil {
		return err
	}
	waiting := 0
	for _, a := range asked {
		if a.State != egress.AccessPending {
			continue
		}
		waiting++
		l.add(Attention{Code: AccessAsked, Level: Notice, Sentence: l.called(a.Tenant, a.AgentName) + " asks for " + string(a.Kind) + " " + short(120, a.Target) + ".",
			Hint: short(160, a.Reason), At: a.CreatedAt}, Subject{ID: a.ID, Tenant: a.Tenant, Name: a.AgentName})
	}
	l.waiting = &waiting
	return nil
}

func (l *look) lookOperators() error {
	list, err := l.Identity.Operators(l.ctx, l.by, l.by.Tenant)
	if err != nil {
		return err
	}
	now := l.Now()
	for _, o := range list {
		if !o.RevokedAt.IsZero() || o.ExpiresAt.IsZero() || o.ExpiresAt.After(now.Add(keyWarning)) || now.Sub(o.ExpiresAt) > oldNews {
			continue
		}
		a := Attention{Code: OperatorKeyExpiring, Level: Notice, Sentence: "The key of the operator " + l.called(o.Tenant, o.Name) + " ends soon.", Hint: "Make a new one.", At: o.ExpiresAt}
		if !o.ExpiresAt.After(now) {
			a.Code, a.Sentence = OperatorKeyExpired, "The key of the operator "+l.called(o.Tenant, o.Name)+" has ended."
		}
		l.add(a, Subject{ID: o.ID, Tenant: o.Tenant, Name: o.Name})
	}
	return nil
}

// short cuts a text that somebody else has written.
func short(limit int, text string) string { return texts.Fit(strings.TrimSpace(text), limit) }
