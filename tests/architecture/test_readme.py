"""The README's commands, run: a block under `<!-- test: name -->` does and prints what it shows.

In such a console block a line that starts with `$ ` is a command, and the lines below it are its output. `...` stands
for anything within a line, and alone on a line for any number of lines. Commands run against a fleet with the echo
engine, at whatever port it has, which the README calls 8000.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.up import Up

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"<!-- test: ([\w-]+) -->\n```console\n(.*?)```", re.DOTALL)
PORT = 8000
# As much of curl as a README needs, for a machine that has none.
CURL = """
import getopt, sys, httpx
options, (url,) = getopt.gnu_getopt(sys.argv[1:], "NsSH:d:")
headers = dict(value.split(": ", 1) for name, value in options if name == "-H")
body = "".join(value for name, value in options if name == "-d")
print(httpx.request("POST" if body else "GET", url, headers=headers, content=body, timeout=30).text, end="")
"""


def blocks(text):
    """name: [(command, expected lines)]."""
    return {name: commands(body) for name, body in BLOCK.findall(text)}


def commands(body):
    found = []
    for line in body.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


def pattern(expected):
    """A regular expression for the whole output."""
    parts = []
    for line in expected:
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(r"[^\n]*".join(re.escape(part.strip()) for part in line.split("...")) + r" *\n")
    return "".join(parts)


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs a command as a reader would, with `busway` on the path."""
    folder = tmp_path_factory.mktemp("readme")
    busway = folder / "busway"
    busway.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m shared.cli.main "$@"\n')
    busway.chmod(0o755)
    if shutil.which("curl") is None:  # a bare machine
        curl = folder / "curl"
        curl.write_text(f"#!{sys.executable}\n{CURL}")
        curl.chmod(0o755)
    with Up(folder / "data", "--workers", "2", "--gateways", "2") as fleet:
        port = fleet.url.rsplit(":", 1)[1]
        environ = {
            **os.environ,
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "BUSWAY_GATEWAY__PORT": port,
            "BUSWAY_REDIS__URL": f"unix://{folder}/data/valkey/valkey.sock?db=0",
        }

        def run(command):
            done = subprocess.run(
                ["sh", "-c", command.replace(f":{PORT}", f":{port}")],
                cwd=folder,
                env=environ,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            return done.stdout.replace(f":{port}", f":{PORT}")

        yield run


@pytest.mark.integration
@pytest.mark.parametrize("name", blocks(README.read_text()))
def test_a_command_does_what_the_readme_shows(name, shell):
    for command, expected in blocks(README.read_text())[name]:
        output = shell(command).removesuffix("\n") + "\n"  # a JSON body ends without one

        assert re.fullmatch(pattern(expected), output), f"$ {command}\n{output}"


def test_something_of_the_readme_is_tested():
    marks = README.read_text().count("<!-- test:")

    assert marks == len(blocks(README.read_text())) > 0, "a mark without its console block, or a name used twice"


@pytest.mark.integration
def test_the_stand_in_for_curl_works(shell, tmp_path):
    stand_in = tmp_path / "stand-in"
    stand_in.write_text(CURL)

    answer = shell(
        f"{sys.executable} {stand_in} -sN http://127.0.0.1:{PORT}/v1/chat/completions "
        "-H 'content-type: application/json' "
        """-d '{"model": "echo", "stream": true, "messages": [{"role": "user", "content": "hello"}]}'"""
    )

    assert answer.endswith("data: [DONE]\n\n")


def test_dots_stand_for_anything():
    expected = ["...", "name ... 2 ... environment", "..."]

    assert re.fullmatch(pattern(expected), "a\nb\nname      2    environment\nc\n")
    assert re.fullmatch(pattern(expected), "name      2    environment\n")
    assert not re.fullmatch(pattern(expected), "name      3    environment\n")
    assert not re.fullmatch(pattern(["hello"]), "hello\nworld\n")


def test_a_long_command_may_be_continued():
    assert commands("$ busway chat \\\n    hello\nhello\n") == [("busway chat      hello", ["hello"])]
