"""`make demo`: a real pair, without a draft, with its draft, and as plain vLLM reads the same files."""
