"""Steers: what a client may send to a running response, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fulgur.backends.base import Generation
from fulgur.protocol.errors import ApiError
from fulgur.protocol.ids import STEER, new_id
from fulgur.protocol.items import CLIENT_CALLS, Item, user_message
from fulgur.protocol.request import SteerRequest
from fulgur.server.emitter import Emitter

MAX_PENDING = 16
_PARTS = ("input_text", "input_image", "input_file")


@dataclass
class Steer:
    """One accepted steer, owned by the server until it is part of a response."""

    id: str
    response_id: str
    input: str | list[Item]  # as the client sent it, to give back if it cannot be used
    items: list[Item]
    at_token: bool

    def named(self) -> dict[str, Any]:
        return {"id": self.id, "previous_response_id": self.response_id}


class Steers:
    """The steers that a run has accepted and not used yet."""

    def __init__(self) -> None:
        self.at_item: list[Steer] = []  # wait for the end of the current item
        self.offered: list[Steer] = []  # given to the backend: at the next token
        self.late: list[Steer] | None = None  # arrived while the response is being stored; None at other times

    def add(self, request: SteerRequest, generation: Generation | None) -> Steer:
        """Accept one and offer it to the backend; raises ApiError when it cannot be used."""
        if len(self.at_item) + len(self.offered) >= MAX_PENDING:
            raise ApiError(400, "too_many_pending_steers", f"At most {MAX_PENDING} steers may be pending.")
        steer = accept(request)
        self.at_item.append(steer)
        try:
            self.offer(generation)
        except ApiError:
            self.at_item.remove(steer)
            raise
        return steer

    def offer(self, generation: Generation | None) -> None:
        """Offer the backend the steers that apply at a token, in their order, until it refuses one."""
        for steer in [steer for steer in self.at_item if steer.at_token]:
            if generation is None or not generation.steer(steer.items):
                return
            self.at_item.remove(steer)
            self.offered.append(steer)

    def take_applied(self, items: list[Item]) -> list[Steer]:
        """The offered steers whose items the backend has taken."""
        taken = [steer for steer in self.offered if among(steer.items, items)]
        self.offered = [steer for steer in self.offered if steer not in taken]
        return taken

    def drain(self) -> list[Steer]:
        """Take all remaining steers, the offered ones first."""
        left = [*self.offered, *self.at_item]
        self.offered, self.at_item = [], []
        return left


def accept(request: SteerRequest) -> Steer:
    """Check the input: text, or user messages and nothing else."""
    if isinstance(request.input, str):
        if not request.input:
            raise _invalid("The steer is empty.")
        items = [user_message(request.input)]
    else:
        if not request.input:
            raise _invalid("The steer is empty.")
        for item in request.input:
            _check_message(item)
        items = request.input
    return Steer(new_id(STEER), request.previous_response_id, request.input, items, request.boundary == "token")


def emit_failed(emitter: Emitter, steer: Steer, code: str, message: str) -> None:
    """Report an accepted steer that could not be used: the client gets its words back."""
    emitter.emit(
        "response.steer.failed",
        steer={**steer.named(), "input": steer.input},
        error={"type": "invalid_request_error", "code": code, "message": message},
    )


def refusal(request: dict[str, Any], error: ApiError, sequence: int, stream_id: str | None) -> dict[str, Any]:
    """The event for a steer that was never accepted."""
    steer = {"previous_response_id": request.get("previous_response_id"), "input": request.get("input")}
    body = {"type": error.type, "code": error.code, "message": error.message}
    event = {"type": "response.steer.failed", "sequence_number": sequence, "steer": steer, "error": body}
    return event if stream_id is None else {**event, "stream_id": stream_id}


def required_input(output: list[Item]) -> list[dict[str, Any]]:
    """The tool outputs the client owes before the conversation can go on."""
    stubs: list[dict[str, Any]] = []
    for item in output:
        answer = CLIENT_CALLS.get(item["type"])
        if answer is not None and item.get("status") == "completed":
            stubs.append({"type": answer, "call_id": item["call_id"], "name": item["name"]})
    return stubs


def among(items: list[Item], taken: list[Item]) -> bool:
    """Whether these very items were taken."""
    return all(any(item is other for other in taken) for item in items)


def _check_message(item: Item) -> None:
    if item.get("type", "message") != "message" or item.get("role") != "user":
        raise _invalid("A steer may hold only user messages.")
    if set(item) - {"type", "role", "content"}:
        raise _invalid("A steered message may have only type, role and content.")
    content = item.get("content")
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        raise _invalid("A steered message needs content.")
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in _PARTS:
            raise _invalid("A steered message may hold only input_text, input_image and input_file parts.")
        if part["type"] == "input_text" and not isinstance(part.get("text"), str):
            raise _invalid("An input_text part needs text.")


def _invalid(message: str) -> ApiError:
    return ApiError(400, "invalid_input", message)
