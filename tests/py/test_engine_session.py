"""Calls of the engine that no other test goes through: calibration as a value, prompts with a prefix."""

import pytest

import engine_models as models
from test_engine import pytestmark, run  # noqa: F401


def test_a_calibration_is_a_value(tmp_path):
    other = models.make(tmp_path / "other.gguf", "llama", layers=1)
    run("calibrate", models.make(tmp_path / "model.gguf", "llama"), other)


@pytest.mark.parametrize("arch, kv", [("llama", "k4v4"), ("llama", "none"), ("gemma3", "k8v4"), ("gemma4", "k4v4")])
def test_a_prompt_with_a_prefix(arch, kv, tmp_path):
    """Computed, from a store, behind a live prefix, with a store that fails: one result. Gemma has windows of less than a step."""
    run("prompt", models.make(tmp_path / "model.gguf", arch), kv, tmp_path)
