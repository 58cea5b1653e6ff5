"""From weights to a registered model: bundle, runtime, registry, promotion."""
