package kubernetes

import (
	"crypto/ed25519"
	"crypto/tls"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/testenv"
)

// What was let through for an address is not for whoever has it next.
func TestAPodWhoseAddressIsAnothersIsGone(t *testing.T) {
	c := &cluster{tokens: map[string]string{}, objects: map[string]string{}}
	for _, name := range []string{"one", "two"} {
		c.tokens["of "+name] = fmt.Sprintf(`{"authenticated":true,"audiences":["clawjail-gateway"],"user":{"username":"system:serviceaccount:jails:default",
			"extra":{"authentication.kubernetes.io/pod-name":[%q],"authentication.kubernetes.io/pod-uid":["u-`+name+`"]}}}`, name)
		c.objects["/api/v1/namespaces/jails/pods/"+name] = fmt.Sprintf(`{"metadata":{"name":%[1]q,"uid":"u-`+name+`","ownerReferences":[{"apiVersion":"agents.x-k8s.io/v1beta1","kind":"Sandbox","name":%[1]q,"uid":"s-`+name+`","controller":true}]},
			"status":{"phase":"Running","podIPs":[{"ip":"127.0.0.1"}]}}`, name)
		c.objects["/apis/agents.x-k8s.io/v1beta1/namespaces/jails/sandboxes/"+name] = fmt.Sprintf(`{"metadata":{"name":%q,"uid":"s-`+name+`","ownerReferences":[{"apiVersion":"extensions.agents.x-k8s.io/v1beta1","kind":"SandboxWarmPool","name":"pool","uid":"p","controller":true}]}}`, name)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	d, err := New(t.Context(), Options{API: c.api(t), Installation: "test", Node: "one", Namespace: "jails", Account: "default", Gateway: l.Addr().String(), Key: key, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		d.Serve(l)
		close(served)
	}()
	defer func() {
		_ = l.Close()
		d.Close()
		<-served
	}()
	connect := func(name string) {
		t.Helper()
		conn, err := tls.Dial("tcp", l.Addr().String(), shim.ClientTLS(d.pin))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		var welcome shim.Welcome
		if err := shim.WriteMessage(conn, shim.Hello{Version: shim.Version, Token: "of " + name}); err != nil {
			t.Fatal(err)
		}
		if err := shim.ReadMessage(conn, &welcome); err != nil || welcome.Refused.Err() != nil {
			t.Fatalf("%v, %v", err, welcome.Refused.Err())
		}
	}
	there := func(name string) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.pods[name] != nil
	}
	connect("one")
	testenv.Eventually(t, 5*time.Second, func() bool { return there("one") }, "it is there")
	connect("one") // again, as one in which nothing has begun may
	testenv.Eventually(t, 5*time.Second, func() bool { return there("one") }, "it is there again")
	connect("two")
	testenv.Eventually(t, 5*time.Second, func() bool { return there("two") && !there("one") }, "the first one is gone")
}
