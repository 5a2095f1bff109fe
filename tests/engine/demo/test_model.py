"""The demo model's directory: what it learns is fixed, and it is complete or absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_subgw.engine.demo import corpus, model


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps of training: nothing learned, all the same files."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.setattr(model, "_STEPS", 3)


def test_the_corpus_is_the_same_every_time() -> None:
    texts = corpus.texts()
    assert texts == corpus.texts()
    assert all(text.startswith(corpus.BEGIN) and text.endswith(corpus.END) for text in texts)
    assert any("Beautiful is better than ugly." in text for text in texts)
    assert not any("  " in text for text in texts)


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert model.demo_model_dir().parent == tmp_path / "sglang_subgw"
    assert not model.is_built()


@pytest.mark.sglang
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("quick")
def test_two_builds_are_equal(tmp_path: Path) -> None:
    first, second = (model.ensure_demo_model(tmp_path / name) for name in ("a", "b"))
    names = {path.name for path in first.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    vocabulary = json.loads((first / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) == json.loads((first / "config.json").read_text())["vocab_size"]


@pytest.mark.sglang
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("quick")
def test_a_failed_build_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model, "_train_model", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model.ensure_demo_model(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_a_model_that_is_there_is_used(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert model.ensure_demo_model(tmp_path) == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
