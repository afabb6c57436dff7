#!/bin/sh
# The smallest agent that does something, with sh and curl. The same is in main.go and agent.py. It takes no webhooks.
set -u
name=${AGENT_NAME:-clawbot}
gateway=${SHELL_URL:-http://gateway:3000}
token_file=${CLAWBOT_TOKEN_FILE:-/run/hermit/token}
target=${CLAWBOT_TARGET:-https://api.example.com/status}
pause=${CLAWBOT_PAUSE:-60s}

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

# execute asks the gateway to make a request, and prints the status of its answer; 000 is no answer. The token is read anew each
# time, because it is rotated by replacing the file, and goes to curl on its standard input, so that no list of processes shows it.
execute() {
	printf 'header = "Authorization: Bearer %s"\n' "$(cat "$token_file")" |
		curl --silent --output /dev/null --max-time 40 --noproxy '*' --write-out '%{http_code}' --config - \
			--header 'Content-Type: application/json' --data "{\"url\":\"$target\",\"method\":\"GET\"}" "$gateway/v1/execute" ||
		:
}

say started ""
while [ ! -s "$token_file" ]; do
	rest 0.2
done
say token ""
while :; do
	status=$(execute)
	case $status in
	000 | "") say failed ',"error":"the gateway does not answer"' ;;
	*) say executed ",\"status\":$status" ;;
	esac
	rest "$pause"
done
