"""A real API server without nodes: the chart is installed in it, operators are processes, and the tests replace the kubelets."""
