package session

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Words of an OpenRequest.
const (
	ModeClean    = "clean"
	ModeOperator = "operator"

	RecordOff       = "off"       // nothing is kept
	RecordTransient = "transient" // the last screenshots are, until the session ends
	RecordAudit     = "audit"     // every step is, with a picture of what it did, for a week
)

// maxDomains is how many accounts one session may have.
const maxDomains = 20

// maxLabel bounds the text that a caller may give a session, in characters.
const maxLabel = 80

// OpenRequest is what a caller may say about a new session, and the body that opens one. The zero OpenRequest is a good one: whatever is
// left out has its default from the configuration. A number that is given and zero is an error.
type OpenRequest struct {
	Tenant         string `json:"tenant,omitempty" doc:"whose session it is; the caller's own, or default, when it is left out" flag:"tenant"`
	CredentialMode string `json:"credential_mode,omitempty" enum:"clean,operator" doc:"clean, the default: the browser has no logins; operator: it has accounts" flag:"mode" usage:"clean (the default), or operator: with accounts"`
	// The next four are of an operator session.
	Domains []string    `json:"domains,omitempty" doc:"registrable domains whose accounts the session has" flag:"domain" value:"domain" usage:"domain whose account the session has" complete:"accounts"`
	Grant   grant.Token `json:"grant,omitzero" doc:"the token of the grant that permits it"`
	Origin  string      `json:"origin,omitempty" doc:"the session that the grant was issued for; the caller must have opened it" flag:"origin" value:"session" usage:"session that the grant was issued for" complete:"sessions"`
	Access  string      `json:"access,omitempty" enum:"tools,cdp" doc:"tools; or cdp, which is the tools, JavaScript of the caller's, and DevTools clients. tools is the default with accounts, cdp without" flag:"access" usage:"access of the session: tools, or cdp: DevTools clients too; tools is the default with accounts, cdp without"`

	Record   string `json:"record,omitempty" enum:"off,transient,audit" doc:"transient, the default, keeps the last 50 screenshots until the session ends; audit keeps every step for a week" flag:"record" usage:"transient (the default) keeps the last screenshots until it ends, audit every step for a week, off nothing"`
	Browser  string `json:"browser,omitempty" enum:"shell,full" doc:"shell, the default, is small and fast; full is the whole Chromium" flag:"browser" value:"build" usage:"build of Chromium: shell (the default) or full"`
	Template string `json:"template,omitempty" pattern:"^[a-z0-9]{1,20}$" flag:"template" value:"name" usage:"name of the template"`
	Label    string `json:"label,omitempty" maxLength:"80" doc:"any text, to recognise the session by" flag:"label" value:"text" usage:"text to recognise the session by"`
	TTL      string `json:"ttl,omitempty" doc:"how long the session may live, such as 30m" flag:"ttl"`
	Idle     string `json:"idle,omitempty" doc:"how long the session may stay unused, such as 10m" flag:"idle"`

	Limits LimitsRequest `json:"limits,omitzero" doc:"limits of its jail, instead of the configured ones"`

	// Min is what TTL and Idle are at least where they are left out, as far as the longest life of a session allows.
	Min time.Duration `json:"-"`
}

// LimitsRequest replaces single limits of the configuration.
type LimitsRequest struct {
	Memory string   `json:"memory,omitempty" doc:"memory of all its processes and what they write, such as 768MiB" flag:"memory" value:"size" usage:"size of its memory, such as 512MiB"`
	CPU    *float64 `json:"cpu,omitempty" doc:"in cores, such as 1.5" flag:"cpu" value:"cores" usage:"cores that it may use, such as 1.5"`
	Tasks  *int     `json:"tasks,omitempty" doc:"processes and threads" flag:"tasks" value:"number" usage:"number of its processes and threads"`
	Disk   string   `json:"disk,omitempty" doc:"size of each of its writable file systems, such as 256MiB" flag:"disk" value:"size" usage:"size of each of its writable file systems, such as 128MiB"`
	SHM    string   `json:"shared_memory,omitempty" doc:"size of its /dev/shm, such as 256MiB" flag:"shared-memory" value:"size" usage:"size of its /dev/shm, such as 256MiB"`
	Files  *int     `json:"files,omitempty" doc:"open files of one process" flag:"files" value:"number" usage:"number of files that one of its processes may open"`
}

