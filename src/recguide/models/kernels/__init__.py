"""Triton kernels of the decoder's linear algebra. Importing a file here needs Triton."""
