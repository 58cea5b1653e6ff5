// Forms of PodMonitor and PrometheusRule, which the chart makes: example/prometheus-operator-crd. Nothing is built.
module ml-assets.local/prometheus-operator

go 1.26

tool github.com/prometheus-operator/prometheus-operator/cmd/operator

require github.com/prometheus-operator/prometheus-operator v0.85.0
