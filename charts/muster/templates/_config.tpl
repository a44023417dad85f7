{{/* The operator's configuration file (docs/install.md). */}}
{{- define "muster.config" -}}
{{- $defaults := .Values.jobDefaults -}}
images:
  {{- range $framework, $image := $defaults.images }}
  {{ $framework }}: {{ include "muster.image" (dict "image" $image "root" $) | quote }}
  {{- end }}
controller: {{ .Values.controllerName }}
supervisor:
  image: {{ include "muster.image" (dict "image" (ternary .Values.supervisor.image .Values.operator.image (not (empty .Values.supervisor.image.repository))) "root" $) | quote }}
  pullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.inputs.nodeCache.hostPath }}
inputs:
  nodeCache: {{ . | quote }}
{{- end }}
namespaces: {{ toJson .Values.watchNamespaces }}
workers: {{ .Values.operator.workers }}
resyncSeconds: {{ .Values.operator.resyncSeconds }}
logLevel: {{ .Values.operator.logLevel }}
leaderElection:
  leaseName: {{ include "muster.fullname" . }}
  leaseSeconds: {{ .Values.operator.leaseSeconds }}
coordination:
  service: {{ include "muster.fullname" . }}-coordination
  port: {{ .Values.coordination.port }}
  secret: {{ include "muster.fullname" . }}-coordination
health:
  port: 8080
metrics:
  port: {{ .Values.metrics.port }}
networkPolicy:
  enabled: {{ $defaults.networkPolicy.enabled }}
gangScheduling: {{- toYaml .Values.gangScheduling | nindent 2 }}
nodeNotices: {{- toYaml .Values.nodeNotices | nindent 2 }}
webhook:
  url: {{ .Values.webhook.url | quote }}
capacity: {{- toYaml .Values.capacity | nindent 2 }}
queueing: {{- toYaml .Values.queueing | nindent 2 }}
jobPolicy: {{- toYaml .Values.jobPolicy | nindent 2 }}
jobDefaults:
  template:
    spec:
      {{- with $defaults.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $defaults.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $defaults.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: trainer
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          {{- if $defaults.env }}
          env:
            {{- range $name, $value := $defaults.env }}
            - {name: {{ $name | quote }}, value: {{ $value | quote }}}
            {{- end }}
          {{- end }}
  {{- with $defaults.checkpoint.storage }}
  checkpoint:
    storage: {{- toYaml . | nindent 6 }}
  {{- end }}
{{- end }}
