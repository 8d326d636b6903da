"""Who owns which block: pools, tables, prefix index, promises, ledger and their invariants.

``KVCacheManager`` is the door; ``BlockPool`` is private to this package.
"""

from octavo.kv.block_table import Account, SequenceKV
from octavo.kv.invariants import check_copies, check_fits, check_kv, check_sums, check_writes
from octavo.kv.kv_cache_manager import KVCacheManager
from octavo.kv.kv_state import PrefixHit
from octavo.kv.ledger import Ledger, metadata_bytes, take_ledger
from octavo.kv.prefix_index import common_prefix_length
from octavo.kv.prefix_key import PrefixKey
from octavo.kv.reservation import StepReservation

__all__ = [
    "Account",
    "KVCacheManager",
    "Ledger",
    "PrefixHit",
    "PrefixKey",
    "SequenceKV",
    "StepReservation",
    "check_copies",
    "check_fits",
    "check_kv",
    "check_sums",
    "check_writes",
    "common_prefix_length",
    "metadata_bytes",
    "take_ledger",
]
