"""Attention kernels over a paged KV pool."""
