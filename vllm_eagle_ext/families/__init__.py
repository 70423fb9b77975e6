# SPDX-License-Identifier: Apache-2.0
"""The drafter families, one folder each, with the same file names.

- `names.py`: records of the drafter classes; every vLLM process imports it.
- `family.py`: one record per family (tensors, layer ids, rules), from which checks and documents derive.
- `config_writer.py`: what is written into the draft's config.
- `model.py`: the classes, unless vLLM's own serve the family.

`parts/` holds what model classes share, `drafter_classes.py` the types of the records, and
`resolved_marker.py` what a worker asks for.
"""
