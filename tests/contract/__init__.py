"""Every vLLM name, signature and behaviour we lean on, and its check against a release."""
