"""The client side of an engine: journal, text, streams, replay after a crash."""

from octavo.frontend.client import AsyncEngineClient
from octavo.frontend.journal import Journal, JournalEntry
from octavo.frontend.output_processor import OutputProcessor, Processed
from octavo.frontend.outputs import BranchDelta, RequestOutput, Usage
from octavo.frontend.stream import RequestStream
from octavo.frontend.transport import DealerTransport, Receiver, Transport

__all__ = [
    "AsyncEngineClient",
    "BranchDelta",
    "DealerTransport",
    "Journal",
    "JournalEntry",
    "OutputProcessor",
    "Processed",
    "Receiver",
    "RequestOutput",
    "RequestStream",
    "Transport",
    "Usage",
]
