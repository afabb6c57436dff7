package jail

import "slices"

// RootsFor are the folders beneath which a jail of a tenant may have folders of the host: those of the configuration, and those
// that root has added since, which are asked for each time. An added one was said yes to for the tenant default alone: the folders
// in it have names that were not compared with those of tenants. added may be nil.
func RootsFor(tenant string, configured []string, added func() ([]string, error)) ([]string, error) {
	if tenant != DefaultTenant || added == nil {
		return configured, nil
	}
	more, err := added()
	return slices.Concat(configured, more), err
}

// Roots is RootsFor the jail's tenant. For a jail without mounts added is not called: the jail is made also while that fails.
func (s Spec) Roots(configured []string, added func() ([]string, error)) ([]string, error) {
	if len(s.Mounts) == 0 {
		return nil, nil
	}
	return RootsFor(s.Tenant(), configured, added)
}
