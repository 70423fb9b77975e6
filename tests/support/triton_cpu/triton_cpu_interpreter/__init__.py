"""A Triton backend named `cpu` that compiles nothing: under TRITON_INTERPRET=1 nothing is compiled.

vLLM's V2 runner asks for an active driver. On PYTHONPATH of the V2 test engines only.
"""
