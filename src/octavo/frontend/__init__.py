"""The client side of an engine: journal, text, streams, replay after a crash."""

from octavo.frontend.client import AsyncEngineClient
from octavo.frontend.output_processor import OutputProcessor
from octavo.frontend.outputs import BranchDelta, RequestOutput, Usage
from octavo.frontend.stream import RequestStream
from octavo.frontend.transport import DealerTransport

__all__ = [
    "AsyncEngineClient",
    "BranchDelta",
    "DealerTransport",
    "OutputProcessor",
    "RequestOutput",
    "RequestStream",
    "Usage",
]
