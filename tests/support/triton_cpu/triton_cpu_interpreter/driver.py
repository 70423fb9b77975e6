import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class InterpreterDriver(DriverBase):
    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise RuntimeError("the cpu backend only interprets: set TRITON_INTERPRET=1")

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self):
        raise RuntimeError("the cpu backend only interprets: nothing to benchmark")

    def get_device_interface(self):
        return torch.cpu

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device=None) -> int:
        return 0
