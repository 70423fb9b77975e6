"""The project's own fuzzer: drafts, targets and options changed at random, through the commands.

The generator is our own instead of hypothesis. Each run needs a time limit that ends its process, counts
are kept by family, and a mutant has one or two changes, which leave little to shrink.
"""
