from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from inference.text import ModelText, open_text
from inference.text.model_files import ensure_oracle


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> ModelText:
    return open_text(smollm2_folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    return open_text(ensure_oracle("tiny", tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="session")
def reference(smollm2_folder: Path) -> Any:
    """The tokenizer that transformers builds from the same file, and the splitting of digits that it leaves out of a GGUF."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(smollm2_folder, gguf_file="model.gguf")
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer])
    return tokenizer
