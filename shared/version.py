"""The version, as the installed distribution states it."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("busway")
except PackageNotFoundError:  # a checkout that was not installed
    VERSION = "0"
