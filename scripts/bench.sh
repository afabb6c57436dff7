#!/bin/sh
# Builds what `make bench` runs: bin/bench, and the benchmarks of each package that has some, as a program below
# bin/benchmarks. They are built by the user who calls, so that no file of root's gets into the build cache.
set -eu
cd "$(dirname "$0")/.."

go build -trimpath -o bin/bench ./bench
rm -rf bin/benchmarks
grep -rl --include='*_test.go' '^func Benchmark' . | sed 's|/[^/]*$||; s|^\./||' | sort -u | while read -r package; do
	go test -c -o "bin/benchmarks/$package.test" "./$package"
done
