"""Keys: a model name must not break out of its hash tag, nor one model's keys meet another's."""

import pytest
from redis.crc import key_slot

from shared.errors import ConfigError
from shared.keys import Keys, control_channel, gateway_channel


@pytest.mark.parametrize("name", ["", "a b", "a{b", "a}b", "{}", "tab\there", "line\nbreak", "nul\x00", "x" * 201])
def test_a_name_that_cannot_stand_in_a_hash_tag_is_refused(name):
    with pytest.raises(ConfigError, match="model name"):
        Keys(name)


@pytest.mark.parametrize("name", ["m", "org/Model-1.5B:q4", "ü", "x" * 200])
def test_all_keys_of_a_model_lie_in_one_cluster_slot(name):
    keys = Keys(name)
    names = [keys.stream("a"), keys.stats("b"), keys.request("r"), keys.log("r"), keys.worker("w"), keys.workers]

    assert len({key_slot(key.encode()) for key in [*names, keys.dead_letters]}) == 1
    assert len(set(names)) == len(names)


def test_two_models_share_no_key():
    assert Keys("a").request("x") != Keys("b").request("x")
    assert Keys("a").bell != Keys("b").bell


def test_channels_carry_their_owner():
    assert gateway_channel("host:1:ab") == "bw:gw:host:1:ab"
    assert control_channel("w-1") == "bw:ctl:w-1"
