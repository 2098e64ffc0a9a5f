"""What a chat completion looks like, whole and in chunks. The constant parts of a chunk are encoded once."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from controlplane.gateway.answer import Object, dumps, head
from controlplane.gateway.generate import Admitted
from controlplane.gateway.logprobs import chat_logprobs, prompt_logprobs
from inference.contracts import FinishReason, TokenEntry, TokenLogprob

PREFIX = "chatcmpl"
ROLE = '{"role":"assistant","content":"","refusal":null}'


class ChatForm:
    """With `include_usage` every chunk but the usage chunk says `usage: null`."""

    def __init__(self, admitted: Admitted, *, include_usage: bool) -> None:
        self._admitted = admitted
        self._sampling = admitted.sampling
        self._head = dumps(head(admitted, "chat.completion.chunk", PREFIX))[:-1]
        self._before = f'data: {self._head},"choices":[{{"index":'
        usage = ',"usage":null' if include_usage else ""
        self._after = f"}}]{usage}}}\n\n"
        self._texts: defaultdict[int, list[str]] = defaultdict(list)
        self._logprobs: defaultdict[int, list[Any]] = defaultdict(list)
        self._prompt: tuple[TokenLogprob | None, ...] = ()

    def _chunk(self, index: int, delta: str, logprobs: str = "null", reason: str = "null") -> bytes:
        values = f'{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}'
        return f"{self._before}{values}{self._after}".encode()

    def opening(self) -> bytes:
        return b"".join(self._chunk(index, ROLE) for index in range(self._admitted.choices))

    def tokens(self, index: int, entry: TokenEntry) -> bytes:
        logprobs = self._logprobs_of(entry)
        if not entry.text and logprobs is None:
            return b""
        return self._chunk(index, f'{{"content":{json.dumps(entry.text)}}}', dumps(logprobs))

    def _logprobs_of(self, entry: TokenEntry) -> Object | None:
        if self._sampling.logprobs is None:
            return None
        return chat_logprobs(self._admitted.text, entry.ids, entry.logprobs)

    def finish(self, index: int, reason: FinishReason) -> bytes:
        return self._chunk(index, "{}", reason=f'"{reason}"')

    def usage(self, usage: Object) -> bytes:
        return f'data: {self._head},"choices":[],"usage":{dumps(usage)}}}\n\n'.encode()

    def add(self, index: int, entry: TokenEntry) -> None:
        self._texts[index].append(entry.text)
        if (logprobs := self._logprobs_of(entry)) is not None:
            self._logprobs[index] += logprobs["content"]
        if index == 0 and entry.position == 1 and entry.logprobs:
            self._prompt = entry.logprobs[0].prompt

    def whole(self, reasons: dict[int, FinishReason], usage: Object) -> Object:
        choices = [self._choice(index, reasons[index]) for index in range(self._admitted.choices)]
        answer = {**head(self._admitted, "chat.completion", PREFIX), "choices": choices, "usage": usage}
        if (wanted := self._sampling.prompt_logprobs) is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self._admitted.text, self._admitted.prompts[0], self._prompt, wanted)
        return answer

    def _choice(self, index: int, reason: FinishReason) -> Object:
        message: Object = {"role": "assistant", "content": "".join(self._texts[index]), "refusal": None, "annotations": []}
        logprobs = None if self._sampling.logprobs is None else {"content": self._logprobs[index], "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}
