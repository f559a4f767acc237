"""The cache itself, and the only place that knows transformers."""
