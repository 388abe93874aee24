// Where the schemas in tests/it/deploy/schemas are from. Nothing is built of it.
module outboxd/schemas

go 1.19

require (
	github.com/kedacore/keda/v2 v2.21.0
	github.com/prometheus-operator/prometheus-operator v0.85.0
	k8s.io/kubernetes v1.36.3
)
