package problem

import "net/http"

// The codes, in the order of the table below. A new one is added in both places; a test compares them.
const (
	// What the caller sent is wrong. Nothing was created.
	BadName     = "bad_name"
	BadLimit    = "bad_limit"
	BadTemplate = "bad_template"
	BadURL      = "bad_url"
	BadJSON     = "bad_json"
	BadRequest  = "bad_request"
	BadConfig   = "bad_config"
	BadUsage    = "bad_usage"
	BadDomain   = "bad_domain"
	BadCookie   = "bad_cookie"
	BadSecret   = "bad_secret"
	// BadCookieFile is a file to import.
	BadCookieFile = "bad_cookie_file"

	// Who is asking, and what they may do.
	Unauthorized = "unauthorized"
	Forbidden    = "forbidden"
	NoRoot       = "no_root"

	// Why a grant does not let a session use an account.
	GrantMissing     = "grant_missing"
	GrantInvalid     = "grant_invalid"
	GrantWrongTenant = "grant_wrong_tenant"
	GrantRevoked     = "grant_revoked"
	GrantUsed        = "grant_used"
	GrantExpired     = "grant_expired"
	GrantWrongOrigin = "grant_wrong_origin"
	GrantScope       = "grant_scope"

	// What was asked for is not there, or not in a state for it.
	NotFound      = "not_found"
	Conflict      = "conflict"
	SessionClosed = "session_closed"
	BrowserExited = "browser_exited"
	// TakenOver is a session that a person has in hand.
	TakenOver = "taken_over"
	// NeedsRefresh and AccountBusy are about the stored login of a site.
	NeedsRefresh = "needs_refresh"
	AccountBusy  = "account_busy"

	// Driving a browser. The act_ codes are those of the control contract, in lower case.
	TabNotFound            = "tab_not_found"
	TabAmbiguous           = "tab_ambiguous"
	StaleRef               = "stale_ref"
	ActKindRequired        = "act_kind_required"
	ActInvalidRequest      = "act_invalid_request"
	ActSelectorUnsupported = "act_selector_unsupported"
	ActEvaluateDisabled    = "act_evaluate_disabled"
	ActTargetIDMismatch    = "act_target_id_mismatch"
	ActOperationFailed     = "act_operation_failed"
	// MethodDenied is a command of the DevTools protocol that a client may not send.
	MethodDenied = "method_denied"

	// The browser of the host.
	BrowserDisabled   = "browser_disabled"
	BrowserNotRunning = "browser_not_running"
	BrowserFailed     = "browser_failed"
	BrowserMissing    = "browser_missing"
	NoDisplay         = "no_display"

	// The caller has enough already.
	RateLimited     = "rate_limited"
	TooManySessions = "too_many_sessions"

	// This machine cannot do it as it is.
	TemplateMissing         = "template_missing"
	TemplateChanged         = "template_changed"
	TemplateInUse           = "template_in_use"
	TemplateBuildFailed     = "template_build_failed"
	RuntimeMissing          = "runtime_missing"
	ToolMissing             = "tool_missing"
	Unsupported             = "unsupported"
	DiskFull                = "disk_full"
	PoolExhausted           = "pool_exhausted"
	HostdUnreachable        = "hostd_unreachable"
	ControlPlaneUnreachable = "control_plane_unreachable"
	ShuttingDown            = "shutting_down"
	AuditUnavailable        = "audit_unavailable"
	AuditBroken             = "audit_broken"
	DatabaseUnavailable     = "database_unavailable"
	DatabaseTooNew          = "database_too_new"

	// The vault. What it refuses, it has not changed.
	VaultKeyMissing = "vault_key_missing"
	VaultKeyWrong   = "vault_key_wrong"
	VaultKeyDamaged = "vault_key_damaged"
	VaultKeyExposed = "vault_key_exposed"
	VaultRowDamaged = "vault_row_damaged"
	VaultRotating   = "vault_rotating"

	// A jail went wrong. The limit codes name the limit that the jail itself ran into.
	JailFailed     = "jail_failed"
	JailUnconfined = "jail_unconfined"
	JailBusy       = "jail_busy"
	// InjectionFailed is a browser that did not take what it was given.
	InjectionFailed = "injection_failed"
	LimitMemory     = "limit_memory"
	LimitTasks      = "limit_tasks"
	LimitDisk       = "limit_disk"
	LimitFiles      = "limit_files"
	LimitWallClock  = "limit_wall_clock"

	// The world outside.
	BadHost             = "bad_host"
	UnknownCaller       = "unknown_caller"
	HostDenied          = "host_denied"
	PortDenied          = "port_denied"
	AddressDenied       = "address_denied"
	SNIMismatch         = "sni_mismatch"
	DNSFailed           = "dns_failed"
	UpstreamUnreachable = "upstream_unreachable"
	// What the gateway's own surfaces say.
	PathDenied        = "path_denied"
	ToolDenied        = "tool_denied"
	CredentialMissing = "credential_missing"
	ServiceUnknown    = "service_unknown"
	ModelUnknown      = "model_unknown"
	BudgetExceeded    = "budget_exceeded"
	TokenMismatch     = "token_mismatch"
	TooLarge          = "too_large"
	ResponseBlocked   = "response_blocked"
	UpstreamFailed    = "upstream_failed"
	NavigationFailed  = "navigation_failed"
	Timeout           = "timeout"
	Canceled          = "canceled"

	// Everything that nobody foresaw.
	Internal = "internal"
)

