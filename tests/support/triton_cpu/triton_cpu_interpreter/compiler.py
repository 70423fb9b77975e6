from triton.backends.compiler import BaseBackend, GPUTarget


class InterpreterBackend(BaseBackend):
    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "cpu"

    def hash(self) -> str:
        return "interpreter"

    def parse_options(self, options: dict) -> object:
        raise RuntimeError("the cpu backend only interprets: set TRITON_INTERPRET=1")

    def add_stages(self, stages: dict, options: object, language: object) -> None:
        raise RuntimeError("the cpu backend only interprets: set TRITON_INTERPRET=1")

    def load_dialects(self, context: object) -> None:
        """There are no dialects to load."""

    def get_module_map(self) -> dict:
        return {}
