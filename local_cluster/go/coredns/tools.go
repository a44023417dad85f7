//go:build tools

// Package tools pins coredns; go.sum holds its checksums.
package tools

import _ "github.com/coredns/coredns"
