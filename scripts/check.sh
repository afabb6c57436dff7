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
for target in linux/amd64 freebsd/amd64 freebsd/arm64 darwin/arm64; do
	GOOS=${target%/*} GOARCH=${target#*/} go vet ./... || {
		echo "error: go vet for $target" >&2
		exit 1
	}
done
# Those that differ from one of these in the processor only are built: what vet would say, it has said.
for target in linux/arm64 darwin/amd64; do
	GOOS=${target%/*} GOARCH=${target#*/} go build ./... || {
		echo "error: go build for $target" >&2
		exit 1
	}
done
go vet -tags screenshots,zfs,vm,guests ./test/...
go tool staticcheck ./...
exec go test -short ./...
