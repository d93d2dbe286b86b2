"""Process group of the workers, and the handing over of state in it."""

from __future__ import annotations

import hmac
import io
import json
import pickle
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import accumulate, groupby
from typing import Any

import torch
import torch.distributed as dist

FORM_S = 30.0
"""How long workers wait for each other when they form a group, s: one may die just then."""
WAIT_S = 1800.0
"""Longest wait for a worker, s, as others wait while the first one validates. Then all meet again."""
CHUNK_BYTES = 1 << 25
"""What is sent at once of a state."""
SIGN_BYTES = 32
"""Of the digest in front of a state."""


def form(go: Mapping[str, Any]) -> tuple[int, int]:
    """Form the group of the launcher, and return rank and size.

    Raises
    ------
    RuntimeError
        Another worker has died.
    """
    rank, size, settings = go["rank"], go["size"], go["settings"]
    if settings["nodes"] > 1:
        node, (host, port) = settings["node"], settings["address"].rsplit(":", 1)
        store = dist.TCPStore(host, int(port), is_master=node == rank == 0, timeout=timedelta(seconds=WAIT_S))
        store.set(f"size-{node}", str(size))
        sizes = [int(store.get(f"size-{each}")) for each in range(settings["nodes"])]
        rank, size = rank + sum(sizes[:node]), sum(sizes)
    else:
        store = dist.FileStore(go["store"], size)
    if size > 1:
        timeout = timedelta(seconds=FORM_S)
        dist.init_process_group(go["backend"], store=store, rank=rank, world_size=size, timeout=timeout)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=WAIT_S), dist.group.WORLD)
    return rank, size


def leave() -> None:
    """Leave the group, also one that is broken."""
    if dist.is_initialized():
        with suppress(RuntimeError):  # another worker's connection is closed already
            dist.destroy_process_group()


def abort() -> None:
    """End what waits for a dead worker, which NCCL alone does not see."""
    if dist.is_initialized() and dist.get_backend() == "nccl":
        dist.group.WORLD._get_backend(torch.device("cuda")).abort()


def hand_over(state: Any, source: int, *, receives: bool, device: torch.device, key: str) -> Any:
    """Send a state from one worker to those that receive it.

    Parameters
    ----------
    state : object
        Of the source; anything that can be pickled. Its tensors are sent as they are, without a copy of all of them.
    receives : bool
        Whether this worker needs it. Others take part, as all have to.
    key : str
        Secret of the workers: whoever else can reach their ports must not have them unpickle something.

    Returns
    -------
    object
        The state, or None where it was not received.

    Raises
    ------
    RuntimeError
        It does not come from one of the workers.
    """
    is_source = dist.get_rank() == source
    head, tensors, received = b"", list[Any](), None
    if is_source:
        pickler = _Pickler(file := io.BytesIO())
        pickler.dump(state)
        tensors = pickler.tensors
        head = json.dumps([_bytes(tensor).numel() for tensor in tensors]).encode() + b"\n" + file.getvalue()
        head = hmac.digest(key.encode(), head, "sha256") + head
    length = int(_broadcast(torch.tensor([len(head)]), source, device))
    head = bytes(_broadcast(torch.tensor([*(head or bytes(length))], dtype=torch.uint8), source, device).tolist())
    if not hmac.compare_digest(head[:SIGN_BYTES], hmac.digest(key.encode(), head[SIGN_BYTES:], "sha256")):
        raise RuntimeError("A state does not come from a worker of this training.")
    listed, _, text = head[SIGN_BYTES:].partition(b"\n")
    if receives and not is_source:
        unpickler = _Unpickler(text, device)
        received, tensors = unpickler.load(), unpickler.tensors
    sizes = json.loads(listed)
    ends = [*accumulate(sizes)]
    for _, places in groupby(range(len(sizes)), key=lambda place: ends[place] // CHUNK_BYTES):
        chunk = [*places]
        own, lengths = tensors[chunk[0] : chunk[-1] + 1], sizes[chunk[0] : chunk[-1] + 1]
        if is_source:
            flat = torch.cat([_bytes(tensor).to(device) for tensor in own])
        else:
            flat = torch.empty(sum(lengths), dtype=torch.uint8, device=device)
        dist.broadcast(flat, src=source)
        if received is not None:
            for tensor, part in zip(own, flat.split(lengths), strict=True):
                _bytes(tensor).copy_(part)
    return received


def _broadcast(tensor: Any, source: int, device: torch.device) -> Any:
    tensor = tensor.to(device)
    dist.broadcast(tensor, src=source)
    return tensor


def _bytes(tensor: Any) -> Any:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


class _Pickler(pickle.Pickler):
    """Pickle a state without its tensors, which are kept apart."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.tensors: list[Any] = []

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        self.tensors.append(value.detach())
        return tuple(value.shape), value.dtype, value.device.type


class _Unpickler(pickle.Unpickler):
    """Make a state whose tensors are empty."""

    def __init__(self, text: bytes, device: torch.device) -> None:
        super().__init__(io.BytesIO(text))
        self.tensors: list[Any] = []
        self._device = device

    def persistent_load(self, key: Any) -> Any:
        shape, dtype, kind = key
        self.tensors.append(torch.empty(shape, dtype=dtype, device=self._device if kind == "cuda" else "cpu"))
        return self.tensors[-1]
