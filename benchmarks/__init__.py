"""Benchmarks: run each as a module from the root of the checkout; results go to docs/measurements."""
