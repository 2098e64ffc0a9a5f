"""What a completion looks like, whole and in chunks. `brigade.requests` names the request of each prompt."""

from __future__ import annotations

from collections import defaultdict

from controlplane.gateway.answer import Object, event, head
from controlplane.gateway.generate import Admitted
from controlplane.gateway.logprobs import CompletionLogprobs, joined, prompt_logprobs
from inference.contracts import FinishReason, TokenEntry, TokenLogprob

PREFIX = "cmpl"
KIND = "text_completion"


class CompletionForm:
    """`echo`: each answer begins with its prompt. `prompt_alternatives` is what `prompt_logprobs` asks for."""

    def __init__(self, admitted: Admitted, *, echo: bool, prompt_alternatives: int | None, include_usage: bool) -> None:
        self._admitted = admitted
        self._echo = echo
        self._prompt_alternatives = prompt_alternatives
        self._alternatives = admitted.sampling.logprobs
        self._head = head(admitted, KIND, PREFIX)
        self._usage: Object = {"usage": None} if include_usage else {}
        self._brigade = {"brigade": {"requests": [f"{PREFIX}-{one.request_id.hex}" for one in admitted.completions]}}
        self._writers: dict[int, CompletionLogprobs] = {}
        self._prompts: dict[int, tuple[TokenLogprob | None, ...]] = {}  # by the prompt's number
        self._texts: defaultdict[int, list[str]] = defaultdict(list)
        self._logprobs: defaultdict[int, list[Object]] = defaultdict(list)

    def _chunk(self, index: int, text: str, logprobs: Object | None = None, reason: FinishReason | None = None) -> Object:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head, "choices": [choice], **self._usage}

    def opening(self) -> bytes:
        return b""

    def tokens(self, index: int, entry: TokenEntry) -> bytes:
        parts = self._parts(index, entry)
        if not any(text for text, _ in parts) and self._alternatives is None:
            return b""
        return b"".join(event(self._chunk(index, text, logprobs)) for text, logprobs in parts)

    def _parts(self, index: int, entry: TokenEntry) -> list[tuple[str, Object | None]]:
        """Text and log probabilities: of the prompt, where it is echoed, before a choice's first token; then of the tokens."""
        number = index // self._admitted.sampling.n
        if entry.choice == 0 and entry.position == 1 and entry.logprobs:
            self._prompts[number] = entry.logprobs[0].prompt
        echo = [self._echoed(index, number)] if self._echo and entry.position == 1 else []
        writer = self._writer(index)
        return [*echo, (entry.text, writer.add(entry.ids, entry.logprobs) if writer else None)]

    def _echoed(self, index: int, number: int) -> tuple[str, Object | None]:
        ids = self._admitted.prompts[number]
        writer = self._writer(index)
        return self._admitted.text.decode(ids), writer.echo(ids, self._prompts[number]) if writer else None

    def _writer(self, index: int) -> CompletionLogprobs | None:
        if self._alternatives is None:
            return None
        if index not in self._writers:
            self._writers[index] = CompletionLogprobs(self._admitted.text, self._alternatives)
        return self._writers[index]

    def finish(self, index: int, reason: FinishReason) -> bytes:
        return event({**self._chunk(index, "", reason=reason), **self._brigade})

    def usage(self, usage: Object) -> bytes:
        return event({**self._head, "choices": [], "usage": usage})

    def add(self, index: int, entry: TokenEntry) -> None:
        for text, logprobs in self._parts(index, entry):
            self._texts[index].append(text)
            if logprobs is not None:
                self._logprobs[index].append(logprobs)

    def whole(self, reasons: dict[int, FinishReason], usage: Object) -> Object:
        choices = [self._choice(index, reasons[index]) for index in range(self._admitted.choices)]
        return {**self._head, "choices": choices, "usage": usage, **self._brigade}

    def _choice(self, index: int, reason: FinishReason) -> Object:
        logprobs = None if self._alternatives is None else joined(self._logprobs[index])
        choice = {"index": index, "text": "".join(self._texts[index]), "logprobs": logprobs, "finish_reason": reason}
        if self._prompt_alternatives is None:
            return choice
        number = index // self._admitted.sampling.n
        ids, found = self._admitted.prompts[number], self._prompts[number]
        return {**choice, "prompt_logprobs": prompt_logprobs(self._admitted.text, ids, found, self._prompt_alternatives)}
