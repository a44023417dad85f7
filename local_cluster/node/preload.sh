#!/bin/bash
# preload.sh ROOT: imports ROOT/preload/images.tar into the containerd store below ROOT, with ROOT's own containerd.
# Runs under `unshare --mount --pid --fork`: mounts and processes end with it.
set -euo pipefail
root=$1
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
printf 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n' > "$root/tmp/containerd.toml"
chroot "$root" containerd --config /tmp/containerd.toml --log-level error &
server=$!
for _ in $(seq 100); do
  chroot "$root" ctr version > /dev/null 2>&1 && break
  sleep 0.1
done
chroot "$root" ctr --namespace k8s.io images import /preload/images.tar
kill "$server"
wait "$server" || true
