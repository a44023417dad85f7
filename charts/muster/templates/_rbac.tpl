{{/* What the operator does in the namespaces whose jobs it runs. Training pods have no rights at all. */}}
{{- define "muster.jobRules" -}}
- apiGroups: [muster.dev]
  resources: [trainingjobs]
  verbs: [get, list, watch, delete] # delete: spec.ttlSecondsAfterFinished
- apiGroups: [muster.dev]
  resources: [trainingjobs/status]
  verbs: [update]
# Owner references that block deletion need this where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [muster.dev]
  resources: [trainingjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods, services]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims] # whether all pods can mount the one for checkpoints is said in condition StorageShared
  verbs: [get]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{- define "muster.subject" -}}
- kind: ServiceAccount
  name: {{ include "muster.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
