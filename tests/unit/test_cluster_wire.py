from __future__ import annotations

import msgspec
import pytest

from octavo.cluster.messages import AbortMessage, Outputs, SubmitMessage
from octavo.cluster.wire import (
    MAX_FRAME_BYTES,
    WireError,
    decode_engine_message,
    decode_frontend_message,
    encode,
)
from octavo.core.request import Request, Submit, TokenRun
from octavo.core.sampling_params import SamplingParams


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"type": "Unknown"}),
        msgspec.msgpack.encode({"type": "Hello", "client_epoch": "1"}),
        msgspec.msgpack.encode(["Hello", 1]),
        b"\x81" * 100_000,
        b"\x91" * 100_000,
        b"\x00" * (MAX_FRAME_BYTES + 1),
    ],
)
def test_malformed_frames_are_wire_errors(frame: bytes) -> None:
    with pytest.raises(WireError):
        decode_frontend_message(frame)
    with pytest.raises(WireError):
        decode_engine_message(frame)


def test_frames_survive_the_wire() -> None:
    sampling = SamplingParams(
        n=3, stop=("a", "b"), logit_bias=((3, -1.5),), stop_token_ids=(4,), temperature=0.5,
        max_tokens=400, seed=1,
    )  # fmt: skip
    request = Request(request_id="r", prompt_token_ids=(1, 2, 3), sampling=sampling)
    message = SubmitMessage(client_epoch=1, submit=Submit(request=request))
    assert decode_frontend_message(encode(message)) == message


def test_a_frame_over_the_cap_is_not_sent() -> None:
    with pytest.raises(WireError, match="exceeds the limit"):
        encode(AbortMessage(client_epoch=1, request_ids=["x" * MAX_FRAME_BYTES]))


def test_a_run_with_columns_of_different_lengths_is_malformed() -> None:
    run = TokenRun((("r", 0, 0, 0),), [4, 5], [7])
    with pytest.raises(WireError, match="differ in length"):
        decode_engine_message(encode(Outputs(engine_epoch=1, run=run)))
