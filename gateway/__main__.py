"""`python -m gateway`: one gateway process."""

import argparse
import gc
import sys

import structlog

from gateway.app import create_app
from gateway.server import Server, listen
from shared import log, settings
from shared.errors import ConfigError


def main() -> int:
    """Serve until told to stop; 2 if the settings are wrong."""
    parser = argparse.ArgumentParser(prog="gateway")
    parser.add_argument("--fd", type=int, help="serve on this inherited listening socket")
    options = parser.parse_args()
    try:
        tree = settings.load()
        log.configure(tree.log, process="gateway")
        app = create_app(tree)
        listener = listen(tree.gateway, options.fd)
    except ConfigError as error:
        print(f"gateway: {error}", file=sys.stderr)  # noqa: T201
        return 2
    host, port = listener.getsockname()[:2]
    structlog.get_logger().info("gateway.started", host=host, port=port, open_to_all=not app.keys)
    gc.freeze()  # what was loaded stays: no collection has to look through it while somebody waits for a token
    Server(app, tree.gateway).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
