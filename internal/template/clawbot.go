package template

// clawbotPath is the program of agents that have no command: clawbots.DefaultCommand.
const clawbotPath = "/usr/local/bin/clawbot"

// clawbotScript shows that an agent is alive, and that its token is good. The token goes to curl on its standard input, so that
// no list of processes shows it, and is read anew each time, because it is rotated by replacing the file.
const clawbotScript = `#!/bin/sh
# What runs in the jail of an agent that has no command. It waits for the token, says hello to the gateway, and then prints
# one JSON line a minute. Put a program of your own in its place: command: in clawbots.yml.
set -u
token_file=${CLAWBOT_TOKEN_FILE:-/run/hermit/token}
pause=${CLAWBOT_PAUSE:-60}
name=${AGENT_NAME:-clawbot}
gateway=${SHELL_URL:-http://gateway:3000}

# As the first process of a jail it gets no signal that it does not ask for.
trap 'say stopped ""; exit 0' TERM INT HUP

# say TYPE MORE prints one event; MORE is empty or begins with a comma.
say() {
	printf '{"type":"%s","agent":"%s","at":"%s"%s}\n' "$1" "$name" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$2"
}

# rest waits, and can be interrupted while it does.
rest() {
	sleep "$1" &
	wait $!
}

# hello asks for the agent's own sessions and prints the status of the answer; 000 is no answer.
hello() {
	printf 'header = "Authorization: Bearer %s"\n' "$(cat "$token_file" 2>/dev/null)" |
		curl --silent --output /dev/null --max-time 10 --noproxy '*' --write-out '%{http_code}' --config - "$gateway/v1/sessions" 2>/dev/null ||
		:
}

say started ""
while [ ! -s "$token_file" ]; do
	rest 0.2
done
say token ""
while :; do
	status=$(hello)
	say alive ",\"gateway\":\"${status:-000}\""
	rest "$pause"
done
`
