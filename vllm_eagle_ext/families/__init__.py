# SPDX-License-Identifier: Apache-2.0
"""The drafter families, one folder each, with the same file names.

- `names.py`: the drafter classes, by their names; every vLLM process imports it.
- `family.py`: one record per family (tensors, layer ids, rules), from which checks and documents derive.
- `config_writer.py`: what is written into the draft's config.
- `model.py`: the classes, unless vLLM's own serve the family.
"""
