//go:build tools

// Package tools pins helm; go.sum holds its checksums.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
