//go:build tools

// Package tools pins Karpenter with its provider for kwok; go.sum holds its checksums.
package tools

import _ "sigs.k8s.io/karpenter/kwok"
