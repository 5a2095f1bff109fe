"""SGLang's platform for a machine with nothing but a CPU: native ops, no kernels, no CPU build of sgl_kernel."""

from __future__ import annotations

from typing import Any

import psutil  # type: ignore
from sglang.srt.platforms.interface import PlatformEnum, SRTPlatform

from .pinning import accept_pinning


class CpuPlatform(SRTPlatform):  # type: ignore[misc]
    """Plain CPU as an out-of-tree platform, which alone selects SGLang's native implementations."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """The machine's memory in bytes."""
        return int(psutil.virtual_memory().total)

    def get_device(self, device_id: int = 0) -> str:
        """torch's name of the device."""
        return "cpu"

    def init_backend(self) -> None:
        """SGLang's once per process: its LoRA layers pin memory without asking whether there is any to pin it for."""
        accept_pinning()

    def get_torch_profiler_activity_str(self) -> str:
        """torch's name of what a profile records; the scheduler ends without one."""
        return "CPU"

    def get_torch_profiler_activity(self) -> Any:
        """What a profile records."""
        import torch

        return torch.profiler.ProfilerActivity.CPU


if not hasattr(SRTPlatform, "get_kv_pool_cls"):
    # 0.5.19 asks an out-of-tree platform for classes where later versions fall back to their own.

    def _mha_kv_pool(self: CpuPlatform) -> type:
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        return MHATokenToKVPool  # type: ignore[no-any-return]

    def _paged_allocator(self: CpuPlatform) -> type:
        from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

        class Allocator(TokenToKVPoolAllocator):  # type: ignore[misc]
            """The allocator of single tokens, called as the paged one is."""

            def __init__(self, *args: Any, page_size: int = 1, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)

        return Allocator

    CpuPlatform.get_mha_kv_pool_cls = _mha_kv_pool
    CpuPlatform.get_paged_allocator_cls = _paged_allocator
