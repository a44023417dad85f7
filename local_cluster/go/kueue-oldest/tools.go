//go:build tools

// Package tools pins Kueue; go.sum holds its checksums.
package tools

import _ "sigs.k8s.io/kueue/cmd/kueue"
