#!/bin/sh
# Everything that can be said about the code in a minute and without root: its format, its correctness on every
# system that it is built for, and the tests that need nothing prepared.
set -eu
cd "$(dirname "$0")/.."

unformatted=$(find . -name '*.go' -not -path './.git/*' -exec gofmt -l {} +)
if [ -n "$unformatted" ]; then
	echo "error: not formatted:" >&2
	echo "$unformatted" >&2
	echo "hint: gofmt -w ." >&2
	exit 1
fi
for target in linux/amd64 linux/arm64 freebsd/amd64 darwin/arm64; do
	GOOS=${target%/*} GOARCH=${target#*/} go vet ./... || {
		echo "error: go vet for $target" >&2
		exit 1
	}
done
go tool staticcheck ./...
exec go test -short ./...
