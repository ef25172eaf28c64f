"""Triton kernels. Importing them needs Triton."""
