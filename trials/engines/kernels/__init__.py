"""CPU kernels over a paged KV pool: attention that walks blocks, the fused write into the pool, and the control.

Importing this package imports nothing heavy: `threads.prepare_process` must run before torch and numba load.
"""
