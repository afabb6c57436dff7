package api

import (
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/session"
)

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
