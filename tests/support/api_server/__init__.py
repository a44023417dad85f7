"""A real API server without nodes, the chart installed in it, operators as processes, and this process in the kubelets' place."""
