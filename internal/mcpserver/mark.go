package mcpserver

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/clawjail/clawjail/internal/config"
)

// fingerprint tells one declaration from another: what was started of one is not used for the other.
func fingerprint(server config.MCPServer) string {
	text, err := json.Marshal(server)
	if err != nil {
		return rand.Text() // like no other, so that nothing is shared; texts and numbers always have a form
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func newID() string { return "ms_" + rand.Text() }
