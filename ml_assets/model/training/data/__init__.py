"""Training rows up to a rank: their order, shards, batches, and the preprocessing that is part of the model."""
