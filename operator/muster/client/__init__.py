"""Jobs as a user sees them: the cluster with a user's kubeconfig and rights, and the Python client for clusters and this machine."""
