package grant

import "github.com/clawjail/clawjail/internal/base/secret"

// Token is the text of a grant as it travels. It prints as [redacted]; Reveal is the text.
type Token struct{ secret.Text }

// ParseToken takes a text that somebody sent. Whether it is a token is found out by [Issuer.Verify].
func ParseToken(text string) Token { return Token{secret.NewText(text)} }
