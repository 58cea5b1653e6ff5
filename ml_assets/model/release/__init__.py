"""Release of trained weights as a registered model: bundle, runtime, registry, promotion."""
