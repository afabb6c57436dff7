// Command kubernetes is the parts of Kubernetes that a cluster of the tests runs, by their names.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	parts := map[string]func() int{
		"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
		"kube-controller-manager": func() int { return cli.Run(controllers.NewControllerManagerCommand()) },
		"kube-proxy":              func() int { return cli.Run(proxy.NewProxyCommand()) },
		"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
		"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
		"kubectl":                 func() int { return cli.Run(kubectl.NewDefaultKubectlCommand()) },
	}
	if len(os.Args) < 2 || parts[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: kubernetes PART [FLAGS]")
		os.Exit(64)
	}
	part := parts[os.Args[1]]
	os.Args = os.Args[1:]
	os.Exit(part())
}
