# shellcheck shell=sh
# Read by the other scripts (". scripts/root.sh"): as_root runs a command as root, with sudo where it is needed.

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null 2>&1; then
		sudo "$@"
	else
		echo "error: \`$*\` needs root" >&2
		echo "hint: run this as root, or install sudo" >&2
		exit 1
	fi
}
