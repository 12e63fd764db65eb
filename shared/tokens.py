"""Token ids that a request names."""

from shared.errors import InvalidRequest
from shared.wire import Sampling


def refuse_ids(sampling: Sampling, vocab_size: int) -> None:
    """InvalidRequest if a token that the sampling names is none of the model's."""
    named = {"logit_bias": [token for token, _ in sampling.logit_bias], "stop_token_ids": sampling.stop_token_ids}
    for param, ids in named.items():
        if any(not 0 <= token < vocab_size for token in ids):
            raise InvalidRequest(f"{param}: a token id is outside of 0 to {vocab_size - 1}.", param=param)
