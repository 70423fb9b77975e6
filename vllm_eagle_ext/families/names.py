# SPDX-License-Identifier: Apache-2.0
"""The drafter classes of all families, by which they are registered with vLLM.

Every process of vLLM imports this module, and with it only data.
"""

from __future__ import annotations

from vllm_eagle_ext.families.dflash import names as dflash
from vllm_eagle_ext.families.dflash2 import names as dflash2
from vllm_eagle_ext.families.eagle3 import names as eagle3

FOLDERS = ("eagle3", "dflash", "dflash2")  # in the order in which families are tried on a draft
# In the order in which tables list them; `register_families` adds the classes of other families.
DRAFTERS = [*eagle3.DRAFTERS, *dflash.DRAFTERS, *dflash2.DRAFTERS]
