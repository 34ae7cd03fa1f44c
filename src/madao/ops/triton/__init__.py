"""The operations fused for CUDA, in Triton."""
