"""Makes the manifests of a job: pods (`pods.py` fills `templates/pod.yaml.j2`), the Service, PodGroups and Workloads of Kueue."""
