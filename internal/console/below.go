package console

import "regexp"

// ownAddress is an attribute of a page with an address of the console's. Texts have no such quotes: templates escape them.
var ownAddress = regexp.MustCompile(`( (?:action|formaction|href|src|hx-get|hx-post|data-back|data-events|data-live|data-merge)=")(` + Prefix + `[/?#"])`)

// below puts the path of public_url before the addresses in a page. Handlers and templates know nothing of it: the API takes
// it away from what is asked for, and puts it before redirects.
func (c *Console) below(page []byte) []byte {
	if c.path == "" {
		return page
	}
	return ownAddress.ReplaceAll(page, []byte("${1}"+c.path+"${2}"))
}
