"""Whether a model folder can be served: it opens, and a real engine answers with it. For whoever puts a model on sale."""

from __future__ import annotations

from pathlib import Path

import torch

from inference.contracts import EngineRequest, SamplingParams
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.events import Failed
from inference.engine.loading import load_model
from inference.engine.runner import pool_shape
from inference.text import ModelFolderError, ModelText, open_text
from inference.text.checkpoint_tokenizer import tokenizer_faults

_PROMPT_TOKENS, _BLOCKS = 17, 4  # one more than a block holds
_SAMPLE = "".join(map(chr, range(128))) + "  The quick brown fox: 1234567890 äöü ß € 漢字 🦊\n\n\u0301\ufffd"


def model_try(folder: Path) -> ModelText:
    """Opens everything and generates two tokens. Raises `ModelFolderError`."""
    text, model = open_text(folder), load_model(folder)
    _tokenise(text)
    if text.vocabulary_size > model.vocabulary_size:
        sizes = f"{text.vocabulary_size} tokens, {model.vocabulary_size} rows"
        raise ModelFolderError(f"The tokenizer is larger than the embedding: {sizes}.", code="checkpoint_tokenizer")
    if model.context_length <= _PROMPT_TOKENS + 2:
        raise ModelFolderError(f"A context of {model.context_length} tokens is too short.", code="checkpoint_config")
    prompt = tuple(index % model.vocabulary_size for index in range(_PROMPT_TOKENS))
    sampling = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    pool = torch.zeros(pool_shape(model.layout, _BLOCKS))
    engine = Engine(model, text, pool, EngineConfig(blocks=_BLOCKS), raise_generation=lambda block: None)
    engine.add(EngineRequest("trial", prompt, sampling, bytes(32), "fused"))
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Failed):
                raise ModelFolderError(f"The model does not compute: {event.message}.", code="checkpoint_computation")
    return text


def _tokenise(text: ModelText) -> None:
    """A vocabulary may be sound as a file and fail at the first letter that it lacks."""
    with tokenizer_faults():
        text.decode(text.encode_prompt(_SAMPLE))
