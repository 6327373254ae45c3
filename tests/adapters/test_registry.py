"""Adapters are found through entry points, and one broken plugin breaks no other."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import invalidate_caches
from pathlib import Path

import pytest

import agentrm
from agentrm.adapters import AdapterWarning, AttachError, adapter, attach, failures, names
from agentrm.adapters import registry as the_registry

SOUND = """
class Client:
    def __init__(self, answer):
        self.answer = answer

    def ask(self):
        return self.answer


class Gated(Client):
    def __init__(self, rm, inner, identity):
        super().__init__(inner.answer)
        self.rm, self.identity = rm, identity

    def ask(self):
        from agentrm.adapters import CallSpec, call

        return call(self.rm, CallSpec(model="tiny", **self.identity), super().ask)


class Adapter:
    name = "tiny"
    packages = ("tinyframework",)

    def attach(self, rm, x, **identity):
        return Gated(rm, x, identity) if isinstance(x, Client) else NotImplemented


adapter = Adapter()
"""
BROKEN = {
    "aaa_import": "raise ImportError('a framework that is not there')",
    "aab_shape": "adapter = object()",
    "aac_attach": """
class Adapter:
    name = "aac_attach"
    packages = ("tinyframework",)

    def attach(self, rm, x, **identity):
        raise RuntimeError("a bug of the plugin")

adapter = Adapter()
""",
}


def wheel(folder: Path, distribution: str, plugin: str, code: str) -> Path:
    """A wheel as an index would serve it: one module and an entry point."""
    path = folder / f"{distribution}-1.0-py3-none-any.whl"
    info = f"{distribution}-1.0.dist-info"
    files = {
        f"{distribution}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[agentrm.adapters]\n{plugin} = {distribution}:adapter\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages of our own on the path, and a registry that has loaded nothing yet."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(the_registry, "_loaded", {})
    monkeypatch.setattr(the_registry, "_failed", {})
    the_registry._installed.cache_clear()
    return folder


def install(site: Path, *wheels: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([*command, *map(str, wheels)], check=True, capture_output=True)
    invalidate_caches()


def test_a_plugin_in_a_wheel_of_its_own_is_found_and_used(site: Path) -> None:
    install(site, wheel(site.parent, "tinyframework", "tiny", SOUND))
    from tinyframework import Client  # type: ignore[import-not-found]

    assert "tiny" in names()
    rm = agentrm.ResourceManager()
    client = rm.attach(Client("an answer"), agent="stranger")
    assert client.ask() == "an answer"
    assert rm.statistics().pools["default"].granted == 1
    assert adapter("tiny").packages == ("tinyframework",)
    sys.modules.pop("tinyframework")


def test_broken_plugins_are_told_and_break_no_other(site: Path) -> None:
    broken = [wheel(site.parent, f"{name}_plugin", name, code) for name, code in BROKEN.items()]
    install(site, *broken, wheel(site.parent, "tinyframework", "zzz", SOUND))
    from tinyframework import Client

    rm = agentrm.ResourceManager()
    with pytest.warns(AdapterWarning) as told:
        client = rm.attach(Client("an answer"))
    assert client.ask() == "an answer"
    assert {name for name in BROKEN for warning in told if name in str(warning.message)} == set(BROKEN)
    assert set(failures()) == set(BROKEN)
    with pytest.raises(AttachError, match="not working: aaa_import"):
        attach(rm, object())
    with pytest.raises(LookupError, match="a framework that is not there"):
        adapter("aaa_import")
    with pytest.raises(LookupError, match="installed: .*langchain"):
        adapter("nobody")
    sys.modules.pop("tinyframework")


def test_an_adapter_can_be_switched_off(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, wheel(site.parent, "tinyframework", "tiny", SOUND))
    monkeypatch.setenv("AGENTRM_DISABLE_ADAPTERS", "tiny, other")
    assert "tiny" not in names()


def test_nothing_is_loaded_for_an_object_of_another_framework(site: Path) -> None:
    """The plugin named like the object's package comes first; the others are not needed."""
    install(site, wheel(site.parent, "tinyframework", "tiny", SOUND), wheel(site.parent, "zb", "zb", "1 / 0"))
    from tinyframework import Client

    agentrm.ResourceManager().attach(Client("an answer"))
    assert "zb" not in sys.modules and not failures()
    sys.modules.pop("tinyframework")


def test_lists_are_gated_part_by_part(site: Path) -> None:
    install(site, wheel(site.parent, "tinyframework", "tiny", SOUND))
    from tinyframework import Client

    rm = agentrm.ResourceManager()
    assert [client.ask() for client in rm.attach([Client("a"), Client("b")])] == ["a", "b"]
    assert rm.statistics().pools["default"].granted == 2
    sys.modules.pop("tinyframework")
