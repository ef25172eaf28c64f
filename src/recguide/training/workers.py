"""Several processes of one run, one GPU each, as `torchrun` starts them."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Workers:
    """Which of how many processes this is, and which GPU of its machine it uses."""

    index: int = 0
    count: int = 1
    local: int = 0

    def device(self, asked: str) -> str:
        """The device to load on: the process's own GPU where there are several processes."""
        return f"cuda:{self.local}" if self.count > 1 and _on_gpus(asked) else asked


def open_workers(asked: str) -> Workers:
    """Joins the other processes if `torchrun` started this one, else stands alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Workers()
    workers = Workers(int(os.environ["RANK"]), count, int(os.environ["LOCAL_RANK"]))
    if _on_gpus(asked):
        torch.cuda.set_device(workers.local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", workers.local))
    else:
        dist.init_process_group("gloo")
    return workers


def _on_gpus(asked: str) -> bool:
    return asked != "cpu" and torch.cuda.is_available()


def close_workers(workers: Workers) -> None:
    if workers.count > 1:
        dist.destroy_process_group()


def wait_for_all(workers: Workers) -> None:
    if workers.count > 1:
        dist.barrier()
