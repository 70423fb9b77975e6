"""`make demo`: the tiny target without a draft, with the native draft and with the post-norm draft."""
