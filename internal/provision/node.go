package provision

import (
	_ "embed"
	"path"
)

//go:embed proxy.mjs
var nodeImport string

// forNode makes Node use the proxy. Node itself does from 22.21 and 24.5 on, when NODE_USE_ENV_PROXY says so; older ones
// (from 18.19 on, which is the first to take --import in NODE_OPTIONS) import a file that does it for them, and does
// nothing in newer ones.
func forNode(dir string) (Env, []File) {
	file := File{Path: path.Join(dir, "proxy.mjs"), Mode: 0o644, Content: nodeImport}
	return Env{"NODE_USE_ENV_PROXY": "1", "NODE_OPTIONS": "--import=" + file.Path}, []File{file}
}
