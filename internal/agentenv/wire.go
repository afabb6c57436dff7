package agentenv

// The wire contract between an agent and clawjail: what a program may count on in its jail, whichever kind of jail it
// is. The names are older than clawjail, and programs that were written for them work as they are; they never change.
const (
	// GatewayName and OlderGatewayName are the hosts under which a jail finds the gateway.
	GatewayName      = "gateway"
	OlderGatewayName = "hermit_shell"
	// GatewayURL is where the gateway listens in a jail.
	GatewayURL = "http://gateway:3000"

	// EnvGateway holds the gateway's URL, EnvName the agent's name, EnvHome the folder that is the agent's own.
	EnvGateway = "SHELL_URL"
	EnvName    = "AGENT_NAME"
	EnvHome    = "AGENT_HOME"

	// TokenFile holds the agent's token, for programs that present one. It is a file so that it can be rotated, and
	// so that no listing of an environment shows it.
	TokenFile = "/run/hermit/token"
	// StateDir is kept when the jail is not, and WorkspaceDir is the operator's folder, where there is one.
	StateDir     = "/state"
	WorkspaceDir = "/workspace"
)

// Dir is where the files of a [Payload] are in a jail by default.
const Dir = "/run/clawjail/provision"

// KeyPlaceholder stands where tools insist on a key. The gateway drops it and puts the real one in.
const KeyPlaceholder = "the-gateway-puts-the-key-in"
