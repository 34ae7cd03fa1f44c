"""Triton kernels of the operations, for CUDA."""
