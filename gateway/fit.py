"""Fit: what a model's workers and a lane can take at all, told before anything is queued."""

from collections.abc import Sequence

from gateway.catalogue import ABSENT_RETRY_S, longest_context, vocabulary
from gateway.openai.budget import refuse_too_long, refuse_too_much_told
from shared import wire
from shared.broker import ServedModel
from shared.errors import InvalidRequest, NoWorkers
from shared.lanes import Lane
from shared.tokens import refuse_ids


def refuse_unfit(requests: Sequence[wire.GenerateRequest], model: ServedModel, *, limit_field: str) -> None:
    """InvalidRequest if no worker of the model could run one of them, or the answer would be too large."""
    context, vocab_size = longest_context(model), vocabulary(model)
    for request in requests:
        refuse_too_long(request, context, limit_field=limit_field)
        if vocab_size is not None:
            refuse_ids(request.sampling, vocab_size)
    refuse_too_much_told(requests, context)


def refuse_outsized(
    requests: Sequence[wire.GenerateRequest], costs: Sequence[int], name: str, lane: Lane, *, has_choices: bool
) -> None:
    """InvalidRequest if the parts would not fit into the lane even if it were empty: no use to say that it is full."""
    if len(costs) == 1 or (len(costs) <= lane.max_queued and sum(costs) <= lane.max_queued_tokens):
        return
    param = "n" if has_choices else requests[0].source
    problem = f"{len(costs)} parts of {sum(costs)} tokens in all, by estimate"
    raise InvalidRequest(
        f"This comes to {problem}; lane {name} holds {lane.max_queued} and {lane.max_queued_tokens}.", param=param
    )


def refuse_unserved(model: ServedModel, lane: str) -> None:
    """NoWorkers if the model lives, but not for this lane."""
    served = [worker["lanes"].split(",") for worker in model.workers if worker.get("lanes")]
    if served and not any(lane in lanes for lanes in served):
        raise NoWorkers(f"No worker of {model.name} serves the lane {lane} now.", retry_after_s=ABSENT_RETRY_S)