// statusClientClosedRequest is what proxies log when a client left before its answer. Nobody receives it.
const statusClientClosedRequest = 499

// Info is one row of the table of codes.
type Info struct {
	Code   string
	Status int    // HTTP status of an answer with this code
	Means  string // one line for the documentation
}

// Codes is the table of all codes, in the order in which the documentation lists them.
func Codes() []Info {
	return []Info{
		{BadName, http.StatusBadRequest, "a name has a character or a length that is not allowed"},
		{BadLimit, http.StatusBadRequest, "a limit is zero, negative or beyond what the configuration allows"},
		{BadTemplate, http.StatusBadRequest, "a template's name or source is not valid"},
		{BadURL, http.StatusBadRequest, "a URL is not one that a browser in a jail may open"},
		{BadJSON, http.StatusBadRequest, "the body is not JSON, or has an unknown or a duplicate key"},
		{BadRequest, http.StatusBadRequest, "the request is not valid in another way"},
		{BadConfig, http.StatusInternalServerError, "the configuration file is not valid"},
		{BadUsage, http.StatusBadRequest, "the command line is not valid"},
		{BadDomain, http.StatusBadRequest, "a domain is not one that somebody can register, such as example.com"},
		{BadCookie, http.StatusBadRequest, "a cookie is not one that a browser would take, or of another domain"},
		{BadSecret, http.StatusBadRequest, "a secret or its name is not valid"},
		{BadCookieFile, http.StatusBadRequest, "a file to import cookies from cannot be read, or is of no kind that is known"},

		{Unauthorized, http.StatusUnauthorized, "no key or token was sent, or it is not known"},
		{Forbidden, http.StatusForbidden, "the caller is known and may not do this"},
		{NoRoot, http.StatusForbidden, "the command needs root"},

		{GrantMissing, http.StatusUnauthorized, "the session wants accounts, and no grant was sent"},
		{GrantInvalid, http.StatusUnauthorized, "the grant is not one that this installation has issued"},
		{GrantWrongTenant, http.StatusForbidden, "the grant belongs to another tenant"},
		{GrantRevoked, http.StatusForbidden, "the grant has been revoked"},
		{GrantUsed, http.StatusForbidden, "the grant has been used; it is good for one session"},
		{GrantExpired, http.StatusForbidden, "now is not within the life of the grant"},
		{GrantWrongOrigin, http.StatusForbidden, "the grant was issued for another session"},
		{GrantScope, http.StatusForbidden, "the grant does not cover what was asked for"},

		{NotFound, http.StatusNotFound, "there is nothing of that name"},
		{Conflict, http.StatusConflict, "the thing exists already, or is in a state that does not allow this"},
		{SessionClosed, http.StatusGone, "the session has been closed"},
		{BrowserExited, http.StatusGone, "the browser of the session has ended"},
		{TakenOver, http.StatusConflict, "a person has the session's browser in hand"},

		{NeedsRefresh, http.StatusConflict, "the stored login of a site no longer works; somebody has to log in again"},
		{AccountBusy, http.StatusConflict, "another session uses the account, and no more may at the same time"},

		{TabNotFound, http.StatusNotFound, "no tab has that handle, label or id"},
		{TabAmbiguous, http.StatusConflict, "more than one tab has a handle, label or id that begins so"},
		{StaleRef, http.StatusConflict, "the ref is of a page that is not shown any more; take a new snapshot"},
		{ActKindRequired, http.StatusBadRequest, "an action does not say what it is"},
		{ActInvalidRequest, http.StatusBadRequest, "an action is not valid"},
		{ActSelectorUnsupported, http.StatusBadRequest, "an action of that kind takes a ref and no selector"},
		{ActEvaluateDisabled, http.StatusForbidden, "JavaScript of the caller's is not run in this browser"},
		{ActTargetIDMismatch, http.StatusForbidden, "an action within a batch names another tab"},
		{ActOperationFailed, http.StatusInternalServerError, "the page did not let the action happen"},
		{MethodDenied, http.StatusForbidden, "a command of the DevTools protocol that clients may not send"},

		{BrowserDisabled, http.StatusForbidden, "the host browser is switched off in its settings"},
		{BrowserNotRunning, http.StatusConflict, "the host browser does not run"},
		{BrowserFailed, http.StatusInternalServerError, "the host browser could not be started"},
		{BrowserMissing, http.StatusServiceUnavailable, "no browser that can be used is installed"},
		{NoDisplay, http.StatusConflict, "a browser with a window was asked for, and there is no display"},

		{RateLimited, http.StatusTooManyRequests, "too many requests; wait and try again"},
		{TooManySessions, http.StatusTooManyRequests, "as many sessions are open as the configuration allows"},

		{TemplateMissing, http.StatusServiceUnavailable, "the template has not been built"},
		{TemplateChanged, http.StatusServiceUnavailable, "the template is not as it was built"},
		{TemplateInUse, http.StatusConflict, "jails still run from the template"},
		{TemplateBuildFailed, http.StatusInternalServerError, "building the template did not work"},
		{RuntimeMissing, http.StatusServiceUnavailable, "no OCI runtime that works here was found"},
		{ToolMissing, http.StatusServiceUnavailable, "a program that is needed is not installed"},
		{Unsupported, http.StatusNotImplemented, "this system cannot do it"},
		{DiskFull, http.StatusInsufficientStorage, "the host's disk is full"},
		{PoolExhausted, http.StatusServiceUnavailable, "all addresses or network slots are in use"},
		{HostdUnreachable, http.StatusServiceUnavailable, "the host daemon does not answer"},
		{ControlPlaneUnreachable, http.StatusServiceUnavailable, "the control plane does not answer"},
		{ShuttingDown, http.StatusServiceUnavailable, "clawjail is being stopped"},
		{AuditUnavailable, http.StatusServiceUnavailable, "the action could not be recorded, so it was not done"},
		{AuditBroken, http.StatusServiceUnavailable, "the audit log of this node does not hold together"},
		{DatabaseUnavailable, http.StatusServiceUnavailable, "the database cannot be used at the moment"},
		{DatabaseTooNew, http.StatusServiceUnavailable, "the database was changed by a newer clawjail"},

		{VaultKeyMissing, http.StatusServiceUnavailable, "the vault's key file is gone, and the database has entries that only it opens"},
		{VaultKeyWrong, http.StatusServiceUnavailable, "the vault's key file is not the one that the database was written with"},
		{VaultKeyDamaged, http.StatusServiceUnavailable, "the vault's key file is cut, changed, or no key file"},
		{VaultKeyExposed, http.StatusServiceUnavailable, "the vault's key file, or its folder, is open to other users"},
		{VaultRowDamaged, http.StatusInternalServerError, "an entry of the vault was changed in the database, or moved to another place"},
		{VaultRotating, http.StatusConflict, "the vault's key is being rotated"},

		{JailFailed, http.StatusInternalServerError, "a jail could not be made, started or used"},
		{JailUnconfined, http.StatusInternalServerError, "a jail was not confined as declared, and was stopped"},
		{JailBusy, http.StatusConflict, "the jail is in the middle of another operation"},
		{InjectionFailed, http.StatusInternalServerError, "the browser did not take the cookies of an account as they are"},
		{LimitMemory, http.StatusConflict, "the jail ran out of its own memory"},
		{LimitTasks, http.StatusConflict, "the jail ran out of its own tasks (processes and threads)"},
		{LimitDisk, http.StatusConflict, "the jail ran out of its own disk space"},
		{LimitFiles, http.StatusConflict, "the jail ran out of its own file descriptors"},
		{LimitWallClock, http.StatusConflict, "the jail ran for as long as it may"},

		{BadHost, http.StatusForbidden, "the host of a request through the gateway is not a valid name or address"},
		{UnknownCaller, http.StatusForbidden, "a request through the gateway came from an address that is no jail's"},
		{HostDenied, http.StatusForbidden, "the policy does not let the jail reach that host"},
		{PortDenied, http.StatusForbidden, "the policy does not let the jail reach that port"},
		{AddressDenied, http.StatusForbidden, "the host's address is private or reserved"},
		{SNIMismatch, http.StatusForbidden, "the TLS server name is not the host that the tunnel was opened for"},
		{DNSFailed, http.StatusBadGateway, "the host's name has no address"},
		{UpstreamUnreachable, http.StatusBadGateway, "a server outside could not be reached"},
		{PathDenied, http.StatusForbidden, "the policy does not let the jail reach that path, or the path can be read in two ways"},
		{ToolDenied, http.StatusForbidden, "no tool of the agent allows this request"},
		{CredentialMissing, http.StatusNotFound, "the vault has no secret of that name for the agent"},
		{ServiceUnknown, http.StatusNotFound, "the agent has no service of that name"},
		{ModelUnknown, http.StatusNotFound, "no provider of the agent has that model"},
		{BudgetExceeded, http.StatusTooManyRequests, "the agent has used what it may use of models today"},
		{TokenMismatch, http.StatusProxyAuthRequired, "the token is not one of the agent whose jail it came from"},
		{TooLarge, http.StatusRequestEntityTooLarge, "a body is larger than the limit"},
		{ResponseBlocked, http.StatusBadGateway, "the answer of a service was held back, because it has the credential in it or cannot be looked through"},
		{UpstreamFailed, http.StatusBadGateway, "a server outside did not give a usable answer"},
		{NavigationFailed, http.StatusBadGateway, "the page could not be loaded"},
		{Timeout, http.StatusGatewayTimeout, "it took longer than it may"},
		{Canceled, statusClientClosedRequest, "the caller left before the answer"},

		{Internal, http.StatusInternalServerError, "an error that has no code of its own"},
	}
}

// Status is the HTTP status of a code; a code that is not in the table is 500.
func Status(code string) int {
	for _, info := range Codes() {
		if info.Code == code {
			return info.Status
		}
	}
	return http.StatusInternalServerError
}
