//go:build tools

// Package tools pins kind; go.sum holds its checksums.
package tools

import _ "sigs.k8s.io/kind"
