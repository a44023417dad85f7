//go:build tools

// Package tools pins etcd; go.sum holds its checksums.
package tools

import _ "go.etcd.io/etcd/server/v3"
