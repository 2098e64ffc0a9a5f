"""Fetches a model's files from a hub that speaks Hugging Face's protocol, into the hub's own cache on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

from inference.text.checkpoint import INDEX, TEXT_FILES
from inference.text.errors import ModelFetchError

HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_FILES = [*TEXT_FILES, INDEX, "*.safetensors"]  # a pickled file is not even fetched


def hub_download(name: str, revision: str | None = None) -> Path:
    """The folder of the snapshot; what an interrupted download left is used. `HF_ENDPOINT`, `HF_TOKEN` and `HF_HOME` count.

    Raises `ModelFetchError`, whose text says what to do.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_FILES, endpoint=endpoint))
    except RepositoryNotFoundError as error:  # a gated one too
        advice = f"{endpoint} has no model {name!r} for us. If it is private or gated, set HF_TOKEN to a token that may read it."
        raise ModelFetchError(advice, code="hub_model_unknown", detail=_first_line(error)) from error
    except RevisionNotFoundError as error:
        raise ModelFetchError(f"{name} has no revision {revision!r}.", code="hub_model_unknown") from error
    except Exception as error:  # whatever network, hub and disk may do; the library lets all of it through
        advice = (
            f"{name} could not be fetched from {endpoint}. Check network and proxy, let HF_ENDPOINT name a hub that can be "
            "reached, or fetch the model's folder on another machine and give its path."
        )
        raise ModelFetchError(advice, code="hub_unreachable", detail=_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
