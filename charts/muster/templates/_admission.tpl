{{/* CEL of the policy for the authors of jobs. Without the right to create pods they get what jobPolicy.templates: Restricted allows: the
lists are those of operator/muster/admission/job_policy.py, and a test compares them. */}}
{{- define "muster.podFields" -}}
['affinity', 'containers', 'imagePullSecrets', 'initContainers', 'nodeSelector', 'resourceClaims', 'serviceAccount', 'serviceAccountName', 'terminationGracePeriodSeconds', 'topologySpreadConstraints', 'volumes']
{{- end }}
{{- define "muster.containerFields" -}}
['args', 'command', 'env', 'envFrom', 'image', 'imagePullPolicy', 'name', 'ports', 'resources', 'restartPolicy', 'volumeMounts', 'workingDir']
{{- end }}
{{- define "muster.portFields" -}}
['containerPort', 'name', 'protocol']
{{- end }}
{{- define "muster.plainVolumes" -}}
['name', 'configMap', 'downwardAPI', 'emptyDir', 'ephemeral', 'persistentVolumeClaim']
{{- end }}
