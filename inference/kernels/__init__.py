"""Compute kernels: each a wrapper that checks its arguments beside a slow reference in plain torch. See README.md."""
