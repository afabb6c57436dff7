#!/bin/bash
# k8s.sh: builds the parts of Kubernetes that test/k8s runs, from their Go modules, and prints the folder that they are in. It takes minutes
# once for each version, and nothing afterwards.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
parts=$here/test/k8s/parts
key=$(cd "$parts" && cat ./*/go.mod ./*/go.sum ./*/*.go "$here/scripts/k8s.sh" | sha256sum | cut -c1-16)
out=/var/cache/clawjail-test/k8s-$(go env GOARCH)-$key

mkdir -p /var/cache/clawjail-test
exec {lock}>/var/cache/clawjail-test/k8s.lock
flock "$lock"
if [ ! -e "$out/complete" ]; then
	new=$out.new
	rm -rf "$new"
	mkdir -p "$new"
	export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false"
	build() { # FOLDER NAME PACKAGE [FLAG…]
		echo "building $2" >&2
		(cd "$parts/$1" && go build "${@:4}" -ldflags "-s -w ${symbols:-}" -o "$new/$2" "$3")
	}
	build etcd etcd .
	build containerd containerd github.com/containerd/containerd/v2/cmd/containerd -tags no_btrfs
	build containerd containerd-shim-runc-v2 github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
	build containerd ctr github.com/containerd/containerd/v2/cmd/ctr -tags no_btrfs
	version=$(cd "$parts/kubernetes" && go list -m -f '{{.Version}}' k8s.io/kubernetes) # charts ask for it
	symbols="-X k8s.io/component-base/version.gitVersion=$version" build kubernetes kubernetes .
	build sandbox agent-sandbox-controller sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller
	build helm helm helm.sh/helm/v4/cmd/helm
	build router kube-router github.com/cloudnativelabs/kube-router/v2/cmd/kube-router
	build kwok kwok sigs.k8s.io/kwok/cmd/kwok
	mkdir "$new/stages" # what hollow nodes and their pods do
	cp "$(cd "$parts/kwok" && go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)"/kustomize/stage/{node/fast/node-initialize,node/heartbeat-with-lease/node-heartbeat-with-lease,pod/fast/pod-ready,pod/fast/pod-delete}.yaml "$new/stages/"
	cp -r "$(cd "$parts/sandbox" && go list -m -f '{{.Dir}}' sigs.k8s.io/agent-sandbox)/k8s/crds" "$new/crds"
	(cd "$parts/monitor" && go mod download github.com/prometheus-operator/prometheus-operator)
	cp "$(cd "$parts/monitor" && go list -m -f '{{.Dir}}' github.com/prometheus-operator/prometheus-operator)/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml" "$new/crds/"
	chmod -R u+w "$new/crds" "$new/stages"
	touch "$new/complete"
	rm -rf "$out"
	mv "$new" "$out"
fi
echo "$out"
