"""Frames: one msgpack struct each, size-capped, typed on arrival. Nothing is ever pickled."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from octavo.cluster.messages import EngineMessage, FrontendMessage, Outputs
from octavo.errors import OctavoError

MAX_FRAME_BYTES = 16 << 20
_Message = TypeVar("_Message")

_encoder = msgspec.msgpack.Encoder()
_frontend_decoder = msgspec.msgpack.Decoder(FrontendMessage)
_engine_decoder = msgspec.msgpack.Decoder(EngineMessage)


class WireError(ValueError):
    """A frame that is too large, truncated, of an unknown kind or wrongly typed."""


def encode(message: FrontendMessage | EngineMessage) -> bytes:
    """One frame.

    Raises:
        WireError: the frame would exceed ``MAX_FRAME_BYTES``.
    """
    frame = _encoder.encode(message)
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(frame)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return frame


def decode_frontend_message(frame: bytes) -> FrontendMessage:
    """What a frontend sent.

    Raises:
        WireError: see the class.
    """
    return _decode(_frontend_decoder, frame)


def decode_engine_message(frame: bytes) -> EngineMessage:
    """What an engine sent.

    Raises:
        WireError: see the class; also where the columns of a run differ in length.
    """
    message = _decode(_engine_decoder, frame)
    run = message.run if isinstance(message, Outputs) else None
    if run is not None and not len(run.lanes) == len(run.positions) == len(run.token_ids):
        raise WireError("malformed frame: the columns of a run differ in length")
    return message


def _decode(decoder: msgspec.msgpack.Decoder[_Message], frame: bytes) -> _Message:
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(frame)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, OctavoError, ValueError, RecursionError) as error:
        raise WireError(f"malformed frame: {error}") from error
