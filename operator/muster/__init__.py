"""Muster runs distributed training jobs on Kubernetes and on a laptop, and gets them finished."""
