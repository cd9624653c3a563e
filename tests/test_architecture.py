"""The house rules that a reader of the code relies on: who imports what, and what is public."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import aioinfer

PACKAGE = Path(aioinfer.__file__).parent

# Who may import which part of aioinfer.  Every part may import itself, errors and types.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "types": set(),
    "config": set(),
    "scheduling": set(),
    "telemetry": {"config"},
    "device": {"config", "telemetry"},
    "models": {"config"},
    "runner": {"scheduling", "device", "models", "config"},
    "text": {"config"},
    "engine": {"scheduling", "runner", "device", "models", "text", "telemetry", "config"},
    "server": {"", "config", "telemetry"},
    "cli": {"", "config", "telemetry", "server"},
    "__main__": {"cli"},
    "": {"engine", "config"},
}

# Third-party names, and the parts that may know them.
THIRD_PARTY: dict[str, set[str]] = {
    "torch": {"device", "models", "runner", "engine"},
    "numpy": {"models", "runner"},
    "gguf": {"models"},
    "safetensors": {"models"},
    "filelock": {"models"},
    "platformdirs": {"models"},
    "huggingface_hub": {"models"},
    "tokenizers": {"text"},
    "jinja2": {"text"},
    "aiohttp": {"server", "cli"},
    "orjson": {"server", "cli"},
    "prometheus_client": {"telemetry", "server", "cli"},
    "pydantic": {"config", "server", "cli"},
    "rich": {"cli"},
    "prompt_toolkit": {"cli"},
    "uvloop": {"cli"},
}

# Reports about the machine and a baseline to compare with: they look behind the public names on purpose.
EXCEPTIONS = {
    "cli/doctor.py": {"torch", "aioinfer.models"},
    "cli/bench/baseline.py": {"torch", "transformers", "aioinfer.models"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    name = relative.parts[0] if len(relative.parts) > 1 else relative.stem
    return "" if name == "__init__" else name


def imports(path: Path) -> set[str]:
    """Full names of all that a module imports, in functions and for type checking too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            if node.module == "aioinfer":  # a submodule, or one of the public names
                for alias in node.names:
                    is_module = (PACKAGE / alias.name).is_dir() or (PACKAGE / f"{alias.name}.py").is_file()
                    found.add(f"aioinfer.{alias.name}" if is_module else "aioinfer")
            else:
                found.add(node.module)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    exceptions = EXCEPTIONS.get(str(path.relative_to(PACKAGE)), set())
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "aioinfer":
            target = rest.partition(".")[0]
            allowed = ALLOWED[part] | {part, "errors", "types"}
            assert target in allowed or f"aioinfer.{target}" in exceptions, f"{part} imports {name}"
        elif top not in sys.stdlib_module_names and top not in exceptions:
            assert part in THIRD_PARTY.get(top, set()), f"{part} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_say_what_they_are(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{path} has no docstring"


def test_only_the_submission_thread_module_of_the_device_layer_knows_asyncio() -> None:
    knowing = {p.name for p in (PACKAGE / "device").glob("*.py") if "asyncio" in imports(p)}
    assert knowing == {"thread.py"}


def test_public_names_are_those_that_are_there() -> None:
    for name in aioinfer.__all__:
        assert getattr(aioinfer, name) is not None
    assert set(dir(aioinfer)) == set(aioinfer.__all__)
    assert set(aioinfer._HOMES) == set(aioinfer.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        aioinfer.nothing  # noqa: B018


def test_every_error_is_in_the_tree_that_its_docstring_draws() -> None:
    errors = importlib.import_module("aioinfer.errors")
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert len(classes) > 10
    for cls in classes:
        assert cls.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize(
    "statement", ["import aioinfer", "from aioinfer import Engine", "import aioinfer.server"]
)
def test_importing_loads_no_torch(statement: str) -> None:
    code = f"{statement}; import sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
