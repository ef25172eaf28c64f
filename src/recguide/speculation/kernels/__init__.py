"""Triton kernels of picks and settle. Importing them needs Triton."""
