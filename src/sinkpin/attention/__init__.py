"""Attention over a bounded cache, as plain tensor arithmetic. Nothing here knows transformers or policies."""
