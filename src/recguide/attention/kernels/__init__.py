"""Triton kernels of the attention backend. Importing them needs Triton."""
