"""Engines that a trial can drive: one file each, named in `ENGINES`.

torch, transformers and vllm are imported only below this package, and only when the engine is opened.
"""
