//go:build tools

// Package tools pins cyclonus; go.sum holds its checksums.
package tools

import _ "github.com/mattfenwick/cyclonus/cmd/cyclonus"
