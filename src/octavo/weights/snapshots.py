"""Models from a Hugging Face compatible hub: one snapshot per id, verified blob by blob.

The hub's cache names every file's content by its digest, which is how a download is verified here
without asking anyone: SHA-256 for large files, git's SHA-1 of a blob for small ones.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from octavo.environment import environment
from octavo.errors import DownloadError

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_FILES: Final = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "*.safetensors",
    "*.safetensors.index.json",
]
_COPY_BYTES: Final = 1 << 20


def describe_hub_model(hub_id: str) -> tuple[str, str]:
    """(revision, licence) of a hub model, as the hub says now.

    Raises:
        DownloadError: no network, no such model or no permission.
    """
    # The library takes half a second to import and is needed for hub ids alone.
    from huggingface_hub import HfApi

    with _explained(hub_id):
        info = HfApi(endpoint=_endpoint()).model_info(hub_id, timeout=20)
    return info.sha or "main", _licence(info.tags)


def fetch_snapshot(
    hub_id: str,
    revision: str,
    *,
    file_name: str | None,
    cache: Path,
    report: Callable[[str, int], None],
) -> Path:
    """Bring a hub model into ``cache``: the path of its directory, or of ``file_name`` in it.

    What was interrupted is resumed. ``report`` is called with the stage ("download", "verify") and
    the bytes done in it.

    Raises:
        DownloadError: no network, no such model, no permission, no disk or a wrong digest.
    """
    from huggingface_hub import snapshot_download

    with _explained(hub_id):
        snapshot = snapshot_download(
            hub_id,
            revision=revision,
            cache_dir=cache,
            endpoint=_endpoint(),
            allow_patterns=_FILES if file_name is None else [file_name],
            tqdm_class=_progress_class(report),
        )
    folder = Path(snapshot)
    path = folder if file_name is None else folder / file_name
    wanted = path if file_name else path / "config.json"
    if not wanted.exists():
        raise DownloadError(f"{hub_id} has no file {wanted.name!r}; check the name")
    _verify(folder, report)
    return path


def _endpoint() -> str | None:
    return environment("OCTAVO_HUB_URL") or None


@contextmanager
def _explained(hub_id: str) -> Iterator[None]:
    """Turn what the hub library raises into ``DownloadError``."""
    from huggingface_hub import errors

    # The base of what its HTTP client raises; which client that is differs between versions.
    transport_error: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]
    try:
        yield
    except errors.GatedRepoError:
        cause = f"{hub_id} is gated; accept its terms on the hub and log in there"
    except errors.RepositoryNotFoundError:
        cause = f"the hub has no model {hub_id}, or it is private; check the name"
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, transport_error) as error:
        kind = type(error).__name__
        cause = f"{hub_id}: the hub cannot be reached ({kind}); check the network or OCTAVO_HUB_URL"
    except errors.OfflineModeIsEnabled:
        cause = f"{hub_id} is not in the cache and the hub client is offline; unset HF_HUB_OFFLINE"
    except OSError as error:
        cause = (
            f"{hub_id} cannot be stored ({error.strerror or type(error).__name__}); free some "
            "space or set OCTAVO_CACHE_DIR"
        )
    else:
        return
    raise DownloadError(cause)


def _licence(tags: list[str] | None) -> str:
    named = [tag.removeprefix("license:") for tag in tags or [] if tag.startswith("license:")]
    return named[0] if named else "not stated"


def _verify(folder: Path, report: Callable[[str, int], None]) -> None:
    done = 0
    for file in sorted(folder.rglob("*")):
        if not file.is_symlink():
            continue
        blob = file.resolve()
        if _blob_digest(blob) != blob.name:
            file.unlink()
            blob.unlink()
            raise DownloadError(
                f"{file.name} differs from the digest that the hub names; deleted: try again"
            )
        done += blob.stat().st_size
        report("verify", done)


def _blob_digest(blob: Path) -> str:
    """The digest of the kind that the blob is named by; its own name if that is no digest."""
    size = blob.stat().st_size
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        digest = hashlib.sha256()
    elif re.fullmatch(r"[0-9a-f]{40}", blob.name):
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    else:
        return "not a digest"
    with blob.open("rb") as file:
        while chunk := file.read(_COPY_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _progress_class(report: Callable[[str, int], None]) -> type[Any]:
    """A stand-in for the progress bar that the hub library draws: it reports, and draws nothing."""
    from huggingface_hub import utils

    bar: Any = utils.tqdm  # type: ignore[attr-defined]

    class Reporter(bar):  # type: ignore[misc]
        def __init__(self, *args: object, **kwargs: object) -> None:
            self._counts_bytes = kwargs.get("unit") == "B"
            self._counted = 0
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self._counted += int(n or 0)
            if self._counts_bytes:
                report("download", self._counted)

    return Reporter
