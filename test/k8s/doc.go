// Package k8s tries what clawjail has for Kubernetes on a real cluster of one node: the API server, etcd, the controllers, the scheduler, a kubelet with
// containerd and runc, and the controller of agent-sandbox, built from their Go modules by scripts/k8s.sh.
//
// It promises: the cluster has processes, mounts and a network of its own, and nothing of it is left on the host but the parts, which are built
// once and kept in /var/cache/clawjail-test by the digest of what they are built of.
package k8s
