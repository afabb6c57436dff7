// Command mirror serves a part of Debian's archive in the guest of a test, to that guest alone.
package main

import (
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: mirror FOLDER ADDRESS")
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, "mirror:", http.ListenAndServe(os.Args[2], serve(os.Args[1])))
	os.Exit(1)
}

// serve answers with files of the folder. All packages are in one folder of it, wherever the lists say that they are.
func serve(dir string) http.Handler {
	files := http.FileServer(http.Dir(dir))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := path.Base(r.URL.Path); strings.HasSuffix(name, ".deb") {
			http.ServeFile(w, r, filepath.Join(dir, "pool", name))
			return
		}
		files.ServeHTTP(w, r)
	})
}
