"""Benchmarks: each prints figures with bounds, measured side by side where they are compared."""
