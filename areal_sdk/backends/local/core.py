"""The engine without its process: requests in, sampled tokens out, one step at a time."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from areal_sdk.backends.local import batch
from areal_sdk.backends.local.forward.architecture import Architecture
from areal_sdk.backends.local.forward.checkpoint import Weights, open_weights
from areal_sdk.backends.local.forward.kv_cache import MIN_ROW_LENGTH, KVRows, PrefixStore
from areal_sdk.backends.local.forward.linear import can_pack
from areal_sdk.backends.local.forward.model import Model
from areal_sdk.backends.local.protocol import LocalOptions
from areal_sdk.backends.local.sampling import Grammar, GrammarCompiler, SamplerRow, sample
from areal_sdk.backends.local.scheduler import Scheduler, Work
from areal_sdk.backends.local.sequence import Finish, Sequence, StopRule
from areal_sdk.backends.local.speculation import Speculation
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import EngineError
from areal_sdk.models.families import stop_tokens
from areal_sdk.process.memory import is_memory_short
from areal_sdk.process.spec import SHARE_VARIABLE

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_CPU_PREFILL_CHUNK, _GPU_PREFILL_CHUNK = 256, 4096
"""Maximum number of prefilled tokens a step. More would not be faster and would delay decoding requests."""
_DEFAULT_CPU_KV_BYTES = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class SampledToken:
    sequence: Sequence
    token: int
    logprob: float
    version: int
    top_logprobs: dict[int, float]
    finish: Finish | None


class EngineCore:
    """Model, KV, scheduler and sampler. Single-threaded; the caller steps it."""

    def __init__(self, model_dir: Path, options: LocalOptions) -> None:
        self.model_dir = model_dir
        self.architecture = Architecture.load(model_dir)
        self.device = _choose_device(options.device)
        self.dtype = _choose_dtype(options.dtype, self.architecture, self.device)
        self.version = 0
        self.stop_tokens = stop_tokens(model_dir)
        self._options = options
        self._tokenizer_path = model_dir / "tokenizer.json"
        self._tokenizer: Tokenizer | None = None
        self._grammars: GrammarCompiler | None = None
        self.model = Model(
            self.architecture,
            device=self.device,
            dtype=self.dtype,
            packed=can_pack(self.device, self.dtype),
        )
        open_weights(model_dir, self.architecture).copy_into(self.model)
        self.speculation: Speculation | None = None
        if options.speculate and not options.deterministic:
            is_timed_by_cpu = self.device.type == "cpu" and options.threads == 1
            self.speculation = Speculation(thread_time if is_timed_by_cpu else perf_counter)
        self._kv_bytes = _kv_budget(options.kv_memory_gb, self.device)
        self.scheduler = self._make_scheduler()

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add(self, request: GenerateRequest) -> Sequence:
        """Queue `request`; its tokens come out of `step`."""
        max_new_tokens = min(request.max_new_tokens, self.max_context - len(request.tokens))
        own_stops = () if request.ignore_eos else self.stop_tokens
        schema = request.json_schema
        grammar = None if schema is None else self._compile(schema)
        sequence = Sequence(
            np.asarray(request.tokens, dtype=np.int32),
            SamplerRow.of(request, grammar),
            StopRule(
                max_new_tokens,
                frozenset((*own_stops, *request.stop_tokens)),
                request.stop,
                self._load_tokenizer() if request.stop else None,
            ),
        )
        self.scheduler.add(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)

    def remove_all(self) -> None:
        """Forget every request and all KV, after a failed step."""
        self.scheduler.clear()

    def update_weights(self, version: int, weights: Weights | None) -> None:
        """Serve `version` from the next token on; without weights only the label changes."""
        if weights is not None:
            weights.copy_into(self.model)
            self.scheduler.weights_changed(keep_kv=self._options.kv_on_update == "keep")
        self.version = version

    def step(self) -> list[SampledToken]:
        """Run one forward, and return the tokens that it sampled. Finished sequences are removed by then. EngineError
        if the weights do not give a distribution, or if memory is too short for one sequence: then none can continue.
        """
        try:
            return self._step()
        except Exception as exc:
            if not is_memory_short(exc):
                raise
            said = str(exc).strip().partition("\n")[0]
        self._lower_budget(said)  # the tensors of the step went with its frames
        return []

    def _lower_budget(self, said: str) -> None:
        """Halve the memory for keys and values. All sequences go on, after their keys and values are computed again."""
        lowered = self._kv_bytes // 2
        named = f"the engine on {self.device} ran out of memory, with {self._kv_bytes / 1e9:.2f} GB for keys and values"
        problem = ""
        if self._options.deterministic:  # what is computed again has other last digits
            problem = "and run.deterministic lets it not begin again: lower engine.max_slots"
        elif lowered // 2 // self._token_bytes < self.max_context:
            problem = f"half of which cannot hold a request of {self.max_context} tokens: lower engine.max_context"
        if problem:
            raise EngineError(
                f"{named}, {problem}, or what else uses the memory (trainer.tokens_per_microbatch on a shared GPU). "
                f"torch says: {said[:300]}"
            )
        logger.warning(
            "%s: it goes on with half of it. Lower engine.max_slots = %d to need less. torch says: %s",
            named,
            self._options.max_slots,
            said[:300],
        )
        sequences, self._kv_bytes = self.scheduler.without_kv(), lowered
        del self.scheduler
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.scheduler = self._make_scheduler()
        for sequence in sequences:
            self.scheduler.add(sequence)

    @property
    def _token_bytes(self) -> int:
        a = self.architecture
        return a.num_layers * a.kv_width * self.dtype.itemsize

    def _step(self) -> list[SampledToken]:
        work = self.scheduler.plan()
        if not work:
            return []
        if self.speculation is not None:
            work = self.speculation.with_drafts(work, row_length=self.scheduler.kv.length)
        is_fixed_decode = self._options.deterministic and all(
            item.is_decode and item.sequence.output for item in work
        )
        forward_input = batch.build(
            work,
            self.scheduler.kv,
            device=self.device,
            pad_to=self._options.max_slots if is_fixed_decode else 0,
        )
        logits = self.model.forward(forward_input, self.scheduler.kv)
        complete = [item for item in work if item.reaches_end]
        for item in work:
            item.sequence.num_computed += item.num_new
        sampled = self._sample(logits, complete) if complete else []
        if self.speculation is not None:
            self.speculation.note(work, num_sampled=len(sampled))
        return sampled

    def _sample(self, logits: torch.Tensor, complete: list[Work]) -> list[SampledToken]:
        rows: list[SamplerRow] = []
        for item in complete:
            row = item.sequence.row
            rows += row.after(item.draft) if item.draft else [row]
        try:
            sampled = sample(logits, rows)
        except ValueError as exc:
            raise EngineError(
                f"the weights of version {self.version} are broken, {exc}: training has diverged "
                "(lower the learning rate, clip gradients) or the checkpoint is damaged"
            ) from exc
        results: list[SampledToken] = []
        places = zip(sampled.tokens, sampled.logprobs, sampled.top_logprobs, strict=True)
        for item in complete:
            results += self._accepted(item, list(islice(places, 1 + len(item.draft))))
        for result in results:
            if result.finish is not None:
                self.scheduler.remove(result.sequence)
        return results

    def _accepted(
        self, item: Work, places: list[tuple[int, float, dict[int, float]]]
    ) -> list[SampledToken]:
        """The sampled tokens up to the first that differs from the draft, including that one. Later ones followed a drafted
        token that was not sampled, so they are left out, and their keys and values are overwritten later."""
        sequence = item.sequence
        results: list[SampledToken] = []
        for (token, logprob, top), drafted in zip_longest(places, item.draft):
            sequence.output.append(token)
            sequence.row.note(token, is_ahead=bool(item.draft))
            finish = sequence.stop.check(sequence.output)
            results.append(SampledToken(sequence, token, logprob, self.version, top, finish))
            if token != drafted or finish is not None:
                break
        sequence.num_computed += len(results) - 1
        return results

    def _compile(self, schema: Mapping[str, Any]) -> Grammar:
        if self._grammars is None:
            self._load_tokenizer()  # says what to do where there is none
            self._grammars = GrammarCompiler(
                self._tokenizer_path,
                vocab_size=self.architecture.vocab_size,
                end_tokens=self.stop_tokens,
            )
        return self._grammars.compile(schema)

    def _load_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            if not self._tokenizer_path.is_file():
                raise EngineError(
                    f"stop strings and JSON output need {self._tokenizer_path}, which does not exist: "
                    "save the model with a fast tokenizer, or stop by token id (stop_tokens)"
                )
            self._tokenizer = Tokenizer.from_file(str(self._tokenizer_path))
        return self._tokenizer

    def _make_scheduler(self) -> Scheduler:
        options, a = self._options, self.architecture
        budget_bytes = self._kv_bytes // 2
        budget_tokens = budget_bytes // self._token_bytes
        wanted = options.max_context or a.max_context
        if wanted > a.max_context:
            raise EngineError(
                f"max_context {wanted} is more than the model's own {a.max_context}: lower it"
            )
        self.max_context = min(wanted, budget_tokens)
        if self.max_context < (MIN_ROW_LENGTH if options.max_context is None else wanted):
            raise EngineError(
                f"{2 * budget_bytes / 1e9:.2f} GB for keys and values hold requests of at most "
                f"{budget_tokens} tokens: lower max_context or raise kv_memory_gb"
            )
        kv = KVRows(
            num_layers=a.num_layers,
            num_heads=a.num_kv_heads,
            head_dim=a.head_dim,
            max_rows=options.max_slots,
            max_length=self.max_context,
            budget_tokens=budget_tokens,
            device=self.device,
            dtype=self.dtype,
        )
        return Scheduler(
            kv,
            PrefixStore(budget_bytes),
            max_running=options.max_slots,
            prefill_chunk=_CPU_PREFILL_CHUNK if self.device.type == "cpu" else _GPU_PREFILL_CHUNK,
            deterministic=options.deterministic,
        )


def _choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineError(f"device {name!r}: this torch sees no GPU; use device 'cpu' or 'auto'")
    return device


def _choose_dtype(name: str, architecture: Architecture, device: torch.device) -> torch.dtype:
    chosen = architecture.dtype if name == "auto" else name
    if chosen == "float16" and device.type == "cpu":
        chosen = "bfloat16"
    if chosen not in _DTYPES:
        raise EngineError(
            f"the local engine cannot compute in {chosen!r}, the type of the checkpoint: set "
            "engine.dtype to bfloat16 or float32"
        )
    return _DTYPES[chosen]


def _kv_budget(configured_gb: float | None, device: torch.device) -> int:
    """Bytes for keys and values: half for running requests, half for idle prefixes."""
    if configured_gb is not None:
        return int(configured_gb * 1e9)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        share = float(os.environ.get(SHARE_VARIABLE, 1))  # other processes may take the rest later
        own = int(share * total) - torch.cuda.memory_reserved(device)
        return max(min(free, own), 0) * 2 // 3
    return min(_available_memory() // 3, _DEFAULT_CPU_KV_BYTES)


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise EngineError("/proc/meminfo names no MemAvailable: give kv_memory_gb")
