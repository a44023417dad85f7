//go:build tools

// Package tools pins the API server of the oldest Kubernetes that Muster supports; go.sum holds the checksums.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
)
