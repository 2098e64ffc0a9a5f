"""The folder of models: a model's files come in whole, checked and under one name, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inference.text.errors import ModelFetchError
from inference.text.model_files import Progress, mebibytes, only_one, sweep
from inference.text.revision import model_digest, model_paths

_LOCK, _STAGE = ".fetch.lock", ".fetch-"


@contextmanager
def model_store(models_folder: Path) -> Iterator[ModelStore]:
    """One process at a time. Raises `ModelFetchError` where the disk refuses."""
    try:
        models_folder.mkdir(parents=True, exist_ok=True)
        with only_one(models_folder / _LOCK):
            sweep(models_folder)
            with tempfile.TemporaryDirectory(dir=models_folder, prefix=_STAGE) as work:
                yield ModelStore(models_folder, Path(work))
    except OSError as error:
        raise ModelFetchError(f"The model could not be stored in {models_folder}: {error.strerror or error}.") from error


class ModelStore:
    def __init__(self, folder: Path, work: Path) -> None:
        self._folder, self._work = folder, work

    def stage(self, source: Path, name: str, progress: Progress) -> Path:
        """A copy of the model's own files, on disk, that nobody else sees. Raises `ModelFolderError`."""
        staged = self._work / name
        staged.mkdir()
        for path in model_paths(source):
            progress(f"copying {path.name}, {mebibytes(path.stat().st_size)}")
            _copy(path, staged / path.name)
        return staged

    def publish(self, staged: Path) -> bool:
        """Whether it is new: the same files under the same name are there once. Raises `ModelFetchError` for other files."""
        place = self._folder / staged.name
        if not place.exists():
            staged.rename(place)
            return True
        if model_digest(place, verify=True) != model_digest(staged):
            taken = f"Another model is called {staged.name!r} here. Give this one another name, or remove that one first."
            raise ModelFetchError(taken, code="model_name_taken")
        return False

    def discard(self, name: str) -> None:
        """Gone at once for all who look; who has it open keeps it."""
        place = self._folder / name
        if place.exists():
            place.rename(self._work / name)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as write:
        shutil.copyfileobj(read, write, 1 << 20)
        write.flush()
        os.fsync(write.fileno())
