// Package memory says how much memory the host has.
package memory
