package kubernetes

import (
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/link"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/testenv"
)

// podsAt makes a driver, and pods that wait, by their names, at addresses of the loopback. connect has one of them connect, and is its side of the stream.
func podsAt(t *testing.T, addresses map[string]string) (d *Driver, c *cluster, connect func(name string) *fakePod) {
	t.Helper()
	c = &cluster{tokens: map[string]string{}, objects: map[string]string{}}
	for name, address := range addresses {
		c.tokens["of "+name] = fmt.Sprintf(`{"authenticated":true,"audiences":["clawjail-gateway"],"user":{"username":"system:serviceaccount:jails:default",
			"extra":{"authentication.kubernetes.io/pod-name":[%q],"authentication.kubernetes.io/pod-uid":["u-`+name+`"]}}}`, name)
		c.objects["/api/v1/namespaces/jails/pods/"+name] = fmt.Sprintf(`{"metadata":{"name":%[1]q,"uid":"u-`+name+`","ownerReferences":[{"apiVersion":"agents.x-k8s.io/v1beta1","kind":"Sandbox","name":%[1]q,"uid":"s-`+name+`","controller":true}]},
			"status":{"phase":"Running","podIPs":[{"ip":%q}]}}`, name, address)
		c.objects["/apis/agents.x-k8s.io/v1beta1/namespaces/jails/sandboxes/"+name] = fmt.Sprintf(`{"metadata":{"name":%q,"uid":"s-`+name+`","ownerReferences":[{"apiVersion":"extensions.agents.x-k8s.io/v1beta1","kind":"SandboxWarmPool","name":"pool","uid":"p","controller":true}]}}`, name)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	d, err = New(t.Context(), Options{API: c.api(t), Installation: "test", Node: "one", Namespace: "jails", Account: "default", Gateway: l.Addr().String(), Key: key, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		d.Serve(l)
		close(served)
	}()
	t.Cleanup(func() {
		_ = l.Close()
		d.Close()
		<-served
	})
	return d, c, func(name string) *fakePod {
		t.Helper()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addresses[name])}}
		conn, err := tls.DialWithDialer(&dialer, "tcp", l.Addr().String(), shim.ClientTLS(d.pin))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		p := &fakePod{conn: conn, stream: link.New(time.Minute)}
		t.Cleanup(func() { _ = p.stream.Close() })
		_, err = p.stream.Take(conn)
		var welcome shim.Welcome
		if err := errors.Join(err, shim.WriteMessage(conn, shim.Hello{Version: shim.Version, Token: "of " + name})); err != nil {
			t.Fatal(err)
		}
		if err := shim.ReadMessage(conn, &welcome); err != nil || welcome.Refused.Err() != nil {
			t.Fatalf("%v, %v", err, welcome.Refused.Err())
		}
		p.arrived = welcome.Arrived
		testenv.Eventually(t, 5*time.Second, func() bool { return podNamed(d, name) != nil }, "%s is there", name)
		return p
	}
}

// podNamed is a pod that the driver has.
func podNamed(d *Driver, name string) *pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pods[name]
}

// fakePod is the side of a pod.
type fakePod struct {
	conn    net.Conn
	stream  *link.Stream
	arrived uint64
}

// serve says of every program that it runs, until the connection is closed.
func (p *fakePod) serve(t *testing.T) {
	t.Helper()
	session, err := yamux.Server(p.stream, shim.Session(16), nil)
	if err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	both.Go(func() { _ = p.stream.Carry(p.conn, p.arrived) })
	both.Go(func() {
		for {
			st, err := session.AcceptStream()
			if err != nil {
				return
			}
			var r shim.Request
			if err := shim.ReadMessage(st, &r); err == nil && r.Do == shim.DoRun {
				_ = shim.WriteMessage(st, shim.Reply{PID: 7})
			}
		}
	})
	t.Cleanup(func() {
		_ = p.conn.Close()
		_ = session.Close()
		both.Wait()
	})
}

// What was let through for an address is not for whoever has it next.
func TestAPodWhoseAddressIsAnothersIsGone(t *testing.T) {
	d, _, connect := podsAt(t, map[string]string{"one": "127.0.0.1", "two": "127.0.0.1"})
	connect("one")
	connect("one") // again, as one in which nothing has begun may
	connect("two")
	testenv.Eventually(t, 5*time.Second, func() bool { return podNamed(d, "one") == nil }, "the first one is gone")
}

// A pod whose connection is broken is waited for while the cluster has it, and not when it has ended.
func TestAPodThatHasEndedIsNotWaitedFor(t *testing.T) {
	const running = `"phase":"Running"`
	ends := map[string]struct {
		status string // in the place of running
		cause  jail.Cause
	}{
		"memory":  {running + `,"containerStatuses":[{"state":{"terminated":{"reason":"OOMKilled","exitCode":137}}}]`, jail.CauseMemory},
		"crashed": {running + `,"containerStatuses":[{"state":{"terminated":{"reason":"Error","exitCode":137}}}]`, jail.CauseExited},
		"evicted": {`"phase":"Failed","reason":"Evicted"`, jail.CauseExited},
		"deleted": {"", jail.CauseExited},
		"another": {running, jail.CauseExited},
		"waited":  {running + `,"containerStatuses":[{"state":{"running":{}}}]`, ""},
		"unsaid":  {"", ""}, // something between answers that there is no such page
	}
	addresses := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		addresses[name] = fmt.Sprintf("127.0.0.%d", 2+len(addresses))
	}
	d, c, connect := podsAt(t, addresses)
	pods, conns := map[string]*pod{}, map[string]net.Conn{}
	for name := range ends {
		fake := connect(name)
		fake.serve(t)
		pods[name], conns[name] = podNamed(d, name), fake.conn
		var stdio [3]*os.File
		for n := range stdio {
			f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			stdio[n] = f
		}
		if _, err := pods[name].Run(t.Context(), shim.Run{Main: true}, stdio); err != nil {
			t.Fatal(err)
		}
	}
	for name, end := range ends {
		path := "/api/v1/namespaces/jails/pods/" + name
		c.objects[path] = strings.Replace(c.objects[path], running, end.status, 1)
		switch name {
		case "deleted":
			delete(c.objects, path)
		case "unsaid":
			c.objects[path] = ""
		}
		if name == "another" {
			c.objects[path] = strings.ReplaceAll(c.objects[path], `"u-another"`, `"u-other"`)
		}
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	for name, end := range ends {
		if end.cause == "" {
			continue
		}
		testenv.Eventually(t, 5*time.Second, func() bool {
			select {
			case <-pods[name].Done():
				return true
			default:
				return false
			}
		}, "%s is not waited for", name)
		if exit := d.exitOf(pods[name]); exit.Cause != end.cause || exit.Signal != "killed" || slices.Contains(exit.Hit, jail.LimitMemory) != (end.cause == jail.CauseMemory) {
			t.Errorf("%s: it has ended with %+v", name, exit)
		}
	}
	time.Sleep(2 * brokenFor) // they are looked at
	for _, name := range []string{"waited", "unsaid"} {
		select {
		case <-pods[name].Done():
			t.Errorf("the pod %s is given up", name)
		default:
		}
		if exit := d.exitOf(pods[name]); exit.Cause != jail.CauseOwnerLost {
			t.Errorf("%s would have ended with %+v", name, exit)
		}
	}
}