// plan is an OpenRequest with everything decided.
type plan struct {
	tenant string
	mode   string
	access grant.Access
	// refresh and first are of a refresh session: the domain to log in to, and the page to begin with.
	refresh, first string
	// The next three are of an operator session.
	domains []string
	token   grant.Token
	origin  string

	label  string
	record string
	ttl    time.Duration
	idle   time.Duration
	shape  jailOptions
}

// plan validates an OpenRequest and fills in the defaults. Everything that is wrong is reported at once.
func (svc *Service) plan(r OpenRequest) (plan, error) {
	flaws := problem.ValidationError{Code: problem.BadRequest, Hint: "the fields and their values are in /openapi.json"}
	p := plan{tenant: r.Tenant, record: r.Record, label: r.Label, shape: jailOptions{tenant: r.Tenant, template: r.Template, build: config.Browser(r.Browser)}}
	p.accounts(r, &flaws)
	switch r.Record {
	case "":
		p.record = RecordTransient
	case RecordOff, RecordTransient, RecordAudit:
	default:
		flaws.Add("record", "%s is not a way of recording; they are off, transient and audit", quote(r.Record))
	}
	if r.Browser == "" {
		p.shape.build = config.BrowserShell
	} else if !slices.Contains([]config.Browser{config.BrowserShell, config.BrowserFull}, p.shape.build) {
		flaws.Add("browser", "%s is not a browser; they are shell and full", quote(r.Browser))
	}
	if r.Template == "" {
		p.shape.template = svc.Template
	} else if jail.ValidTemplateName(r.Template) != nil {
		flaws.Code = problem.BadTemplate
		flaws.Add("template", "%s is not the name of a template; names have 1 to 20 of a-z and 0-9", quote(r.Template))
	}
	if utf8.RuneCountInString(r.Label) > maxLabel || !utf8.ValidString(r.Label) ||
		slices.ContainsFunc([]rune(r.Label), func(c rune) bool { return !unicode.IsPrint(c) }) {
		flaws.Add("label", "it is not a line of at most %d printable characters", maxLabel)
	}
	duration := func(field, given string, fallback, limit time.Duration) time.Duration {
		if given == "" {
			return fallback
		}
		d, err := texts.Duration(given)
		switch {
		case err != nil:
			flaws.AddFlaw(problem.Flaw{Field: field, Message: quote(given) + " is not a duration", Hint: "write a number with s, m, h or d, such as 30m"})
		case d < time.Second || d > limit:
			flaws.Code = problem.BadLimit
			flaws.Add(field, "%s is not between 1s and %s", d, limit)
		}
		return d
	}
	p.ttl = duration("ttl", r.TTL, min(max(svc.Sessions.TTL, r.Min), svc.Sessions.MaxTTL), svc.Sessions.MaxTTL)
	p.idle = duration("idle", r.Idle, min(max(svc.Sessions.Idle, r.Min), svc.Sessions.MaxTTL), svc.Sessions.MaxTTL)
	p.shape.limits = svc.limits(r.Limits, &flaws)
	if err := flaws.Err(); err != nil {
		return plan{}, err
	}
	return p, nil
}

// accounts reads what is about the accounts of a session.
func (p *plan) accounts(r OpenRequest, flaws *problem.ValidationError) {
	switch p.access = grant.Access(r.Access); p.access {
	case "":
		// There is nothing in a clean session that its agent may not have.
		p.access = grant.AccessCDP
		if r.CredentialMode == ModeOperator {
			p.access = grant.AccessTools
		}
	case grant.AccessTools, grant.AccessCDP:
	default:
		flaws.Add("access", "%s is not an access; they are tools and cdp", quote(r.Access))
	}
	switch r.CredentialMode {
	case "", ModeClean:
		p.mode = ModeClean
		if len(r.Domains) > 0 || !r.Grant.IsZero() || r.Origin != "" {
			flaws.AddFlaw(problem.Flaw{Field: "credential_mode", Message: "domains, grant and origin are of operator sessions",
				Hint: "set it to operator to use accounts, or leave them out"})
		}
		return
	case ModeOperator:
		p.mode, p.token, p.origin = ModeOperator, r.Grant, r.Origin
	default:
		flaws.Add("credential_mode", "%s is not a credential mode; they are clean and operator", quote(r.CredentialMode))
		return
	}
	if len(r.Domains) == 0 || len(r.Domains) > maxDomains {
		flaws.Add("domains", "an operator session has 1 to %d domains, not %d", maxDomains, len(r.Domains))
		return
	}
	for n, named := range r.Domains {
		field := fmt.Sprintf("domains[%d]", n)
		domain, err := cookies.RegistrableDomain(named)
		switch {
		case err != nil:
			flaws.Add(field, "%s is not a registrable domain: %v", quote(named), err)
		case !strings.EqualFold(domain, named):
			flaws.AddFlaw(problem.Flaw{Field: field, Message: quote(named) + " is a subdomain", Hint: "accounts belong to whole domains: write " + domain})
		case slices.Contains(p.domains, domain):
			flaws.Add(field, "%s is there twice", domain)
		default:
			p.domains = append(p.domains, domain)
		}
	}
}

