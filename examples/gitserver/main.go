// Command gitserver stands for GitHub when you try clawjail on a machine without the Internet: a git server on loopback with
// one empty repository, demo.git, that nobody gets without the token.
//
//	go run ./examples/gitserver -token TOKEN
//
// It makes the repository in a temporary folder, and removes it at the end. It needs git.
package main

import (
	"context"
	"crypto/subtle"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gitserver: error:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	listen := flag.String("listen", "127.0.0.1:9418", "where it listens")
	token := flag.String("token", "", "the password that it wants, of any user")
	flag.Parse()
	if *token == "" {
		return errors.New("-token is missing")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := os.MkdirTemp("", "gitserver-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	repository := filepath.Join(root, "demo.git")
	for _, args := range [][]string{{"init", "-q", "--bare", "-b", "main", repository}, {"-C", repository, "config", "http.receivepack", "true"}} {
		if out, err := exec.CommandContext(ctx, "git", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w: %s", args[0], err, out)
		}
	}
	where, err := exec.CommandContext(ctx, "git", "--exec-path").Output()
	if err != nil {
		return fmt.Errorf("find git's programs: %w", err)
	}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(where)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=demo"},
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		if subtle.ConstantTimeCompare([]byte(password), []byte(*token)) != 1 {
			fmt.Printf("%s %s: refused, no token\n", r.Method, r.URL.Path)
			w.Header().Set("WWW-Authenticate", `Basic realm="gitserver"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		fmt.Printf("%s %s: with the token\n", r.Method, r.URL.Path)
		backend.ServeHTTP(w, r)
	})}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Printf("serving http://%s/demo.git\n", l.Addr())
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
