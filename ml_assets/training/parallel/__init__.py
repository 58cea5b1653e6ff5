"""Several ranks that compute one model or one gradient."""
