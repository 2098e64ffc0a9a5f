"""A worker's KV pool as a file that other processes of the host may map: the pool itself, not a copy of it.

    header    64 bytes: magic, version, blocks, block bytes, worker epoch
    generations   one unsigned 64-bit integer a block, raised BEFORE the block is overwritten
    pages     from the next 4 KiB border: [block][layer][k|v][head][token][dim]

The file has mode 0600 and a name that the worker's registry row gives; a reader opens it inside the arena folder and nowhere else.
Python 3.11's `multiprocessing.shared_memory` is not used: it unlinks a segment when any process that attached to it ends.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import torch

from inference.contracts import KVLayout

_HEADER = struct.Struct("<8sIIQQ")
_MAGIC = b"BRIGADEK"
_VERSION = 1
_GENERATIONS_AT = 64
_PAGE = 4096

_TORCH_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ArenaError(RuntimeError):
    """The file is not an arena of the expected shape, its name leaves the folder, or there is no room for it."""

    code = "arena_unusable"


def arena_folder(needed_bytes: int, fallback: Path, name: str) -> Path:
    """Shared memory where it has room (containers often give 64 MiB), else the data folder, where pages may be written to disk."""
    memory = Path("/dev/shm")
    folder = memory / name if memory.is_dir() and shutil.disk_usage(memory).free > needed_bytes * 1.1 else fallback / "arenas"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def arena_bytes(layout: KVLayout, blocks: int) -> int:
    return _pages_at(blocks) + blocks * layout.block_bytes


def _pages_at(blocks: int) -> int:
    return -(-(_GENERATIONS_AT + 8 * blocks) // _PAGE) * _PAGE


class Arena:
    """A mapped arena. The owner makes it and writes; readers map it read-only."""

    def __init__(self, path: Path, layout: KVLayout, memory: mmap.mmap, blocks: int) -> None:
        self.path = path
        self.layout = layout
        self.blocks = blocks
        self._memory = memory
        self.generations = np.frombuffer(memory, dtype=np.uint64, count=blocks, offset=_GENERATIONS_AT)
        flat = np.frombuffer(memory, dtype=np.uint8, count=blocks * layout.block_bytes, offset=_pages_at(blocks))
        self.pages = flat.reshape(blocks, layout.block_bytes)

    @classmethod
    def create(cls, path: Path, layout: KVLayout, blocks: int, worker_epoch: int) -> Arena:
        """Takes all of its memory at once. Raises ArenaError where there is not enough, and leaves nothing."""
        path.unlink(missing_ok=True)
        size = arena_bytes(layout, blocks)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)  # a page that cannot be had later would kill the process
            memory = mmap.mmap(descriptor, size)
        except OSError as error:
            path.unlink()
            raise ArenaError(f"no room for the KV pool, {size:,} bytes in {path.parent}: {error.strerror}") from error
        finally:
            os.close(descriptor)
        memory[: _HEADER.size] = _HEADER.pack(_MAGIC, _VERSION, blocks, layout.block_bytes, worker_epoch)
        return cls(path, layout, memory, blocks)

    @classmethod
    def open(cls, folder: Path, name: str, layout: KVLayout, worker_epoch: int) -> Arena:
        """Maps another worker's arena read-only. Raises ArenaError, FileNotFoundError."""
        if not name or name != Path(name).name:
            raise ArenaError(f"{name!r} is no arena name")
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            size = os.fstat(descriptor).st_size
            if size < _HEADER.size:
                raise ArenaError(f"{name} is too short to be an arena")
            memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        magic, version, blocks, block_bytes, epoch = _HEADER.unpack_from(memory)
        found = (magic, version, block_bytes, epoch)
        if found != (_MAGIC, _VERSION, layout.block_bytes, worker_epoch) or size != arena_bytes(layout, blocks):
            raise ArenaError(f"{name} is another arena than the directory says")
        return cls(folder / name, layout, memory, blocks)

    def tensor(self) -> torch.Tensor:
        """The pages as [blocks, layers, 2, kv_heads, block_tokens, head_dim]; writable for the owner only."""
        layout = self.layout
        flat = torch.frombuffer(self._memory, dtype=torch.uint8, offset=_pages_at(self.blocks), count=self.pages.size)
        shape = (self.blocks, layout.layers, 2, layout.kv_heads, layout.block_tokens, layout.head_dim)
        return flat.view(_TORCH_TYPES[layout.dtype]).view(shape)

    def raise_generation(self, block: int) -> None:
        """To be called before the block is overwritten: a reader compares it after its copy."""
        self.generations[block] += np.uint64(1)

    def remove(self) -> None:
        """The owner's last act: the name goes; mappings of readers live on until they let go."""
        self.path.unlink(missing_ok=True)