// configured is an error when limits are wider than those of the configuration, which agents may only narrow: the memory and
// the processor of the host are everybody's.
func (svc *Service) configured(l jail.Limits) error {
	var none problem.ValidationError
	limit := svc.limits(LimitsRequest{}, &none)
	flaws := problem.ValidationError{Code: problem.BadLimit}
	for _, limit := range []struct {
		field     string
		is, limit int64
	}{
		{"memory", l.Memory, limit.Memory}, {"cpu", int64(l.MilliCPU), int64(limit.MilliCPU)}, {"tasks", int64(l.Tasks), int64(limit.Tasks)},
		{"disk", l.Disk, limit.Disk}, {"shared_memory", l.SharedMemory, limit.SharedMemory}, {"files", int64(l.Files), int64(limit.Files)},
	} {
		if limit.is > limit.limit {
			flaws.AddFlaw(problem.Flaw{Field: "limits." + limit.field, Message: "it is wider than the configuration's",
				Hint: "leave it out; an operator can open a session with wider limits, and raise limits in the configuration"})
		}
	}
	return flaws.Err()
}

// limits are those of the configuration with what the caller wants instead. They are checked by themselves, so that
// the message names the field as the caller wrote it.
func (svc *Service) limits(o LimitsRequest, flaws *problem.ValidationError) jail.Limits {
	l := jail.Limits{
		Memory:       int64(svc.Limits.Memory),
		MilliCPU:     int(math.Round(svc.Limits.CPU * 1000)),
		Tasks:        svc.Limits.Tasks,
		Disk:         int64(svc.Limits.Tmp),
		SharedMemory: int64(svc.Limits.SHM),
		Files:        svc.Limits.Files,
		WallClock:    svc.Sessions.WallClock,
	}
	outside := func(field, value, lo, hi string) {
		flaws.Code = problem.BadLimit
		flaws.AddFlaw(problem.Flaw{Field: "limits." + field,
			Message: fmt.Sprintf("%s is not between %s and %s", value, lo, hi),
			Hint:    "zero does not mean unlimited; leave the limit out for the configured one"})
	}
	size := func(field, given string, into *int64, lo, hi config.Bytes) {
		if given == "" {
			return
		}
		n, err := config.ParseBytes(given)
		if *into = int64(n); err != nil {
			flaws.Code = problem.BadLimit
			flaws.AddFlaw(problem.Flaw{Field: "limits." + field, Message: quote(given) + " is not a size", Hint: "write a whole number with KiB, MiB or GiB, such as 512MiB"})
		} else if n < lo || n > hi {
			outside(field, n.String(), lo.String(), hi.String())
		}
	}
	count := func(field string, given, into *int, lo, hi int) {
		if given == nil {
			return
		}
		if *into = *given; *given < lo || *given > hi {
			outside(field, fmt.Sprint(*given), fmt.Sprint(lo), fmt.Sprint(hi))
		}
	}
	size("memory", o.Memory, &l.Memory, jail.MinMemory, jail.MaxMemory)
	size("disk", o.Disk, &l.Disk, jail.MinDisk, jail.MaxDisk)
	size("shared_memory", o.SHM, &l.SharedMemory, jail.MinDisk, jail.MaxDisk)
	count("tasks", o.Tasks, &l.Tasks, jail.MinTasks, jail.MaxTasks)
	count("files", o.Files, &l.Files, jail.MinFiles, jail.MaxFiles)
	if o.CPU != nil {
		// Compared before it is converted: what does not fit an integer has no defined conversion.
		if c := math.Round(*o.CPU * 1000); c >= jail.MinMilliCPU && c <= jail.MaxMilliCPU {
			l.MilliCPU = int(c)
		} else {
			outside("cpu", fmt.Sprint(*o.CPU), fmt.Sprint(jail.MinMilliCPU/1000.0), fmt.Sprint(jail.MaxMilliCPU/1000.0))
		}
	}
	return l
}

// quote shows a caller's text in a message, shortened.
func quote(s string) string { return texts.Quote(s, 40) }
