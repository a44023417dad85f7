//go:build tools

// Package tools keeps the S3 server that the tests of checkpoints run in go.mod.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
