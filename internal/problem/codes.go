package problem

import (
	"log/slog"
	"net/http"
)

// The codes, in the order of the table below. A new one is added in both places; a test compares them.
const (
	// The request is wrong. Nothing was created.
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
	BadStorage  = "bad_storage"
	BadSecret   = "bad_secret"
	// BadCookieFile is a file to import.
	BadCookieFile = "bad_cookie_file"
	BadSchema     = "bad_schema"

	// The caller's identity and rights.
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
	// AccountNotAllowed is an agent without a grant, and without a permission that is good.
	AccountNotAllowed = "account_not_allowed"

	// The thing asked for is not there, or not in a state for it.
	NotFound      = "not_found"
	Conflict      = "conflict"
	SessionClosed = "session_closed"
	BrowserExited = "browser_exited"
	// AccountLost and CookiesLost are of sessions whose browser has lost what was in its jar.
	AccountLost = "account_lost"
	CookiesLost = "cookies_lost"
	// PageCrashed is a page whose process ended.
	PageCrashed = "page_crashed"
	// TakenOver is a session that a person has in hand.
	TakenOver = "taken_over"
	// LoginNeeded, NeedsRefresh and AccountBusy are about the stored login of a site.
	LoginNeeded  = "login_needed"
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

	// A task in words that has come to no answer.
	TaskGaveUp   = "task_gave_up"
	TaskBound    = "task_bound"
	TaskNonsense = "task_nonsense"

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
	NodeUnreachable         = "node_unreachable"
	NodeLost                = "node_lost"
	NodeDraining            = "node_draining"
	NetworkNotEnforced      = "network_not_enforced"
	HostdUnreachable        = "hostd_unreachable"
	ControlPlaneUnreachable = "control_plane_unreachable"
	ShuttingDown            = "shutting_down"
	AuditUnavailable        = "audit_unavailable"
	AuditBroken             = "audit_broken"
	DatabaseUnavailable     = "database_unavailable"
	DatabaseTooNew          = "database_too_new"
	DatabaseTooOld          = "database_too_old"

	// The vault. A refusal changes nothing in it.
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
	// The codes of the gateway's own surfaces.
	PathDenied        = "path_denied"
	ToolDenied        = "tool_denied"
	CredentialMissing = "credential_missing"
	SecretNotBound    = "secret_not_bound"
	ServiceUnknown    = "service_unknown"
	ModelUnknown      = "model_unknown"
	BudgetExceeded    = "budget_exceeded"
	PriceUnknown      = "price_unknown"
	HostedDenied      = "hosted_denied"
	TokenMismatch     = "token_mismatch"
	TooLarge          = "too_large"
	ResponseBlocked   = "response_blocked"
	UpstreamFailed    = "upstream_failed"
	NavigationFailed  = "navigation_failed"
	Timeout           = "timeout"
	Canceled          = "canceled"

	Internal = "internal" // an error that has no code of its own
)

// statusClientClosedRequest is what proxies log when a client left before its answer. No client receives it.
const statusClientClosedRequest = 499

// Info is one row of the table of codes.
type Info struct {
	Code   string
	Status int    // HTTP status of an answer with this code
	Means  string // one line for the documentation
	Do     string // what to do about it, in the imperative; commands stand in backquotes
}

