//go:build tools

// Package tools pins kwok; go.sum holds its checksums.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
