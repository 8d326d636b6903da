"""HTTP: the edge, the OpenAI-compatible endpoints, metrics. Runs as the API process."""

from octavo.server.app import build_app
from octavo.server.fields import FIELDS, Field, Treatment
from octavo.server.state import ServerState

__all__ = ["FIELDS", "Field", "ServerState", "Treatment", "build_app"]
