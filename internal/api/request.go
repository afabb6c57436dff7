package api

import (
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// OpenRequest is the body that opens a session. Everything may be left out.
type OpenRequest struct {
	Tenant         string `json:"tenant,omitempty" doc:"whose session it is; the caller's own, or default, when it is left out" flag:"tenant"`
	CredentialMode string `json:"credential_mode,omitempty" enum:"clean,operator" doc:"clean, the default: the browser has no logins; operator: it has accounts" flag:"mode" usage:"clean (the default), or operator: with accounts"`
	// The next four are of an operator session.
	Domains []string    `json:"domains,omitempty" doc:"registrable domains whose accounts the session has" flag:"domain" value:"domain" usage:"domain whose account the session has; may be repeated" complete:"accounts"`
	Grant   grant.Token `json:"grant,omitzero" doc:"the token of the grant that permits it"`
	Origin  string      `json:"origin,omitempty" doc:"the session that the grant was issued for; the caller must have opened it" flag:"origin" value:"session" usage:"session that the grant was issued for" complete:"sessions"`
	Access  string      `json:"access,omitempty" enum:"tools,cdp" doc:"tools; or cdp, which is the tools, JavaScript of the caller's, and DevTools clients. tools is the default with accounts, cdp without" flag:"access" usage:"access of the session: tools, or cdp: DevTools clients too; tools is the default with accounts, cdp without"`

	Record   string `json:"record,omitempty" enum:"off,transient,audit" doc:"transient, the default, keeps the last 50 screenshots until the session ends; audit keeps every step for a week" flag:"record" usage:"transient (the default) keeps the last screenshots until it ends, audit every step for a week, off nothing"`
	Browser  string `json:"browser,omitempty" enum:"shell,full" doc:"shell, the default, is small and fast; full is the whole Chromium" flag:"browser" value:"build" usage:"build of Chromium: shell (the default) or full"`
	Template string `json:"template,omitempty" pattern:"^[a-z0-9]{1,20}$" flag:"template" value:"name" usage:"name of the template"`
	Label    string `json:"label,omitempty" maxLength:"80" doc:"any text, to recognise the session by" flag:"label" value:"text" usage:"text to recognise the session by"`
	TTL      string `json:"ttl,omitempty" doc:"how long the session may live, such as 30m" flag:"ttl"`
	Idle     string `json:"idle,omitempty" doc:"how long the session may stay unused, such as 10m" flag:"idle"`

	Limits *LimitsRequest `json:"limits,omitempty" doc:"limits of its jail, instead of the configured ones"`
}

// LimitsRequest is the part of a body that replaces limits.
type LimitsRequest struct {
	Memory string   `json:"memory,omitempty" doc:"memory of all its processes and what they write, such as 768MiB" flag:"memory" value:"size" usage:"size of its memory, such as 512MiB"`
	CPU    *float64 `json:"cpu,omitempty" doc:"in cores, such as 1.5"`
	Tasks  *int     `json:"tasks,omitempty" doc:"processes and threads"`
	Disk   string   `json:"disk,omitempty" doc:"size of each of its writable file systems, such as 256MiB" flag:"disk" value:"size" usage:"size of each of its writable file systems, such as 128MiB"`
	SHM    string   `json:"shared_memory,omitempty" doc:"size of its /dev/shm, such as 256MiB" flag:"shared-memory" value:"size" usage:"size of its /dev/shm, such as 256MiB"`
	Files  *int     `json:"files,omitempty" doc:"open files of one process"`
}

// TokenRequest is the body that makes a token for one session.
type TokenRequest struct {
	Scope session.Scope `json:"scope" enum:"view,control,cdp" doc:"rights of the holder: view to watch, control to steer as well, cdp to attach DevTools clients as well"`
	TTL   string        `json:"ttl,omitempty" doc:"how long the token is valid, such as 1h, the default; at most 24h"`
}

// ImportRequest is the body that stores cookies of one registrable domain, in the place of those that are stored.
type ImportRequest struct {
	Tenant  string `json:"tenant,omitempty" doc:"whose account it is; the caller's own, or default, when it is left out"`
	Cookies Jar    `json:"cookies" doc:"all that the account needs, as Storage.getCookies of the DevTools Protocol returns them"`
	// Origins may be left out.
	Origins Origins `json:"origins,omitzero" doc:"storage of the domain's pages, in the format of Playwright's storage state"`
	op.AccountRules
}

// RawCookie describes a cookie of a [Jar].
type RawCookie struct {
	_            struct{} `json:"-" additionalProperties:"true"`
	Name         string   `json:"name"`
	Value        string   `json:"value"`
	Domain       string   `json:"domain" doc:"with a dot in front when it is for sub-domains as well"`
	Path         string   `json:"path"`
	Expires      float64  `json:"expires" doc:"in seconds since 1970; -1 for a session cookie"`
	HTTPOnly     bool     `json:"httpOnly,omitempty"`
	Secure       bool     `json:"secure,omitempty"`
	SameSite     string   `json:"sameSite,omitempty" enum:"Strict,Lax,None"`
	Priority     string   `json:"priority,omitempty" enum:"Low,Medium,High"`
	SourceScheme string   `json:"sourceScheme,omitempty" enum:"Unset,NonSecure,Secure"`
	SourcePort   int64    `json:"sourcePort,omitempty"`
}

// RawOrigin describes an element of [Origins].
type RawOrigin struct {
	_            struct{}  `json:"-" additionalProperties:"true"`
	Origin       string    `json:"origin" doc:"such as https://app.example.com"`
	LocalStorage []RawItem `json:"localStorage,omitempty"`
	IndexedDB    []any     `json:"indexedDB,omitempty"`
}

// RawItem is an entry of localStorage.
type RawItem struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// SecretRequest is the body that stores the credential of a service.
type SecretRequest struct {
	Tenant string       `json:"tenant,omitempty" doc:"whose it is; the caller's own, or default, when it is left out"`
	Agent  string       `json:"agent,omitempty" doc:"the id of the agent whose it is; for all agents of the tenant when it is left out"`
	Value  secret.Value `json:"value" doc:"1 to 65536 bytes"`
	// Origins are where it may go.
	Origins []string `json:"origins,omitempty" nullable:"false" doc:"where it may go, such as https://api.example.com, or jail for MCP servers; as before, or the only one that is declared, when it is left out"`
}

// request reads the texts. Whether their values are allowed is the service's to say.
func (o OpenRequest) request() (session.Request, error) {
	flaws := problem.ValidationError{Code: problem.BadRequest, Hint: "the fields and their values are in /openapi.json"}
	duration := func(field, text string) *time.Duration {
		if text == "" {
			return nil
		}
		d, err := texts.Duration(text)
		if err != nil {
			flaws.AddFlaw(problem.Flaw{Field: field, Message: quote(text) + " is not a duration", Hint: "write a number with s, m, h or d, such as 30m"})
		}
		return &d
	}
	size := func(field, text string) *config.Bytes {
		if text == "" {
			return nil
		}
		n, err := config.ParseBytes(text)
		if err != nil {
			flaws.Code = problem.BadLimit
			flaws.AddFlaw(problem.Flaw{Field: field, Message: quote(text) + " is not a size", Hint: "write a whole number with KiB, MiB or GiB, such as 512MiB"})
		}
		return &n
	}
	out := session.Request{
		Tenant: o.Tenant, CredentialMode: o.CredentialMode, Domains: o.Domains, Grant: o.Grant, Origin: o.Origin, Access: o.Access,
		Record: o.Record, Browser: o.Browser, Template: o.Template, Label: o.Label,
		TTL: duration("ttl", o.TTL), Idle: duration("idle", o.Idle),
	}
	if l := o.Limits; l != nil {
		out.Limits = session.LimitOverrides{
			Memory: size("limits.memory", l.Memory), Disk: size("limits.disk", l.Disk),
			SharedMemory: size("limits.shared_memory", l.SHM), CPU: l.CPU, Tasks: l.Tasks, Files: l.Files,
		}
	}
	if err := op.CheckTenant(o.Tenant); err != nil {
		return session.Request{}, err
	}
	return out, flaws.Err()
}
