"""What a person sees once the gateway serves: what, where, how, and what to try."""

from __future__ import annotations

import os
import shlex

from ..contract import EngineContract
from ..gateway import ShardGateway


def banner(gateway: ShardGateway, seconds: float) -> str:
    """The text printed when all shards are ready."""
    contract, config = gateway.engine.contract, gateway.config
    starts = gateway.start_seconds()
    return f"""
Serving {contract.model.served_model_name} (SGLang {contract.sglang_version}) after {seconds:.0f} s
  address   {", ".join(gateway.urls) or f"none: each shard serves by {config.serve}"}
  mode      {config.mode}, {config.shards} shards
  shards    ready in {min(starts):.2f}-{max(starts):.2f} s each, {gateway.bytes_per_shard() / 1e6:.0f} MB each
{_admin_line(gateway.admin_url)}{_to_try(gateway) if gateway.urls else ""}
Ctrl-C stops it: what runs may finish first; a second Ctrl-C does not wait.
"""


def _admin_line(url: str) -> str:
    return f"  admin     {url}\n" if url else ""


def _to_try(gateway: ShardGateway) -> str:
    base, model = gateway.urls[0], gateway.engine.contract.model.served_model_name
    curl = "curl -s"
    if base.startswith("unix:"):
        curl, base = f"curl -s --unix-socket {shlex.quote(base.removeprefix('unix:'))}", "http://localhost"
    message = '{"role": "user", "content": "Hello"}'
    body = f'{{"model": "{model}", "messages": [{message}], "max_tokens": 32, "stream": true}}'
    return f"""
Try it:
  {curl} {base}/v1/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "prompt": "The capital of France is", "max_tokens": 32}}'
  {curl} -N {base}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d {shlex.quote(body)}
  {curl} {base}/server_info
"""


def engine_banner(contract: EngineContract, segment: str, seconds: float, admin_url: str = "") -> str:
    """The text printed when an engine without a gateway is up."""
    return f"""
Engine of {contract.model.served_model_name} (SGLang {contract.sglang_version}) up after {seconds:.0f} s, no gateway
  pid       {os.getpid()}
  segment   {segment}
{_admin_line(admin_url)}
Attach a gateway, from any Python >= 3.13 that has sglang_subgw:
  python -m sglang_subgw attach {os.getpid()} --shards 4

Ctrl-C stops it: attached gateways may finish first what they run; a second Ctrl-C does not wait.
"""
