{{/* What the operator does in the namespaces whose jobs it runs. Training pods have no rights at all. */}}
{{- define "muster.jobRules" -}}
- apiGroups: [muster.dev]
  resources: [trainingjobs]
  verbs: [get, list, watch, delete] # delete: spec.ttlSecondsAfterFinished
- apiGroups: [muster.dev]
  resources: [trainingjobs/status]
  verbs: [update, patch] # patch: an empty one, so that a job is stored in the newest version of the API
# Owner references that block deletion need this if OwnerReferencesPermissionEnforcement is on.
- apiGroups: [muster.dev]
  resources: [trainingjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods, services]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims] # the condition StorageShared reports whether all pods can mount the claim
  verbs: [get]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, delete]
{{- with .Values.gangScheduling.apiGroups }}
- apiGroups: {{ toJson . }}
  resources: [podgroups] # delete: one that is left from an earlier spec, because most of its fields cannot change
  verbs: [get, create, update, delete]
{{- end }}
{{- if .Values.queueing.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads] # delete: the quota of a job that has ended or is suspended; update: the owner of those that MultiKueue creates
  verbs: [get, list, watch, create, update, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status] # an evicted Workload gives its quota back once the pods have ended
  verbs: [update]
- apiGroups: [visibility.kueue.x-k8s.io]
  resources: [localqueues/pendingworkloads] # positions of jobs in their queues
  verbs: [get]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- range .Values.rbac.strategyObjects }} {{/* what strategies of other packages need besides pods */}}
- apiGroups: [""]
  resources: [{{ . }}]
  verbs: {{ eq . "configmaps" | ternary "[get, create, update]" "[get, create]" }}
{{- end }}
{{- end }}

{{- define "muster.subject" -}}
- kind: ServiceAccount
  name: {{ include "muster.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
