"""A chat request's messages as the model's token ids."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...contract import EngineContract
from ...errors import RequestRejected
from .messages import for_template
from .template import RESERVED, ChatTemplate

if TYPE_CHECKING:
    from ...tokenization.tokenizer import ShardTokenizer


class ChatPrompt:
    """Renders the template and encodes its text."""

    def __init__(self, contract: EngineContract, tokenizer: ShardTokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate(contract.model.chat_template, contract.model.special_tokens)
        self._content_format = contract.model.chat_template_content_format
        self._bos = contract.model.special_tokens.get("bos_token")
        defaults = contract.server_args.get("default_chat_template_kwargs") or {}
        self._defaults: dict[str, Any] = json.loads(defaults) if isinstance(defaults, str) else dict(defaults)

    async def token_ids(self, values: dict[str, Any]) -> list[int]:
        """The prompt of checked fields; raises RequestRejected where the template refuses the messages."""
        messages, prefix = for_template(values["messages"], self._content_format, values["continue_final_message"])
        text = self._template.render(messages, self._variables(values))
        # The template writes the special tokens itself.
        [ids] = await self._tokenizer.encode_all([text], add_special_tokens=False)
        if prefix:
            more = self._tokenizer.encode(prefix)
            if more and self._bos is not None and self._tokenizer.id_to_token(more[0]) == self._bos:
                more = more[1:]
            ids = ids + more
        return ids

    def _variables(self, values: dict[str, Any]) -> dict[str, Any]:
        given = values["chat_template_kwargs"] or {}
        for name in given:
            if name == "chat_template":
                raise RequestRejected("Request-supplied chat_template is not allowed.", param="chat_template_kwargs")
            if name in RESERVED:
                raise RequestRejected(f"chat_template_kwargs can't set {name!r}.", param="chat_template_kwargs")
        effort = given.get("reasoning_effort", values["reasoning_effort"])
        variables = dict(given)
        if values["reasoning_effort"] is not None:
            thinking = values["reasoning_effort"] != "none"
            variables.setdefault("thinking", thinking)
            variables.setdefault("enable_thinking", thinking)
        for name, value in self._defaults.items():
            variables.setdefault(name, value)
        if effort is not None:
            variables["reasoning_effort"] = effort
        return variables
