"""Lets a CUDA build of torchvision be imported together with CPU torch.

Its import registers fake kernels for two operators that its compiled library would have declared, and
fails because that library cannot be loaded. Declaring the two is enough for what vLLM and transformers
use. tools/setup_venv.py installs it into the development environment where no CPU build of torchvision
could be had. With such a build it must go: two libraries would declare the same operators.
"""

import sys

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries = []  # a library's declarations end with the object


class _BeforeTorchvision:
    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        import torch

        if torch.version.cuda is None and not hasattr(torch.ops.torchvision, "nms"):
            library = torch.library.Library("torchvision", "FRAGMENT")
            for schema in SCHEMAS:
                library.define(schema)
            _libraries.append(library)
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
