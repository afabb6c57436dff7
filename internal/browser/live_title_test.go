package browser

import "testing"

// Chromium sends no event for it, and the tab kept the title that it was loaded with.
func TestATitleThatAScriptChangesIsTold(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := liveSite(t, build, map[string]string{"/": `<title>before</title>`})
		arrive(t, b, "/")
		v := b.Live().Watch()
		defer v.Close()
		titled := func(title string) func(*LiveState) bool {
			return func(s *LiveState) bool { return len(s.Tabs) == 1 && s.Tabs[0].Title == title }
		}
		nextState(t, v, "the first title is there", titled("before"))
		read(t, b, `document.title = "after"`)
		nextState(t, v, "the new title is there", titled("after"))
	})
}
