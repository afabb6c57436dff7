package supervisor

// startable is a path by which another user can start this program also from a folder that only root can enter, such
// as a home: the kernel's own link to what this process runs, which needs no way through folders. It also keeps both
// halves of one version when the file is replaced meanwhile.
func startable(string) string { return "/proc/self/exe" }
