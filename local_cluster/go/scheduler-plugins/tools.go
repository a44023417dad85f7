//go:build tools

// Package tools pins the scheduler of scheduler-plugins; go.sum holds its checksums.
package tools

import _ "sigs.k8s.io/scheduler-plugins/cmd/scheduler"
