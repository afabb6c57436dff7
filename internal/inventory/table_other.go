//go:build !linux

package inventory

// table is empty where there is no driver yet.
var table []probe
