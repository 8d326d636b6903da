"""The requests that the engine owes an outcome, by id: entry checks, deadlines, departures."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from octavo.core.probe import validate_probe
from octavo.core.request import BranchOutput, FinishReason, Request, Submit, validate_priority
from octavo.core.runner import RunnerInfo
from octavo.errors import ContextLengthError, InvalidRequestError, OctavoError
from octavo.kv import KVCacheManager, PrefixKey
from octavo.scheduler import RequestState, Sequence

# What is told of one prompt goes in one message.
MAX_PROMPT_LOGPROBS = 1 << 19


class RequestTable:
    """Live requests and their deadlines. A request has one state and one owner epoch (I7)."""

    def __init__(self, info: RunnerInfo, kv: KVCacheManager, *, max_num_seqs: int) -> None:
        self.states: dict[str, RequestState] = {}
        self._info = info
        self._kv = kv
        self._max_num_seqs = max_num_seqs
        self._deadlines: list[tuple[float, str, int]] = []
        self._num_arrived = 0
        windows = ",".join(f"{g.window or 0}x{g.num_layers}" for g in info.groups)
        self._layout = f"block={info.block_size};groups={windows}"

    # -- entry -------------------------------------------------------------------------------

    def check(self, request: Request) -> int:
        """The most output tokens a branch may have.

        Raises:
            InvalidRequestError: the request can never run here.
            ContextLengthError: its prompt, or its worst case, does not fit the model or the pool.
        """
        info, sampling = self._info, request.sampling
        num_prompt = len(request.prompt_token_ids)
        if num_prompt == 0:
            raise InvalidRequestError(
                "the prompt is empty; give at least one token", param="prompt"
            )
        if min(request.prompt_token_ids) < 0 or max(request.prompt_token_ids) >= info.vocab_size:
            raise InvalidRequestError(
                f"a prompt token id is outside the vocabulary of {info.vocab_size}", param="prompt"
            )
        if request.adapter:
            raise InvalidRequestError(
                f"adapter {request.adapter!r} is not loaded; leave the field out", param="adapter"
            )
        validate_priority(request.priority)
        if request.probe is not None:
            validate_probe(request.probe, sampling, vocab_size=info.vocab_size)
        self._check_ids(request)
        if sampling.width > self._max_num_seqs:
            name = sampling.width_field
            raise InvalidRequestError(
                f"{name} is {sampling.width}; the limit is {self._max_num_seqs} (max_num_seqs)",
                param=name,
            )
        if num_prompt >= info.max_model_len:
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens; the limit is {info.max_model_len - 1} "
                f"(context of {info.max_model_len}); shorten it",
                param="prompt",
            )
        return self._fit(request)

    def _check_ids(self, request: Request) -> None:
        """What is asked of single tokens: that some may be sampled, and not too many are told."""
        sampling = request.sampling
        ends = {*request.eos_token_ids, *sampling.stop_token_ids}
        if sampling.min_tokens and ends.issuperset(sampling.allowed_token_ids or (-1,)):
            raise InvalidRequestError(
                "allowed_token_ids holds nothing but ends, which min_tokens forbids; allow more",
                param="allowed_token_ids",
            )
        num_told = len(request.prompt_token_ids) * (1 + (sampling.prompt_logprobs or 0))
        if sampling.prompt_logprobs is not None and num_told > MAX_PROMPT_LOGPROBS:
            raise InvalidRequestError(
                f"prompt_logprobs would tell {num_told} logprobs of this prompt; the limit is "
                f"{MAX_PROMPT_LOGPROBS}; ask for fewer alternatives",
                param="prompt_logprobs",
            )

    def _fit(self, request: Request) -> int:
        """The output limit, with the worst case over all branches held against the pool."""
        num_prompt, wanted = len(request.prompt_token_ids), request.sampling.max_tokens
        room = self._info.max_model_len - num_prompt
        if wanted is not None:
            max_output = min(wanted, room)
            if (worst := self._worst_blocks(request, max_output)) <= self._info.num_blocks:
                return max_output
        else:
            max_output, worst = self._largest_fit(request, room)
            if max_output:
                return max_output
        size, width = self._info.block_size, request.sampling.width_field
        raise ContextLengthError(
            f"the request needs up to {worst} KV blocks ({num_prompt} prompt tokens, "
            f"max_tokens {wanted or 1}, {width} {request.sampling.width}); the pool has "
            f"{self._info.num_blocks} blocks of {size} tokens; lower max_tokens or {width}, "
            "shorten the prompt, or serve with more KV memory",
            param="max_tokens" if wanted else "prompt",
        )

    def _worst_blocks(self, request: Request, max_output: int) -> int:
        """Blocks of the fullest group when every branch has grown to ``max_output`` tokens."""
        num_prompt = len(request.prompt_token_ids)
        spare = request.sampling.width - 1 if max_output > 1 else 0
        return max(self._kv.promises.demand(num_prompt + max_output - 1, spare, num_prompt))

    def _largest_fit(self, request: Request, room: int) -> tuple[int, int]:
        """Bisect the largest output limit ≤ ``room`` that fits the pool, 0 if none does."""
        low, high = 0, room
        while low < high:
            middle = (low + high + 1) // 2
            if self._worst_blocks(request, middle) <= self._info.num_blocks:
                low = middle
            else:
                high = middle - 1
        return low, self._worst_blocks(request, 1)

    def enter(self, submit: Submit, max_output: int, *, num_cached: int = 0) -> RequestState:
        """Book a request that passed ``check``; its sequences are still to be queued.

        ``num_cached`` prompt tokens were read from the prefix cache by an attempt that it resumes.
        """
        request = submit.request
        self._num_arrived += 1
        state = RequestState(
            submit,
            order=self._num_arrived,
            max_output=max_output,
            digest=self._prefix_key(request).digest(),
            num_cached=num_cached,
        )
        self.states[request.request_id] = state
        if request.deadline is not None:
            heappush(self._deadlines, (request.deadline, request.request_id, state.order))
            self._compact_deadlines()
        for seq in self._sequences(submit, state):
            state.branches[seq.branch] = seq
        return state

    def _sequences(self, submit: Submit, state: RequestState) -> list[Sequence]:
        """One sequence that will fork, or one per unfinished branch of a resumed request."""
        request = submit.request
        prompt = list(request.prompt_token_ids)
        n = request.sampling.width
        fresh = not any(submit.branch_tokens) and not submit.finished_branches
        if fresh or state.beam is not None:
            return [state.leader]
        tokens = (*submit.branch_tokens, *((),) * n)
        return [
            Sequence(state, branch, [*prompt, *tokens[branch]])
            for branch in range(n)
            if branch not in submit.finished_branches
        ]

    def _prefix_key(self, request: Request) -> PrefixKey:
        info = self._info
        return PrefixKey(
            model_digest=info.model_digest,
            adapter=request.adapter,
            tokenizer_digest=info.tokenizer_digest,
            rope=info.rope,
            fingerprint=info.fingerprint,
            kv_dtype=info.kv_dtype,
            layout=self._layout,
            tenant=request.tenant,
            domain=request.domain,
        )

    # -- departure ---------------------------------------------------------------------------

    def leave(self, request_id: str) -> None:
        """Forget a request whose branches have all ended."""
        del self.states[request_id]
        if not self.states:
            self._deadlines.clear()

    def _compact_deadlines(self) -> None:
        """Drop entries of requests that have left, once they are the majority."""
        if len(self._deadlines) > 64 + 2 * len(self.states):
            self._deadlines = [entry for entry in self._deadlines if self._is_live(entry)]
            heapify(self._deadlines)

    def _is_live(self, entry: tuple[float, str, int]) -> bool:
        state = self.states.get(entry[1])
        return state is not None and state.order == entry[2]

    def expired(self, now: float) -> list[RequestState]:
        """Live requests whose deadline has passed. Looked at in every step."""
        out = []
        while self._deadlines and self._deadlines[0][0] <= now:
            entry = heappop(self._deadlines)
            if self._is_live(entry):
                out.append(self.states[entry[1]])
        return out

    @property
    def num_deadlines(self) -> int:
        """Entries in the deadline heap (0 when idle)."""
        return len(self._deadlines)


def live_branches(state: RequestState) -> list[int]:
    """Branches that still owe an outcome, those not forked yet included."""
    if state.beam is not None:
        return state.owed_branches
    out = []
    for branch, seq in state.branches.items():
        out += [branch, *range(branch + 1, branch + 1 + seq.num_spare)]
    return sorted(out)


def final_outputs(
    state: RequestState, reason: FinishReason, *, error: str, code: str, param: str | None = None
) -> list[BranchOutput]:
    """The terminal output of every branch that still owes one."""
    return [
        BranchOutput(
            request_id=state.request.request_id,
            branch=branch,
            epoch=state.epoch,
            position=_position(state, branch),
            finish_reason=reason,
            num_cached_tokens=state.num_cached_tokens,
            error=error,
            error_code=code,
            error_param=param,
        )
        for branch in live_branches(state)
    ]


def _position(state: RequestState, branch: int) -> int:
    """Output tokens of a branch that were said."""
    said = state.beam is None and branch in state.branches
    return state.branches[branch].num_output if said else 0


def refusal(submit: Submit, error: OctavoError) -> list[BranchOutput]:
    """The outcome of a request that was never entered."""
    request = submit.request
    tokens = (*submit.branch_tokens, *((),) * request.sampling.num_branches)
    return [
        BranchOutput(
            request_id=request.request_id,
            branch=branch,
            epoch=submit.epoch,
            position=len(tokens[branch]),
            finish_reason=FinishReason.ERROR,
            error=error.message,
            error_code=error.code or error.error_type,
            error_param=error.param,
        )
        for branch in range(request.sampling.num_branches)
        if branch not in submit.finished_branches
    ]
