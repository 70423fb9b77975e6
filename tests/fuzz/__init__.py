"""The project's own fuzzer: drafts, targets and options changed at random, through the commands.

A generator of our own, not hypothesis: each run has a time limit that ends its process, counts by family,
and one or two changes, which leave little to shrink.
"""
