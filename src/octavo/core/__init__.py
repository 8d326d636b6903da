"""The vocabulary that all planes share: requests, outputs, plans, results, the runner seam."""

from octavo.core.request import (
    Abort,
    BranchOutput,
    Event,
    FinishReason,
    Request,
    StopBranch,
    Submit,
    TokenLogprobs,
)
from octavo.core.runner import KVGroupSpec, Runner, RunnerInfo
from octavo.core.sampling_params import SamplingParams, validate_sampling_params
from octavo.core.step import (
    BlockCopy,
    GrammarMask,
    RowPlan,
    RowResult,
    SlotState,
    StepPlan,
    StepResult,
    SwapMove,
    TableUpdate,
)

__all__ = [
    "Abort",
    "BlockCopy",
    "BranchOutput",
    "Event",
    "FinishReason",
    "GrammarMask",
    "KVGroupSpec",
    "Request",
    "RowPlan",
    "RowResult",
    "Runner",
    "RunnerInfo",
    "SamplingParams",
    "SlotState",
    "StepPlan",
    "StepResult",
    "StopBranch",
    "Submit",
    "SwapMove",
    "TableUpdate",
    "TokenLogprobs",
    "validate_sampling_params",
]
