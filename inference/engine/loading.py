"""Opens a model folder's weights: `model.gguf`, an oracle named by `model.json`, or a Hugging Face folder with `config.json`."""

from __future__ import annotations

from pathlib import Path

from inference.engine.checkpoint import CheckpointWeights
from inference.engine.checkpoint_config import read_config
from inference.engine.models.base import LanguageModel
from inference.engine.models.llama import LlamaModel
from inference.engine.models.scripted import ScriptedModel
from inference.engine.models.tiny import tiny_model
from inference.engine.weights import GGUFWeights
from inference.text import model_revision
from inference.text.checkpoint import is_checkpoint
from inference.text.folders import oracle_kind


def load_model(folder: Path) -> LanguageModel:
    """Raises `inference.text.ModelFolderError`."""
    revision = model_revision(folder)
    if (folder / "model.gguf").exists():
        source = GGUFWeights(folder / "model.gguf")
        config = source.config()
        return LlamaModel(folder.name, revision, config, source.weights(config))
    if is_checkpoint(folder):
        config = read_config(folder)
        return LlamaModel(folder.name, revision, config, CheckpointWeights(folder).weights(config))
    if oracle_kind(folder) == "tiny":
        return tiny_model(folder.name, revision)
    return ScriptedModel(folder.name, revision)
