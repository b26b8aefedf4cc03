{{- define "agent-routing.name" -}}
{{- .Values.nameOverride | default .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "agent-routing.labels" -}}
app.kubernetes.io/name: agent-routing
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "agent-routing.servers" -}}
app.kubernetes.io/name: agent-routing
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "agent-routing.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* The port of an address such as 0.0.0.0:8080. */ -}}
{{- define "agent-routing.port" -}}
{{ . | toString | splitList ":" | last }}
{{- end -}}

{{- define "agent-routing.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "agent-routing.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* A variable of the server for each setting that has a value. */ -}}
{{- define "agent-routing.environment" -}}
{{- range $name, $value := .Values.settings }}
{{- if not (kindIs "invalid" $value) }}
- name: AGENT_ROUTING_{{ upper $name }}
  {{- /* Helm reads numbers as floats, and would write ten million as 1e+07. */}}
  {{- if kindIs "float64" $value }}
  value: {{ if eq (floor $value) $value }}{{ int64 $value | quote }}{{ else }}{{ $value | quote }}{{ end }}
  {{- else }}
  value: {{ $value | toString | quote }}
  {{- end }}
{{- end }}
{{- end }}
- name: AGENT_ROUTING_STORE
  valueFrom:
    secretKeyRef:
      name: {{ .Values.store.secretName }}
      key: {{ .Values.store.key }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
