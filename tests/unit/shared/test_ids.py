"""Ids: never the same twice, and safe wherever they are put."""

import os
import re

from shared.ids import boot_id, request_id


def test_request_ids_differ_and_need_no_escaping_in_json_urls_or_keys():
    """emit.lua puts them between quotes as they are."""
    made = {request_id() for _ in range(1000)}

    assert len(made) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22}", one) for one in made)


def test_boot_ids_name_the_process_and_differ_even_within_it():
    assert f":{os.getpid()}:" in boot_id()
    assert boot_id() != boot_id()
