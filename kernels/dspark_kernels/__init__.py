"""Compute kernels with a torch reference beside each."""
