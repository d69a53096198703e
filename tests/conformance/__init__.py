"""What every limiter on every store must answer: the vectors, traces against a model, and the promises."""
