{{- define "clawjail.name" -}}
{{ .Release.Name | trunc 36 | trimSuffix "-" }}
{{- end }}

{{- define "clawjail.labels" -}}
{app.kubernetes.io/name: clawjail, app.kubernetes.io/instance: {{ .Release.Name | quote }}, app.kubernetes.io/managed-by: {{ .Release.Service | quote }}, helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}}
{{- end }}

{{- define "clawjail.selector" -}}
{app.kubernetes.io/name: clawjail, app.kubernetes.io/instance: {{ .Release.Name | quote }}}
{{- end }}

{{- define "clawjail.account" -}}
{{ .Values.serviceAccount.name | default (include "clawjail.name" .) }}
{{- end }}

{{- define "clawjail.tlsSecret" -}}
{{- if not .Values.config.behind_proxy -}}{{ .Values.tls.secret | default (printf "%s-tls" (include "clawjail.name" .)) }}{{- end -}}
{{- end }}