// Codes is the table of all codes, in the order in which the documentation lists them.
func Codes() []Info {
	return []Info{
		{BadName, http.StatusBadRequest, "a name has a character or a length that is not allowed", "use small letters, digits and hyphens, at most 40"},
		{BadLimit, http.StatusBadRequest, "a limit is zero, negative or beyond what the configuration allows", "give a value within the bounds that the message names"},
		{BadTemplate, http.StatusBadRequest, "a template's name or source is not valid", "see `clawjail template ls` and docs/templates.md"},
		{BadURL, http.StatusBadRequest, "a URL is not one that a browser in a jail may open", "give an http or https address without a password in it"},
		{BadJSON, http.StatusBadRequest, "the body is not JSON, or has an unknown or a duplicate key", "correct the place that the message names"},
		{BadRequest, http.StatusBadRequest, "the request is not valid in another way", "correct what the message names; the API describes itself at /openapi.json"},
		{BadConfig, http.StatusInternalServerError, "the configuration file is not valid", "correct the lines that are named, then start it again"},
		{BadUsage, http.StatusBadRequest, "the command line is not valid", "see the help of the command: --help"},
		{BadDomain, http.StatusBadRequest, "a domain is not a registrable one, such as example.com", "give the registrable domain: example.com and not www.example.com"},
		{BadCookie, http.StatusBadRequest, "a cookie is not one that a browser would take, or of another domain", "export the cookies anew, of the domain that is named"},
		{BadStorage, http.StatusBadRequest, "the storage of pages is of another origin than the account's, is more than is kept, or cannot be read", "leave out what is named, or store it with the account of its domain"},
		{BadSecret, http.StatusBadRequest, "a secret or its name is not valid", "give a value of one line, and a name of small letters, digits and hyphens"},
		{BadCookieFile, http.StatusBadRequest, "a file to import cookies from cannot be read, or is of no kind that is known", "export it as cookies.txt, JSON or storage state"},
		{BadSchema, http.StatusBadRequest, "the schema of an answer is no JSON Schema, or no answer can fit it", "correct the schema; docs/run-task.md says what is taken"},

		{Unauthorized, http.StatusUnauthorized, "no key or token was sent, or it is not known", "use a valid key: sudo, or CLAWJAIL_KEY; make a new one with `clawjail operator create NAME --role ROLE`"},
		{Forbidden, http.StatusForbidden, "the caller is known and may not do this", "ask somebody whose role may; `clawjail whoami` says who you are"},
		{NoRoot, http.StatusForbidden, "the command needs root", "run it with sudo"},

		{GrantMissing, http.StatusUnauthorized, "the session wants accounts, and no grant was sent", "issue one: `clawjail grant issue`"},
		{GrantInvalid, http.StatusUnauthorized, "the grant is not one that this installation has issued", "issue one here, and paste the whole token"},
		{GrantWrongTenant, http.StatusForbidden, "the grant belongs to another tenant", "issue one for the tenant of the session"},
		{GrantRevoked, http.StatusForbidden, "the grant has been revoked", "issue a new one"},
		{GrantUsed, http.StatusForbidden, "the grant has been used; it is good for one session", "issue a new one for every session"},
		{GrantExpired, http.StatusForbidden, "the grant has expired, or is not valid yet", "issue a new one; see that the clock of the machine is right"},
		{GrantWrongOrigin, http.StatusForbidden, "the grant was issued for another session", "issue one for this caller"},
		{GrantScope, http.StatusForbidden, "the grant does not cover what was asked for", "issue one with the domains and the access that are asked for"},
		{AccountNotAllowed, http.StatusForbidden, "the agent sent no grant, and no permission lets it use the account now",
			"permit it: `clawjail cookies allow DOMAIN --agent NAME`; or let the agent ask with `request_access`"},

		{NotFound, http.StatusNotFound, "nothing that the caller may see has that name", "list what there is, and check the name"},
		{Conflict, http.StatusConflict, "the thing exists already, or is in a state that does not allow this", "see what is there, then try again"},
		{SessionClosed, http.StatusGone, "the session has been closed", "open a new session"},
		{BrowserExited, http.StatusGone, "the browser of the session has ended", "open a new session; `session show` says why it ended"},
		{AccountLost, http.StatusGone, "the browser's network process ended, and the account of the session with it; nothing was sent without the account", "open a new session with a new grant"},
		{CookiesLost, http.StatusGone, "the browser's network process ended, and the session's cookies and logins with it", "open a new session, and log in again"},
		{PageCrashed, http.StatusConflict, "the process of the page ended, by itself or for want of memory; the browser goes on", "navigate again; give the session more memory (`--memory`), or open a lighter page"},
		{TakenOver, http.StatusConflict, "a person has taken over the session's browser", "wait until the person hands it back, or ask them"},

		{LoginNeeded, http.StatusConflict, "a site has forgotten the login of a session's account, and asks to log in where a page should be", "log in again: `clawjail cookies refresh DOMAIN`, and open a new session"},
		{NeedsRefresh, http.StatusConflict, "the stored login of a site no longer works; somebody has to log in again", "log in again: `clawjail cookies refresh DOMAIN`"},
		{AccountBusy, http.StatusConflict, "another session uses the account, and no more may at the same time", "wait until the other session is closed, or allow more with --max-sessions"},

		{TabNotFound, http.StatusNotFound, "no tab has that handle, label or id", "list the tabs"},
		{TabAmbiguous, http.StatusConflict, "more than one tab has a handle, label or id that begins so", "give more of the id"},
		{StaleRef, http.StatusConflict, "the ref is of a page that is not shown any more; take a new snapshot", "take a new snapshot"},
		{ActKindRequired, http.StatusBadRequest, "an action does not say what it is", "give a kind"},
		{ActInvalidRequest, http.StatusBadRequest, "an action is not valid", "correct what the message names"},
		{ActSelectorUnsupported, http.StatusBadRequest, "an action of that kind takes a ref and no selector", "give a ref of a snapshot"},
		{ActEvaluateDisabled, http.StatusForbidden, "JavaScript of the caller's is not run in this browser", "do without, or open the session with the access cdp"},
		{ActTargetIDMismatch, http.StatusForbidden, "an action within a batch names another tab", "send actions of one tab in one batch"},
		{ActOperationFailed, http.StatusInternalServerError, "the page did not let the action happen", "take a new snapshot: something may cover the element"},
		{MethodDenied, http.StatusForbidden, "clients may not send that command of the DevTools protocol", "do it another way; docs/cdp.md says what is allowed"},

		{TaskGaveUp, http.StatusUnprocessableEntity, "the model of a task says that its goal cannot be reached", "look at the recording of the session; set another goal, or begin at another page"},
		{TaskBound, http.StatusUnprocessableEntity, "the steps or the tokens of a task are used, and there is no answer", "allow more steps or tokens, or set a smaller goal"},
		{TaskNonsense, http.StatusBadGateway, "ten answers of a task's model in a row could not be used, or three did not fit the schema", "name a model that uses tools well, or set a simpler goal or schema"},

		{BrowserDisabled, http.StatusForbidden, "the host browser is switched off in its settings", "set browser.enabled in the configuration"},
		{BrowserNotRunning, http.StatusConflict, "the host browser does not run", "start it: `clawjail browser start`"},
		{BrowserFailed, http.StatusInternalServerError, "the host browser could not be started", "read what it printed, in the message"},
		{BrowserMissing, http.StatusServiceUnavailable, "no browser that can be used is installed", "install Chromium or Chrome, or name one as browser.executable"},
		{NoDisplay, http.StatusConflict, "a browser with a window was asked for, and there is no display", "run it headless, or on a desktop"},

		{RateLimited, http.StatusTooManyRequests, "too many requests; wait and try again", "wait as long as the answer says"},
		{TooManySessions, http.StatusTooManyRequests, "as many sessions are open as the installation, the tenant or the agent may have", "close one, or raise sessions.max or the quotas"},

		{TemplateMissing, http.StatusServiceUnavailable, "the template has not been built", "build it: `sudo clawjail template build browser`"},
		{TemplateChanged, http.StatusServiceUnavailable, "the template is not as it was built", "build it again"},
		{TemplateInUse, http.StatusConflict, "jails still run from the template", "end the sessions and agents that run from it"},
		{TemplateBuildFailed, http.StatusInternalServerError, "building the template did not work", "read the lines before it; most often a mirror was not reached or the disk is full"},
		{RuntimeMissing, http.StatusServiceUnavailable, "no OCI runtime that works here was found", "install crun or runc, then `sudo clawjail doctor`"},
		{ToolMissing, http.StatusServiceUnavailable, "a program that is needed is not installed", "install the program that is named"},
		{Unsupported, http.StatusNotImplemented, "this system cannot do it", "see docs for your system; `sudo clawjail doctor` says what is missing"},
		{DiskFull, http.StatusInsufficientStorage, "the host's disk is full, or a share of it", "free some space in data_dir, or raise the quotas"},
		{PoolExhausted, http.StatusServiceUnavailable, "all addresses or network slots are in use", "close something, or configure a larger subnet"},
		{NodeUnreachable, http.StatusServiceUnavailable, "the control plane that has the session does not answer", "try again; `clawjail node ls` says which control planes there are"},
		{NodeDraining, http.StatusServiceUnavailable, "the control plane opens no new sessions, because somebody is about to stop it", "ask another one, or have it open sessions again: `clawjail node resume NODE`"},
		{NetworkNotEnforced, http.StatusServiceUnavailable, "a pod of Kubernetes reaches what no jail may reach, so nothing was started in it", "use a network plugin that enforces the policies of the namespace, and look at these policies"},
		{NodeLost, http.StatusGone, "the control plane that had the session is lost, and the session with it", "open a new session"},
		{HostdUnreachable, http.StatusServiceUnavailable, "the host daemon does not answer", "start it: `sudo clawjail up`, or its service; `clawjail status` says what runs"},
		{ControlPlaneUnreachable, http.StatusServiceUnavailable, "the control plane does not answer", "start it: `sudo clawjail up`, or its service; `clawjail status` says what runs"},
		{ShuttingDown, http.StatusServiceUnavailable, "clawjail is being stopped", "wait until it has been started again"},
		{AuditUnavailable, http.StatusServiceUnavailable, "the action could not be recorded, so it was not done", "see whether the database runs and its disk has room"},
		{AuditBroken, http.StatusServiceUnavailable, "the audit log of this node was changed, or a part of it is missing", "`sudo clawjail audit verify` says where; restore the database from a backup"},
		{DatabaseUnavailable, http.StatusServiceUnavailable, "the database cannot be used at the moment", "see whether it runs, and whether its disk has room"},
		{DatabaseTooNew, http.StatusServiceUnavailable, "the database was changed by a newer clawjail", "install the version that it was used with, or a newer one"},
		{DatabaseTooOld, http.StatusServiceUnavailable, "the database was made by a clawjail from before the first release", "begin with an empty database"},

		{VaultKeyMissing, http.StatusServiceUnavailable, "the vault's key file is gone, and the database has entries that only it opens", "put the key file back from a backup"},
		{VaultKeyWrong, http.StatusServiceUnavailable, "the vault's key file is not the one that the database was written with", "put back the key file that belongs to this database"},
		{VaultKeyDamaged, http.StatusServiceUnavailable, "the vault's key file is cut, changed, or no key file", "put the key file back from a backup"},
		{VaultKeyExposed, http.StatusServiceUnavailable, "the vault's key file, or its folder, is open to other users", "take the file and its folder from others (chmod go=), and rotate the key"},
		{VaultRowDamaged, http.StatusInternalServerError, "an entry of the vault was changed in the database, or moved to another place", "store the entry again; see the audit log for who could change it"},
		{VaultRotating, http.StatusConflict, "the vault's key is being rotated", "wait until it has ended, or start it again if it does not run"},

		{JailFailed, http.StatusInternalServerError, "a jail could not be made, started or used", "the log of the host daemon says why; `sudo clawjail doctor` tries what jails are made of"},
		{JailUnconfined, http.StatusInternalServerError, "a jail was not confined as declared, and was stopped", "do not work around it: `sudo clawjail doctor`, and report it"},
		{JailBusy, http.StatusConflict, "the jail is in the middle of another operation", "try again in a moment"},
		{InjectionFailed, http.StatusInternalServerError, "the browser did not take the cookies of an account as they are", "log in again for the account"},
		{LimitMemory, http.StatusConflict, "the jail ran out of its own memory", "raise the memory of the jail, or do less in it"},
		{LimitTasks, http.StatusConflict, "the jail ran out of its own tasks (processes and threads)", "raise its tasks"},
		{LimitDisk, http.StatusConflict, "the jail ran out of its own disk space", "raise the size of what is full, or remove files"},
		{LimitFiles, http.StatusConflict, "the jail ran out of its own file descriptors", "raise its files"},
		{LimitWallClock, http.StatusConflict, "the jail ran for as long as it may", "open a new one, or raise sessions.wall_clock"},

		{BadHost, http.StatusForbidden, "the host of a request through the gateway is not a valid name or address", "give a valid host name"},
		{UnknownCaller, http.StatusForbidden, "a request through the gateway came from an address that is no jail's", "nothing: only jails use the gateway"},
		{HostDenied, http.StatusForbidden, "the policy does not let the jail reach that host", "allow it: `clawjail rules add allow HOST`, or ask for access"},
		{PortDenied, http.StatusForbidden, "the policy does not let the jail reach that port", "allow the port: `clawjail rules add allow HOST:PORT`"},
		{AddressDenied, http.StatusForbidden, "the host's address is private or reserved", "name it in gateway.private_destinations, if jails may reach it"},
		{SNIMismatch, http.StatusForbidden, "the TLS server name is not the host that the tunnel was opened for", "the program in the jail asks for one host and means another: look at it"},
		{DNSFailed, http.StatusBadGateway, "the host's name has no address", "see the spelling of the host, and the DNS of the machine"},
		{UpstreamUnreachable, http.StatusBadGateway, "a server outside could not be reached", "see whether the server runs and the machine has a network"},
		{PathDenied, http.StatusForbidden, "the policy does not let the jail reach that path, or the path can be read in two ways", "allow the path in the service, or write it without dots and escapes"},
		{ToolDenied, http.StatusForbidden, "no tool of the agent allows this request", "allow it in the service, or ask for access"},
		{CredentialMissing, http.StatusNotFound, "the vault has no secret of that name for the agent", "store it: `clawjail secret set SERVICE`"},
		{SecretNotBound, http.StatusForbidden, "the secret belongs to other origins than the one that it would go to, or to none yet", "correct the URL of the service, provider or MCP server; if the secret belongs there, store it again: `clawjail secret set SERVICE --origin ORIGIN`"},
		{ServiceUnknown, http.StatusNotFound, "the agent has no service of that name", "declare it: `clawjail service add NAME`"},
		{ModelUnknown, http.StatusNotFound, "no provider of the agent has that model", "declare a provider that has it: `clawjail provider add NAME`"},
		{PriceUnknown, http.StatusForbidden, "the agent has a budget in money, and the model, or a part of the request, has no price", "say it: `clawjail provider add NAME --price PATTERN=IN/OUT`"},
		{HostedDenied, http.StatusForbidden, "the provider of a model would do something by itself, past the agent's rules", "send the data itself, or allow it: `clawjail provider add NAME --allow-hosted WHAT`"},
		{BudgetExceeded, http.StatusTooManyRequests, "the agent has used what it may use of models today", "wait until midnight UTC, or raise the budget of the agent"},
		{TokenMismatch, http.StatusProxyAuthRequired, "the token is not one of the agent whose jail it came from", "use the token of the agent whose jail it is"},
		{TooLarge, http.StatusRequestEntityTooLarge, "a body is larger than the limit", "send less"},
		{ResponseBlocked, http.StatusBadGateway, "the answer of a service was held back, because it has the credential in it or cannot be looked through", "see docs/scrubbing.md"},
		{UpstreamFailed, http.StatusBadGateway, "a server outside did not give a usable answer", "look at what the server answered"},
		{NavigationFailed, http.StatusBadGateway, "the page could not be loaded", "see the address, and whether the policy lets the jail reach it"},
		{Timeout, http.StatusGatewayTimeout, "it took longer than it may", "try again, or give more time"},
		{Canceled, statusClientClosedRequest, "the caller left before the answer", "nothing"},

		{Internal, http.StatusInternalServerError, "an error that has no code of its own", "look into the log of the daemon that said so; if it comes again, report it with that line"},
	}
}

// Level is the log level of a failure with a status. A timeout, or a server outside that fails, is nothing for the operator to mend.
func Level(status int) slog.Level {
	if status == http.StatusBadGateway || status == http.StatusGatewayTimeout {
		return slog.LevelInfo
	}
	return slog.LevelError
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
