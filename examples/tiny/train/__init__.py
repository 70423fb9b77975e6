"""Trains the tiny target and its drafts from the source of the Python standard library."""
