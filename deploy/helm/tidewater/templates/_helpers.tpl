{{- define "tidewater.name" -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tidewater.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidewater.labels" -}}
{{ include "tidewater.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "tidewater.toml" -}}
[server]
listen = ["{{ if .Values.tlsSecret }}tls{{ else }}tcp{{ end }}://0.0.0.0:7439"]
{{- if .Values.service.httpPort }}
http = "http://0.0.0.0:7441"
{{- end }}
admin = "http://0.0.0.0:7440"
# Within the cluster.
insecure = true
proxies = {{ .Values.proxies | toJson }}
drain_delay = {{ .Values.drainDelay | quote }}
consolidated = {{ .Values.database.url | quote }}
{{- with .Values.server }}
{{ . }}
{{- end }}
{{ if .Values.tlsSecret }}
[server.tls]
certificate = "/etc/tidewater-tls/tls.crt"
key = "/etc/tidewater-tls/tls.key"
{{ end }}
[server.limits]
shutdown = {{ .Values.shutdown | quote }}
{{- with .Values.limits }}
{{ . }}
{{- end }}

{{ .Values.config }}
{{- end -}}
