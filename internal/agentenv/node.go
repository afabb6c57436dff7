package agentenv

import (
	_ "embed"
	"path"
)

//go:embed proxy.cjs
var nodeProxy string

// forNode makes Node use the proxy. Node itself does from 22.21 and 24.5 on, when NODE_USE_ENV_PROXY says so; older ones
// load a file that does it for them, and does nothing in newer ones. A Node that does not know an option in NODE_OPTIONS does
// not start: --require is one that all know.
func forNode(dir string) (Env, []File) {
	file := File{Path: path.Join(dir, "proxy.cjs"), Mode: 0o644, Content: nodeProxy}
	return Env{"NODE_USE_ENV_PROXY": "1", "NODE_OPTIONS": "--require=" + file.Path}, []File{file}
}
